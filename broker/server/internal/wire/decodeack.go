package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// decodeAck fills in a request in few allocations: all entries are in one slice, and their texts
// are parts of one string. It returns false, and the request is undefined, if raw does not end with
// its entries, if an entry has another field than ID and handle, or if raw cannot be decoded.
func decodeAck(raw []byte, request *rmqpb.AckMessageRequest) bool {
	head := 0
	for {
		number, _, n := field(raw[head:])
		if n < 0 {
			return false
		}
		if n == 0 || number == ackEntries {
			break
		}
		head += n
	}
	list := raw[head:]
	count := 0
	for rest := list; len(rest) > 0; count++ {
		number, _, n := field(rest)
		if n < 0 || number != ackEntries {
			return false
		}
		rest = rest[n:]
	}
	if proto.Unmarshal(raw[:head], request) != nil {
		return false
	}
	entries, texts, at := make([]rmqpb.AckMessageEntry, count), string(list), 0
	request.Entries = make([]*rmqpb.AckMessageEntry, count)
	for i := range entries {
		_, value, n := field(list[at:])
		if !decodeEntry(&entries[i], value, texts[at+n-len(value):at+n]) {
			return false
		}
		at += n
		request.Entries[i] = &entries[i]
	}
	return true
}

// decodeEntry fills in an entry from its encoding, which text is too.
func decodeEntry(e *rmqpb.AckMessageEntry, raw []byte, text string) bool {
	for at := 0; at < len(raw); {
		number, value, n := field(raw[at:])
		if n < 0 || !utf8.Valid(value) {
			return false
		}
		at += n
		switch number {
		case entryID:
			e.MessageId = text[at-len(value) : at]
		case entryHandle:
			e.ReceiptHandle = text[at-len(value) : at]
		default:
			return false
		}
	}
	return true
}

// field returns the number and value of the first field of an encoded message, and the length of
// the field: 0 if there is none, and less than 0 if the field is not of bytes or cannot be decoded.
func field(raw []byte) (number protowire.Number, value []byte, length int) {
	if len(raw) == 0 {
		return 0, nil, 0
	}
	// Most tags and lengths are of one byte.
	if len(raw) > 1 && raw[0]&^0x78 == byte(protowire.BytesType) && raw[0] > 7 && raw[1] < 0x80 && int(raw[1]) <= len(raw)-2 {
		length = 2 + int(raw[1])
		return protowire.Number(raw[0] >> 3), raw[2:length], length
	}
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 || kind != protowire.BytesType {
		return 0, nil, -1
	}
	value, size := protowire.ConsumeBytes(raw[n:])
	if size < 0 {
		return 0, nil, -1
	}
	return number, value, n + size
}
