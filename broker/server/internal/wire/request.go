package wire

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A decoded empty message takes a hundred bytes, and an encoded one two. Repeated fields are
// therefore counted before the request is decoded; the other fields are small.
const (
	// MaxSmallRequest bounds all requests but those of messages and
	// acknowledgements, in bytes. The largest of them are clients' settings, which
	// name every topic that a client uses: some 2700 with names of 20 bytes.
	MaxSmallRequest = 64 << 10

	// maxAckRequest bounds an AckMessage, in bytes: 1 KiB for each entry.
	maxAckRequest = refusal.MaxMany << 10

	// maxBesideBody bounds the encoded size of a message without its body, in bytes. All messages
	// that the engine accepts fit: at worst, with 16 KiB of keys of one byte each, a message takes
	// about five sixths of it.
	maxBesideBody = 64 << 10
)

// Numbers of the fields that are counted, in the public contract.
const (
	sendMessages = 1
	ackEntries   = 3

	// of an entry
	entryID     = 1
	entryHandle = 2
)

// checkSize rejects a request that would be too large when decoded; its own length was checked
// before it was read. Bytes that cannot be decoded pass.
func checkSize(request proto.Message, raw []byte) error {
	switch request.(type) {
	case *rmqpb.SendMessageRequest:
		return walk(raw, sendMessages, "messages", func(i int, m []byte) error {
			if len(m) <= maxBesideBody {
				return nil
			}
			beside := len(m)
			_ = walk(m, messageBody, "", func(_ int, body []byte) error { beside -= len(body); return nil })
			if beside > maxBesideBody {
				return refusal.New(tidegate.CodeMessagePropertiesTooLarge, "message",
					fmt.Sprintf("message %d has %d bytes in addition to its body; the limit is %d", i+1, beside, maxBesideBody))
			}
			return nil
		})
	case *rmqpb.AckMessageRequest:
		return walk(raw, ackEntries, "entries", func(int, []byte) error { return nil })
	}
	return nil
}

// walk calls f for each field with the number that contains bytes, until the first error or invalid
// protobuf. At most refusal.MaxMany of the fields with a name are allowed.
func walk(raw []byte, field protowire.Number, name string, f func(i int, value []byte) error) error {
	for i := 0; len(raw) > 0; {
		number, kind, value, n := readField(raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
		if number != field || kind != protowire.BytesType {
			continue
		}
		if i == refusal.MaxMany && name != "" {
			return refusal.New(tidegate.CodeBadRequest, name, fmt.Sprintf("the request exceeds the limit of %d %s", refusal.MaxMany, name))
		}
		if err := f(i, value); err != nil {
			return err
		}
		i++
	}
	return nil
}

// A Codec is that of protomem, but takes a *Frame as it is, and a Placed. Goroutines may share it.
type Codec struct{ protomem.Codec }

// A Placed is a message of a response, which keeps the request's place until gRPC has written it.
type Placed struct {
	Message any
	Place   *transit.Place
	Last    bool // it comes in place of the handler, which has returned
}

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Placed:
		if v.Last {
			defer v.Place.End()
		}
		data, err := c.Marshal(v.Message)
		if err != nil {
			return nil, err
		}
		v.Place.Begin()
		if r, ok := v.Message.(*rmqpb.SendMessageResponse); ok && v.Last {
			v.Message = nil // gRPC's traces show v later
			freeSendResponse(r)
		}
		return append(slices.Clip(data), mem.NewBuffer(&placed, v.Place)), nil
	case *Frame:
		return v.data, nil
	}
	return c.Codec.Marshal(v)
}

// placed is the content of the empty buffer that shows when gRPC has written a message: gRPC
// frees the buffers of a message then, the last one last. It ignores the pool of a buffer with
// less capacity.
var placed = make([]byte, 0, 4<<10)
