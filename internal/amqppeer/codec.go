package amqppeer

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A symbol is a string of ASCII characters.
type symbol string

// A mapping is a map: keys and values in turns.
type mapping []any

// A described value is a value with the code of its type, for example 0x24 for the outcome
// accepted.
type described struct {
	code  uint64
	value any
}

var errShort = errors.New("the value ends early")

// decode returns the first value of b and the bytes behind it: nil, bool, uint64, []byte, string,
// symbol, []any, mapping or described. Integers of all widths are uint64. It skips arrays.
func decode(b []byte) (value any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errShort
	}
	code, b := b[0], b[1:]
	take := func(n int) []byte {
		if n < 0 || n > len(b) {
			err = errShort
			return nil
		}
		head := b[:n]
		b = b[n:]
		return head
	}
	sized := func() []byte { // the size has 4 bytes in the upper half of the codes
		if code&0xf0 == 0xa0 || code&0xf0 == 0xc0 || code&0xf0 == 0xe0 {
			if n := take(1); err == nil {
				return take(int(n[0]))
			}
			return nil
		}
		if n := take(4); err == nil {
			return take(int(binary.BigEndian.Uint32(n)))
		}
		return nil
	}
	switch code {
	case 0x00:
		return decodeDescribed(b)
	case 0x40:
		return nil, b, nil
	case 0x41, 0x42:
		return code == 0x41, b, nil
	case 0x56:
		v := take(1)
		return err == nil && v[0] == 1, b, err
	case 0x43, 0x44:
		return uint64(0), b, nil
	case 0x45:
		return []any{}, b, nil
	}
	switch code & 0xf0 {
	case 0x50, 0x60, 0x70, 0x80, 0x90: // of 1, 2, 4, 8 and 16 bytes
		var n uint64
		for _, digit := range take(1 << (code>>4 - 5)) {
			n = n<<8 | uint64(digit)
		}
		return n, b, err
	case 0xa0, 0xb0:
		v := sized()
		switch code & 0x0f {
		case 1:
			return string(v), b, err
		case 3:
			return symbol(v), b, err
		}
		return v, b, err
	case 0xc0, 0xd0:
		v := sized()
		if err != nil {
			return nil, b, err
		}
		list, err := decodeList(v, map[bool]int{true: 1, false: 4}[code&0xf0 == 0xc0])
		if code&0x0f == 1 {
			return mapping(list), b, err
		}
		return list, b, err
	case 0xe0, 0xf0:
		sized()
		return nil, b, err
	}
	return nil, nil, fmt.Errorf("the format code %#x is not of AMQP 1.0", code)
}

func decodeDescribed(b []byte) (value any, rest []byte, err error) {
	descriptor, b, err := decode(b)
	if err != nil {
		return nil, nil, err
	}
	value, b, err = decode(b)
	code, _ := descriptor.(uint64) // zero for a symbol
	return described{code, value}, b, err
}

func decodeList(b []byte, width int) ([]any, error) {
	if len(b) < width {
		return nil, errShort
	}
	list := []any{}
	for b = b[width:]; len(b) > 0; {
		value, rest, err := decode(b)
		if err != nil {
			return nil, err
		}
		list, b = append(list, value), rest
	}
	return list, nil
}

// encode appends a value: nil, bool, byte, uint16, uint32, []byte, string, symbol, []any or
// described.
func encode(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, 0x40)
	case bool:
		return append(b, map[bool]byte{true: 0x41, false: 0x42}[v])
	case byte:
		return append(b, 0x50, v)
	case uint16:
		return binary.BigEndian.AppendUint16(append(b, 0x60), v)
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 0x70), v)
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb0), uint32(len(v))), v...)
	case string:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb1), uint32(len(v))), v...)
	case symbol:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb3), uint32(len(v))), v...)
	case described:
		return encode(append(b, 0x00, 0x53, byte(v.code)), v.value)
	case []any:
		var all []byte
		for _, element := range v {
			all = encode(all, element)
		}
		b = binary.BigEndian.AppendUint32(append(b, 0xd0), uint32(len(all)+4))
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), all...)
	}
	panic(fmt.Sprintf("amqppeer: %T has no encoding here", value))
}

// frame returns a frame: kind is 0 for AMQP and 1 for SASL. The payload follows the list.
func frame(kind byte, channel uint16, code byte, list []any, payload []byte) []byte {
	body := append(encode(nil, described{uint64(code), list}), payload...)
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(b, 2, kind, byte(channel>>8), byte(channel)), body...)
}

// field returns an element of a list; nil if the list is shorter.
func field[T any](list []any, i int) (value T) {
	if i < len(list) {
		value, _ = list[i].(T) // the zero value for nil
	}
	return value
}
