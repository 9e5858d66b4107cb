// Package requests has the parts of the broker's RPCs that call neither the engine nor a
// connection: the reading of requests within limits ([Intake]), the checks of sent messages
// ([Message]), the headers, and statuses, endpoints and retry policies for clients. It reads the
// clock, and reserves the memory of large requests and responses in package admission. The codec
// itself is in package wire.
package requests

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// StreamWindow is how many bytes a client may send on a stream ahead of the server's reading.
	// It is the least that gRPC takes.
	StreamWindow = 64 << 10

	// firstHold is the reservation of a request whose size is unknown: a full window, whose frames
	// can have buffers of twice their size.
	firstHold = 2 * StreamWindow

	// smallHold is the minimum reservation of a request that was read.
	smallHold = 1 << 10

	// messageHeader is the size of the header of each gRPC message: a flag and a length.
	messageHeader = 5
)

// A messageReader has methods of gRPC's server streams beyond [grpc.ServerTransportStream]. Their
// RecvMsg reads a message of any size up to a limit as a whole. With these methods the server can
// read the header first and the rest in pieces, and so reserve memory before a request arrives.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// An Intake reads the requests of one RPC. One goroutine at a time uses it.
type Intake struct {
	Hold    admission.Hold // the memory for the request; the caller releases it
	MaxSend int            // bytes of a SendMessage
	Streams bool           // more requests may follow

	shared mem.Buffer     // memory that the bodies of the last request lie in; nil: they have their own
	sent   *wire.SendList // memory of the messages of the last request; nil: it is not used again
}

// Read reads the next request of the RPC with the context ctx. refused is the error for a client
// whose request is too large or gets no memory. err is a gRPC status, or io.EOF after the last
// request of a stream. Read closes the connection if the request takes longer than admission.Pace.
func (in *Intake) Read(ctx context.Context, request proto.Message) (refused, err error) {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(messageReader)
	if !ok {
		return nil, status.Error(codes.Internal, "the broker was built with an incompatible version of gRPC and cannot read requests")
	}
	if !in.Streams { // a stream may be silent for as long as it wants
		if err := in.Hold.Resize(firstHold, true); err != nil {
			return err, nil
		}
		defer in.Hold.Watch(StreamWindow).Stop()
	}
	var header [messageHeader]byte
	if err := stream.ReadMessageHeader(header[:]); err != nil {
		return nil, in.failure(err)
	}
	if header[0] != 0 {
		return nil, status.Error(codes.Unimplemented, "the request is compressed; this broker accepts only uncompressed requests, so compress the message bodies instead")
	}
	raw, refused, err := in.body(stream, request, int64(binary.BigEndian.Uint32(header[1:])))
	if err != nil || refused != nil {
		raw.Free()
		return refused, err
	}
	return in.decode(raw, request)
}

// body reads n bytes in pieces, each as large as all before it, and holds memory for each piece
// before it can arrive.
func (in *Intake) body(stream messageReader, request proto.Message, n int64) (raw mem.BufferSlice, refused, err error) {
	if refused, err := in.checkLength(request, n); refused != nil || err != nil {
		return nil, refused, err
	}
	inPieces := n > StreamWindow || in.Streams
	if inPieces {
		defer in.Hold.Watch(n).Stop()
	}
	for read := int64(0); read < n; {
		piece := min(n-read, max(StreamWindow, read))
		if inPieces {
			if refused := in.Hold.Resize(holdFor(read+piece), true); refused != nil {
				return raw, refused, nil
			}
		}
		data, err := stream.Read(int(piece))
		if err != nil {
			return raw, nil, in.failure(err)
		}
		if read += piece; raw == nil {
			raw = data
		} else {
			raw = append(raw, data...)
		}
	}
	if !in.Streams {
		var more [1]byte
		if err := stream.ReadMessageHeader(more[:]); err == nil {
			return raw, nil, status.Error(codes.Internal, "more than one request arrived for a unary RPC")
		} else if !errors.Is(err, io.EOF) {
			return raw, nil, in.failure(err)
		}
	}
	// While the request is decoded it is in memory twice, and afterwards together with the messages
	// of the engine.
	return raw, in.Hold.Resize(smallHold+2*n, false), nil
}

// holdFor returns the reservation of a request of which n bytes can have been sent, in addition to
// a window: their frames can have buffers of twice their size.
func holdFor(n int64) int64 { return 2 * (n + StreamWindow) }

// MostOf returns the size of the largest request that can be read with a hold of so many bytes.
func MostOf(hold int64) int64 { return hold/2 - StreamWindow }

// checkLength rejects a request by its length alone.
func (in *Intake) checkLength(request proto.Message, n int64) (refused, err error) {
	switch request.(type) {
	case *rmqpb.SendMessageRequest:
		if n > int64(in.MaxSend) { // as every gRPC server with a limit does
			return nil, status.Errorf(codes.ResourceExhausted, "the request has %d bytes; the limit is %d", n, in.MaxSend)
		}
		return nil, nil
	case *rmqpb.AckMessageRequest:
		return smaller(n, maxAckRequest), nil
	}
	return smaller(n, MaxSmallRequest), nil
}

func smaller(n, limit int64) error {
	if n > limit {
		return refusal.New(protocol.CodePayloadTooLarge, "request", "the request has %d bytes; the limit is %d", n, limit)
	}
	return nil
}

// failure returns the reason for which a request did not arrive.
func (in *Intake) failure(err error) error {
	switch {
	case errors.Is(err, io.EOF) && in.Streams:
		return io.EOF
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return status.Error(codes.Internal, "the request ended before it was complete")
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// decode fills in the request, unless its counts are too large. It frees the data, except for the
// bodies of a SendMessage, which share memory with it until Free.
func (in *Intake) decode(data mem.BufferSlice, request proto.Message) (refused, err error) {
	buf := data.MaterializeToBuffer(wire.Pool)
	data.Free()
	raw := buf.ReadOnlyData()
	refused = checkSize(request, raw)
	if send, ok := request.(*rmqpb.SendMessageRequest); ok && refused == nil {
		if list, ok := wire.DecodeSend(raw, send); ok {
			in.shared, in.sent = buf, list
			return nil, nil
		}
	}
	ack, isAck := request.(*rmqpb.AckMessageRequest)
	switch {
	case refused != nil:
	case isAck && wire.DecodeAck(raw, ack):
	default:
		if err = proto.Unmarshal(raw, request); err != nil {
			err = status.Error(codes.Internal, "the request is malformed: "+err.Error())
		}
	}
	buf.Free()
	return refused, err
}

// Free ends the use of the last request if it is a SendMessage: no message and no body of it may be
// used afterwards, because other requests use their memory. Texts, topics, keys and properties
// remain valid. Without Free the collector frees the memory.
func (in *Intake) Free() {
	if in.shared != nil {
		in.shared.Free()
		in.shared = nil
	}
	if in.sent != nil {
		in.sent.Free()
		in.sent = nil
	}
}

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

// checkSize rejects a request that would be too large when decoded; its own length was checked
// before it was read. Bytes that cannot be decoded pass.
func checkSize(request proto.Message, raw []byte) error {
	switch request.(type) {
	case *rmqpb.SendMessageRequest:
		return walk(raw, wire.TagSendMessage, "messages", func(i int, m []byte) error {
			if len(m) <= maxBesideBody {
				return nil
			}
			beside := len(m)
			_ = walk(m, wire.TagMessageBody, "", func(_ int, body []byte) error { beside -= len(body); return nil })
			if beside > maxBesideBody {
				return refusal.New(protocol.CodeMessagePropertiesTooLarge, "message",
					"message %d has %d bytes in addition to its body; the limit is %d", i+1, beside, maxBesideBody)
			}
			return nil
		})
	case *rmqpb.AckMessageRequest:
		return walk(raw, wire.TagAckEntry, "entries", func(int, []byte) error { return nil })
	}
	return nil
}

// walk calls f for each field with the tag, until the first error or invalid protobuf. At most
// refusal.MaxMany of the fields with a name are allowed.
func walk(raw []byte, tag uint64, name string, f func(i int, value []byte) error) error {
	i := 0
	for r := (wire.Fields(raw)); r.Next(); {
		if r.Tag != tag {
			continue
		}
		if i == refusal.MaxMany && name != "" {
			return refusal.New(tidegate.CodeBadRequest, name, "the request exceeds the limit of %d %s", refusal.MaxMany, name)
		}
		if err := f(i, r.Bytes()); err != nil {
			return err
		}
		i++
	}
	return nil
}
