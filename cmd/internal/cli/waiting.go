package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/producer"
)

// noteAfter is the time without a result after which a note prints the reason.
const noteAfter = 2 * time.Second

// A note prints the reason of the wait while a send has no result. Several goroutines may use it.
type note struct {
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
func (w *note) Observe(a producer.Attempt) {
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
func (w *note) Down() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// Interrupted calls cut as soon as it is known that no server has a message. Otherwise the sends
// under way may still be stored, and end with their own results.
func (w *note) Interrupted(cut func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	w.decide()
}

// decide calls cut if every attempt so far had no connection. The caller holds mu.
func (w *note) decide() {
	if w.cut != nil && !w.some && w.last.Err != nil {
		w.cut()
	}
}

// Watch prints a note when a message is under way and there is no result for noteAfter, and again
// when the reason changes. progress returns the results so far and the messages under way. Watch
// ends with ctx.
func (w *note) Watch(ctx context.Context, progress func() (results, underWay int64)) {
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

func (w *note) text() string {
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
	text := text(err)
	if i := strings.LastIndex(text, "dial "); i >= 0 && ok && e.NotConnected {
		return text[i:]
	}
	return text
}

const (
	// lookAfter is the time without a response after which a look tries to connect.
	lookAfter = time.Second

	// lookFor bounds each attempt of a look to connect.
	lookFor = time.Second
)

// A waitingLook prints one line if a server that has not responded for a time accepts no
// connection.
type waitingLook struct {
	Out     io.Writer
	Noted   *sync.Once // prints the line; the looks of a command share it
	Address func() string
	Bound   time.Duration // of the request; 0 for none
	Dial    func(ctx context.Context, address string) error
}

// Watch returns the fault of the connection, or nil if ctx ends before it is known, or if the
// server accepts connections. The addresses of a server are separated by semicolons.
func (l *waitingLook) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(lookAfter):
	}
	all := l.Address()
	if all == "" {
		return nil
	}
	var fault error
	for address := range strings.SplitSeq(all, ";") {
		bounded, cancel := context.WithTimeout(ctx, lookFor)
		err := l.Dial(bounded, address)
		cancel()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		fault = err
	}
	bound := ""
	if l.Bound > 0 {
		bound = fmt.Sprintf(" for %v (--timeout)", l.Bound)
	}
	l.Noted.Do(func() {
		fmt.Fprintf(l.Out, "not connected to %s: %s; trying again%s, Ctrl-C ends it\n", output.Safe(all), output.Safe(fault.Error()), bound)
	})
	return fault
}

// dial tries to connect by TCP. It returns nil if a proxy of the environment connects to the
// address instead.
func dial(ctx context.Context, address string) error {
	for _, scheme := range []string{"http", "https"} {
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: address}}); err != nil || proxy != nil {
			return nil //nolint:nilerr // the request has the error of the proxy
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
