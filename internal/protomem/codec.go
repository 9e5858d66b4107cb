package protomem

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec is gRPC's codec for protobuf with the memory of Pool. The zero value is ready.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name implements encoding.CodecV2. It is empty, because then gRPC sends the content type without
// the name of a codec, as clients of other languages do.
func (Codec) Name() string { return "" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode a gRPC message: the type is %T, not proto.Message", v)
	}
	o := proto.MarshalOptions{UseCachedSize: true}
	size := proto.Size(m)
	if size < shared {
		b, err := o.MarshalAppend(make([]byte, 0, size), m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	room := Pool.Get(size)
	b, err := o.MarshalAppend((*room)[:0], m)
	if err != nil {
		Pool.Put(room)
		return nil, err
	}
	*room = b
	return mem.BufferSlice{mem.NewBuffer(room, Pool)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode a gRPC message: the type is %T, not proto.Message", v)
	}
	b := data.MaterializeToBuffer(Pool)
	defer b.Free()
	return proto.Unmarshal(b.ReadOnlyData(), m)
}
