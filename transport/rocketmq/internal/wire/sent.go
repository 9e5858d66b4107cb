package wire

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Tags of a SendMessageResponse and its parts.
const (
	tagSentStatus  = 1<<3 | kindBytes
	tagSentEntries = 2<<3 | kindBytes

	tagEntryStatus      = 1<<3 | kindBytes
	tagEntryMessage     = 2<<3 | kindBytes
	tagEntryTransaction = 3<<3 | kindBytes
	tagEntryOffset      = 4<<3 | kindVarint
	tagEntryRecall      = 5<<3 | kindBytes

	tagStatusCode    = 1<<3 | kindVarint
	tagStatusMessage = 2<<3 | kindBytes
)

// unmarshalSent decodes a response to a send.
func unmarshalSent(data mem.BufferSlice, to *rmqpb.SendMessageResponse) error {
	buf := data.MaterializeToBuffer(protomem.Pool)
	defer buf.Free()
	raw := buf.ReadOnlyData()
	if decodeSent(raw, to) {
		return nil
	}
	return proto.Unmarshal(raw, to)
}

// decodeSent decodes a response in few allocations: all entries are in one slice, their texts are
// parts of one string, and successive entries with the same status share it. It returns false, and
// leaves the response undefined, if raw has other fields than the contract, has a status twice, or
// cannot be decoded.
func decodeSent(raw []byte, to *rmqpb.SendMessageResponse) bool {
	n := 0
	for r := (FieldReader{Rest: raw}); r.Next(); {
		if r.Tag == tagSentEntries {
			n++
		}
	}
	to.Reset()
	entries, all := make([]rmqpb.SendResultEntry, n), string(raw)
	if n > 0 {
		to.Entries = make([]*rmqpb.SendResultEntry, 0, n)
	}
	var last sentStatus
	r := FieldReader{Rest: raw}
	for r.Next() {
		switch r.Tag {
		case tagSentStatus:
			if to.Status != nil || !last.take(r.Bytes) {
				return false
			}
			to.Status = last.status
		case tagSentEntries:
			e := &entries[len(to.Entries)]
			end := len(raw) - len(r.Rest)
			if !decodeEntry(e, r.Bytes, all[end-len(r.Bytes):end], &last) {
				return false
			}
			to.Entries = append(to.Entries, e)
		default:
			return false
		}
	}
	return r.Err == nil
}

// decodeEntry fills in an entry from its encoding, which text is too.
func decodeEntry(e *rmqpb.SendResultEntry, raw []byte, text string, last *sentStatus) bool {
	r := FieldReader{Rest: raw}
	for r.Next() {
		if r.Tag == tagEntryOffset {
			e.Offset = int64(r.number) //nolint:gosec // a negative number is encoded so
			continue
		}
		if r.Tag == tagEntryStatus {
			if e.Status != nil || !last.take(r.Bytes) {
				return false
			}
			e.Status = last.status
			continue
		}
		if r.Tag&7 != kindBytes || !utf8.Valid(r.Bytes) {
			return false
		}
		end := len(raw) - len(r.Rest)
		value := text[end-len(r.Bytes) : end]
		switch r.Tag {
		case tagEntryMessage:
			e.MessageId = value
		case tagEntryTransaction:
			e.TransactionId = value
		case tagEntryRecall:
			e.RecallHandle = value
		default:
			return false
		}
	}
	return r.Err == nil
}

// A sentStatus is the last status of a response, and its encoding.
type sentStatus struct {
	status *rmqpb.Status
	raw    []byte
}

// take decodes a status.
func (s *sentStatus) take(raw []byte) bool {
	if s.status != nil && bytes.Equal(raw, s.raw) {
		return true
	}
	st, r := &rmqpb.Status{}, FieldReader{Rest: raw}
	for r.Next() {
		switch r.Tag {
		case tagStatusCode:
			st.Code = rmqpb.Code(int32(r.number)) //nolint:gosec // protobuf's decoders cut off the rest too
		case tagStatusMessage:
			if !utf8.Valid(r.Bytes) {
				return false
			}
			st.Message = string(r.Bytes)
		default:
			return false
		}
	}
	if r.Err != nil {
		return false
	}
	s.status, s.raw = st, raw
	return true
}
