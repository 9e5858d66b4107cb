package wire

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Codec is gRPC's codec for protobuf with the memory of Pool. It encodes a *Sending, *Sendings and
// *Frame, and decodes a *ReceivedFrame and a SendMessageResponse, without protobuf's reflection.
// The zero value is ready.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name implements encoding.CodecV2. It is empty, because then gRPC sends the content type without
// the name of a codec, as clients of other languages do.
func (Codec) Name() string { return "" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Sending:
		return marshal(v.SizeBound(), v)
	case *Sendings:
		return v.marshal()
	case *Frame:
		return v.data, nil
	}
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
	if f, ok := v.(*ReceivedFrame); ok {
		*f = newFrame(data)
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode a gRPC message: the type is %T, not proto.Message", v)
	}
	b := data.MaterializeToBuffer(Pool)
	defer b.Free()
	if sent, ok := v.(*rmqpb.SendMessageResponse); ok && decodeSent(b.ReadOnlyData(), sent) {
		return nil
	}
	return proto.Unmarshal(b.ReadOnlyData(), m)
}

const (
	minShift = 8  // the smallest buffers have 256 bytes
	maxShift = 21 // the largest that are used again have 2 MiB

	// shared is from how many bytes on a buffer is worth being used again, as in gRPC.
	shared = 1 << 10
)

// Pool has buffers for gRPC's messages. In contrast to gRPC's own pool it does not clear them, and
// it has a size for each power of two. In gRPC's pool a message of more than 32 KiB takes 1 MiB,
// which is cleared.
var Pool mem.BufferPool = &pool{}

type pool struct {
	sizes [maxShift - minShift + 1]sync.Pool
}

// sizeFor returns the index of the smallest size that holds n bytes, or -1 if none does.
func sizeFor(n int) int {
	switch {
	case n > 1<<maxShift:
		return -1
	case n <= 1<<minShift:
		return 0
	}
	return bits.Len(uint(n-1)) - minShift
}

// Get implements mem.BufferPool. The content of the buffer is undefined.
func (p *pool) Get(n int) *[]byte {
	i := sizeFor(n)
	if i < 0 {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.sizes[i].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(i+minShift))
	return &b
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	if n := cap(*b); n >= 1<<minShift && n <= 1<<maxShift && bits.OnesCount(uint(n)) == 1 {
		p.sizes[sizeFor(n)].Put(b)
	}
}
