// Package protomem encodes and decodes gRPC's messages in memory that is used again.
package protomem

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

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
