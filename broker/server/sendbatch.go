package server

import (
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/internal/wire"
)

// A sendBatch has the messages of one request in the engine's types.
type sendBatch struct {
	messages []tidegate.Message
	incoming []engine.Incoming
}

// A batchOfOne is a sendBatch of one message, in one allocation.
type batchOfOne struct {
	sendBatch
	message  [1]tidegate.Message
	incoming [1]engine.Incoming
}

var sendBatches sync.Pool // of *sendBatch, zero up to the capacity

// newSendBatch returns a batch of n messages, which are zero.
func newSendBatch(n int) *sendBatch {
	if n == 1 {
		b := &batchOfOne{}
		b.messages, b.sendBatch.incoming = b.message[:], b.incoming[:]
		return &b.sendBatch
	}
	if wire.Reusable(n) {
		if b, _ := sendBatches.Get().(*sendBatch); b != nil && cap(b.messages) >= n {
			b.messages, b.incoming = b.messages[:n], b.incoming[:n]
			return b
		}
	}
	return &sendBatch{make([]tidegate.Message, n), make([]engine.Incoming, n)}
}

// free ends the use of the batch: other requests use its memory.
func (b *sendBatch) free() {
	if !wire.Reusable(len(b.messages)) {
		return
	}
	clear(b.messages)
	clear(b.incoming)
	sendBatches.Put(b)
}
