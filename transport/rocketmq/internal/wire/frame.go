package wire

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A Frame is one encoded ReceiveMessageResponse. It is to be freed.
type Frame struct {
	Data []byte
	room *[]byte // of frameRooms, that data lies in; nil: of none
}

// maxRoom is the size in bytes of the largest frame whose memory is used again.
const maxRoom = 2 << 20

// frameRooms has memory for frames. gRPC's own pool clears the memory that it gives out,
// which for small frames takes as long as reading them.
var frameRooms = sync.Pool{New: func() any { return new([]byte) }}

func newFrame(data mem.BufferSlice) Frame {
	n := data.Len()
	if n > maxRoom {
		return Frame{Data: data.Materialize()}
	}
	room := frameRooms.Get().(*[]byte)
	if cap(*room) < n {
		*room = make([]byte, max(n, min(2*cap(*room), maxRoom)))
	}
	f := Frame{Data: (*room)[:n], room: room}
	data.CopyTo(f.Data)
	return f
}

// Free gives the frame's memory back. The frame and its parts are not used afterwards.
func (f *Frame) Free() {
	if f.room != nil {
		frameRooms.Put(f.room)
	}
	*f = Frame{}
}

// A FrameCodec leaves a *Frame encoded. It encodes a *Sending or *Sendings, and decodes the
// response, without protobuf's reflection.
type FrameCodec struct{ protomem.Codec }

// Marshal implements encoding.CodecV2.
func (c FrameCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch s := v.(type) {
	case *Sending:
		if data, ok := s.marshal(); ok {
			return data, nil
		}
		return c.Codec.Marshal(s.Request()) // reports the text
	case *Sendings:
		return s.marshal(c.Codec)
	}
	return c.Codec.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c FrameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Frame:
		*v = newFrame(data)
		return nil
	case *rmqpb.SendMessageResponse:
		return unmarshalSent(data, v)
	}
	return c.Codec.Unmarshal(data, v)
}

// Unreadable is the error that gRPC has for a frame that is no protobuf.
func Unreadable(err error) error {
	return status.Errorf(codes.Internal, "a frame of the response is not a ReceiveMessageResponse: %v", err)
}
