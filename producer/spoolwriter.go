package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
)

// maxSpooled bounds the messages of one write to the spool.
const maxSpooled = 1000

// A spoolWriter writes messages to Options.Spool, in the order of the calls of add. Messages that
// arrive during a write share the next one.
//
// Wake-ups: a goroutine runs while a message waits for a write. add starts it, and a PutBatch that
// ends it starts the next one. Bound on steps: each write has at least one message, and maxSpooled
// of them if so many wait.
type spoolWriter struct {
	spool   Spool
	start   func(func())           // starts a goroutine
	written func([]*item, []error) // is called once for each message; no lock is held
	report  guard.Report           // of a panic of spool

	mu      sync.Mutex
	queue   []*item // guarded by mu
	running bool    // guarded by mu
}

// add queues a message. The lock of its topic is held, so that the order of a message group in the
// queue of its topic is its order in the spool.
func (w *spoolWriter) add(it *item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, it)
	if !w.running {
		w.running = true
		w.start(w.run) // Close waits for the message, so it cannot wait for Running yet
	}
}

// run writes the queued messages until there are none.
func (w *spoolWriter) run() {
	for items := w.next(); len(items) > 0; items = w.next() {
		w.write(items)
	}
}

// next takes the messages of the next write from the queue. If there are none, the goroutine ends.
func (w *spoolWriter) next() []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxSpooled)
	items := w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	w.running = n > 0
	return items
}

var errPutEnded = errors.New("PutBatch ended its goroutine")

// write writes messages. If PutBatch ends the goroutine, these messages fail, and another goroutine
// writes the later ones.
func (w *spoolWriter) write(items []*item) {
	msgs := make([]*tidegate.Message, len(items))
	for i, it := range items {
		msgs[i] = it.Message
	}
	returned := false
	defer func() {
		if !returned {
			w.start(w.run)
			w.written(items, sameError(len(items), errPutEnded))
		}
	}()
	var errs []error
	err := guard.Error("Options.Spool", w.report, func() error {
		errs = w.spool.PutBatch(context.Background(), msgs) // the end of the callers' ctxs does not interrupt a write
		return nil
	})
	if returned = true; err != nil {
		errs = sameError(len(items), err)
	}
	if len(errs) != len(items) {
		errs = sameError(len(items), fmt.Errorf("the spool returned %d errors for %d messages", len(errs), len(items)))
	}
	w.written(items, errs)
}

func sameError(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
