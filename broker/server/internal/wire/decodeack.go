package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// decodeAck fills in a request in few allocations: all entries are in one slice, and their texts
// are parts of one string. It returns false, and the request is undefined, if raw does not end with
// its entries, if an entry has another field than ID and handle, or if raw cannot be decoded.
func decodeAck(raw []byte, request *rmqpb.AckMessageRequest) bool {
	head := 0
	for head < len(raw) {
		number, kind, _, n := readField(raw[head:])
		if n < 0 || kind != protowire.BytesType {
			return false
		}
		if number == ackEntries {
			break
		}
		head += n
	}
	list := raw[head:]
	count := 0
	for rest := list; len(rest) > 0; count++ {
		number, kind, _, n := readField(rest)
		if n < 0 || number != ackEntries || kind != protowire.BytesType {
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
		_, _, value, n := readField(list[at:])
		at += n
		if !decodeEntry(&entries[i], value, texts[at-len(value):at]) {
			return false
		}
		request.Entries[i] = &entries[i]
	}
	return true
}

// decodeEntry fills in an entry from its encoding, which text is too.
func decodeEntry(e *rmqpb.AckMessageEntry, raw []byte, text string) bool {
	for at := 0; at < len(raw); {
		number, kind, value, n := readField(raw[at:])
		if n < 0 || kind != protowire.BytesType || !utf8.Valid(value) {
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
