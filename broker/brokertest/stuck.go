package brokertest

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
)

// slowHandler is the real time after which a running handler is reported.
const slowHandler = 30 * time.Second

// A handling is one call of a handler.
type handling struct {
	broker, group, topic, id string
	attempt                  int
	began                    time.Time     // by the clock of the test, which is virtual in a bubble
	watched                  time.Duration // real time, in steps of watch.step
}

func (h *handling) String() string {
	return fmt.Sprintf("message %s of topic %s (group %s, attempt %d)", h.id, h.topic, h.group, h.attempt)
}

// A watch reports handlers that run for long in real time. A handler in a bubble that waits for
// something outside of it, such as a mutex or a socket, stops the bubble's clock. No timer of the
// test fires then, and the test ends with the time limit of go test, which names no handler.
//
// Its goroutine runs while there are callers of start, which are outside of all bubbles. begin
// wakes the goroutine, which ends a round of ticks when no handler runs. Without the goroutine, the
// watch only lists the handlers that run.
type watch struct {
	step, limit time.Duration
	out         io.Writer
	wake        chan struct{} // has a signal after the first handler began

	mu      sync.Mutex // guards the following fields
	running map[*handling]struct{}
	users   int           // callers of start that have not called its result
	quit    chan struct{} // closed to end the goroutine of these users
	ended   chan struct{} // closed when it has ended
}

// handlers watches the handlers of all brokers of the program. Its channel is created here, because
// a channel that is created in a bubble cannot be used outside of it.
var handlers = newWatch(time.Second, slowHandler, os.Stderr)

func newWatch(step, limit time.Duration, out io.Writer) *watch {
	return &watch{step: step, limit: limit, out: out, wake: make(chan struct{}, 1), running: map[*handling]struct{}{}}
}

// start starts the goroutine of the watch, unless it runs already. stop ends the goroutine, and
// waits for its end, if no other caller of start needs it.
func (w *watch) start() (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users++; w.users == 1 {
		w.quit, w.ended = make(chan struct{}), make(chan struct{})
		go w.run(w.quit, w.ended)
	}
	return func() {
		w.mu.Lock()
		w.users--
		last, quit, ended := w.users == 0, w.quit, w.ended
		w.mu.Unlock()
		if last {
			close(quit)
			<-ended
		}
	}
}

// run ticks while handlers run, until quit is closed.
func (w *watch) run(quit, ended chan struct{}) {
	defer close(ended)
	for {
		for w.tick() {
			select {
			case <-time.After(w.step):
			case <-quit:
				return
			}
		}
		select {
		case <-w.wake:
		case <-quit:
			return
		}
	}
}

// begin notes the call of a handler. end has to be called after it.
func (w *watch) begin(broker, group string, d *tidegate.Delivery) (end func()) {
	h := &handling{broker: broker, group: group, topic: d.Topic, id: d.ID, attempt: d.Attempt, began: time.Now()}
	w.mu.Lock()
	w.running[h] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // the goroutine sees it anyway
	}
	return func() {
		w.mu.Lock()
		delete(w.running, h)
		w.mu.Unlock()
	}
}

// tick reports the handlers that have reached the limit now. It returns whether handlers run.
func (w *watch) tick() (running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := range w.running {
		if h.watched += w.step; h.watched-w.step < w.limit && h.watched >= w.limit {
			_, _ = fmt.Fprintf(w.out, "brokertest: the handler has not returned for %v of real time: %v\n", w.limit, h)
		}
	}
	return len(w.running) > 0
}

// of returns a text about the running handlers of a broker's group, the longest first. It is empty
// if there are none.
func (w *watch) of(broker, group string) string {
	w.mu.Lock()
	var hs []*handling
	for h := range w.running {
		if h.broker == broker && h.group == group {
			hs = append(hs, h)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(hs, func(a, b *handling) int { return a.began.Compare(b.began) })
	var text strings.Builder
	for i, h := range hs {
		if i == 3 {
			fmt.Fprintf(&text, "; and %d more handlers", len(hs)-i)
			break
		}
		fmt.Fprintf(&text, "; the handler has not returned for %v: %v", time.Since(h.began), h)
	}
	return text.String()
}
