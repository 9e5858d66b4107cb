package wire

import "google.golang.org/protobuf/encoding/protowire"

// readField reads the first field of an encoded message. value is the content of a BytesType, the
// encoding of a VarintType, and nil for other kinds. length is that of the field; it is less than 0
// if there is no field, or if raw cannot be decoded.
func readField(raw []byte) (number protowire.Number, kind protowire.Type, value []byte, length int) {
	// Most tags and lengths are of one byte.
	if len(raw) > 1 && raw[0]&^0x78 == byte(protowire.BytesType) && raw[0] > 7 && raw[1] < 0x80 && int(raw[1]) <= len(raw)-2 {
		length = 2 + int(raw[1])
		return protowire.Number(raw[0] >> 3), protowire.BytesType, raw[2:length], length
	}
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 {
		return 0, 0, nil, n
	}
	var size int
	switch kind {
	case protowire.BytesType:
		value, size = protowire.ConsumeBytes(raw[n:])
	case protowire.VarintType:
		if _, size = protowire.ConsumeVarint(raw[n:]); size > 0 {
			value = raw[n : n+size]
		}
	default:
		size = protowire.ConsumeFieldValue(number, kind, raw[n:])
	}
	if size < 0 {
		return 0, 0, nil, size
	}
	return number, kind, value, n + size
}

// varint returns the number that value encodes.
func varint(value []byte) uint64 {
	x, _ := protowire.ConsumeVarint(value)
	return x
}
