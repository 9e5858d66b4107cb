package server

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that ours hands on to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A codec is gRPC's for protobuf, but takes a *frame as it is, and looks at an
// *unread before it decodes it.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	u, ok := v.(*unread)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if u.fault = checkSize(u.request, buf.ReadOnlyData()); u.fault != nil {
		return nil
	}
	return proto.Unmarshal(buf.ReadOnlyData(), u.request)
}
