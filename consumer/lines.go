package consumer

import (
	"sync"

	"github.com/tidegate/tidegate"
)

// lines keep deliveries of a FIFO group in order: those of one message group
// stand in one line, and each waits until the one before it is done.
//
// When one fails, all that stand behind it are passed over and given back to
// the server, which delivers the failed one first. Deliveries that come in
// later are not behind it: the server hands out nothing of a message group
// while an earlier message of it is out, except together with it in one
// receive. They therefore start a line of their own.
type lines struct {
	mu    sync.Mutex // never held while waiting
	heads map[string]*line
}

type line struct{ last *turn }

// A turn is the place of one delivery in its line. The zero value, and nil,
// waits for nobody.
type turn struct {
	key  string
	line *line
	prev *turn         // nil for the first
	done chan struct{} // closed when the delivery is done
	// failed is set before done is closed.
	failed bool
}

// join gives the deliveries of one receive their turns, in their order. A
// delivery without a message group gets nil.
func (l *lines) join(ds []*tidegate.Delivery) []*turn {
	turns := make([]*turn, len(ds))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range ds {
		if d.MessageGroup == "" {
			continue
		}
		ln := l.heads[d.MessageGroup]
		if ln == nil {
			ln = &line{}
			if l.heads == nil {
				l.heads = map[string]*line{}
			}
			l.heads[d.MessageGroup] = ln
		}
		t := &turn{key: d.MessageGroup, line: ln, prev: ln.last, done: make(chan struct{})}
		ln.last = t
		turns[i] = t
	}
	return turns
}

// fail closes t's line for newcomers. It is called before the server is told:
// from then on it may deliver the message again, to the head of a new line.
func (l *lines) fail(t *turn) {
	if t == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.failed = true
	if l.heads[t.key] == t.line {
		delete(l.heads, t.key)
	}
}

// finish lets the next in line go on.
func (l *lines) finish(t *turn) {
	if t == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	close(t.done)
	t.prev = nil // or a long line would keep all that were before
	if l.heads[t.key] == t.line && t.line.last == t {
		delete(l.heads, t.key)
	}
}

// before returns what the turn has to wait for, and nil if for nothing.
func (t *turn) before() <-chan struct{} {
	if t == nil || t.prev == nil {
		return nil
	}
	return t.prev.done
}

// passedOver reports, once before is done, whether the one before failed.
func (t *turn) passedOver() bool { return t != nil && t.prev != nil && t.prev.failed }
