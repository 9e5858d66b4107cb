// Package waiting informs a user why a send or a request has no result yet.
package waiting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/producer"
)

// noteAfter is the time without a result after which a note prints the reason.
const noteAfter = 2 * time.Second

// A Note prints the reason of the wait while a send has no result. Several goroutines may use it.
type Note struct {
	Out     io.Writer
	Address string        // of the server
	Bound   time.Duration // of each message

	mu   sync.Mutex
	last producer.Attempt // the last failed one
	some bool             // an attempt was answered, also with an error
	down bool             // the last attempt failed, and not because of its message
	cut  func()           // ends all sends; set after Ctrl-C
}

// Observe is the OnAttempt of the producer.
func (w *Note) Observe(a producer.Attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Err != nil {
		w.last = a
	}
	w.down = a.Err != nil && !tidegate.IsMessageFault(a.Err)
	if e, ok := errors.AsType[*tidegate.Error](a.Err); a.Err == nil || !ok || !e.NotConnected {
		w.some = true
	}
	w.decide()
}

// Down reports whether the last attempt failed because of the server or the connection.
func (w *Note) Down() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// Interrupted calls cut as soon as it is known that no server has a message. Otherwise the sends
// under way may still be stored, and end with their own results.
func (w *Note) Interrupted(cut func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	w.decide()
}

// decide calls cut if every attempt so far had no connection. The caller holds mu.
func (w *Note) decide() {
	if w.cut != nil && !w.some && w.last.Err != nil {
		w.cut()
	}
}

// Watch prints a note when a message is under way and there is no result for noteAfter, and again
// when the reason changes. progress returns the results so far and the messages under way. Watch
// ends with ctx.
func (w *Note) Watch(ctx context.Context, progress func() (results, underWay int64)) {
	printed, seen := "", int64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(noteAfter):
		}
		if n, underWay := progress(); n != seen || underWay == 0 {
			printed, seen = "", n
			continue
		}
		if text := w.text(); text != printed {
			fmt.Fprintln(w.Out, text)
			printed = text
		}
	}
}

func (w *Note) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	reason := "no response yet"
	switch {
	case errors.Is(w.last.Err, tidegate.ErrThrottled):
		reason = "the server throttles"
	case w.last.Err != nil:
		reason = output.Safe(reasonOf(w.last.Err))
	}
	end := "Ctrl-C ends it after the messages under way"
	if !w.some {
		end = "Ctrl-C ends it"
	}
	return fmt.Sprintf("waiting for %s: %s; each message is tried for %v (--ack-timeout), %s", output.Safe(w.Address), reason, w.Bound, end)
}

// reasonOf is the text of an attempt's error without the operation and the address, or the fault of
// a connection alone, which is the same for all attempts.
func reasonOf(err error) string {
	e, ok := errors.AsType[*tidegate.Error](err)
	switch {
	case !ok:
	case e.Err != nil && e.Message != "":
		err = fmt.Errorf("%s: %w", e.Message, e.Err)
	case e.Err != nil:
		err = e.Err
	default:
		return e.Message
	}
	text := command.Text(err)
	if i := strings.LastIndex(text, "dial "); i >= 0 && ok && e.NotConnected {
		return text[i:]
	}
	return text
}
