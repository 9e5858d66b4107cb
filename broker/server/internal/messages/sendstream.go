package messages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// maxStreamBatch and maxStreamBytes bound the messages of a stream that are stored at once, and
	// therefore its memory besides one line.
	maxStreamBatch = 64
	maxStreamBytes = 1 << 20
)

// stream stores a message for each line and responds to each with a line, in
// their order, when it is stored. Lines that have arrived by then are stored together.
func (to *sending) stream(w http.ResponseWriter, r *http.Request) (int, any, error) {
	h, out := to.h, web.NewLineWriter(w)
	lines, err := web.NewLineReader(r.Body, 2*h.MaxBody+web.MaxAdminBody, transit.Of(r.Context())) // base64 makes four bytes of three
	if err != nil {
		return 0, nil, err
	}
	// If a connection cannot do both at the same time (HTTP/2 always can), the responses follow the
	// lines.
	_ = out.Control.EnableFullDuplex()
	defer h.endReading(out)()
	if r.Header.Get("Expect") == "" { // the client may wait for our go-ahead before it sends the first line
		if err := out.Open(); err != nil {
			return 0, nil, gone(err)
		}
	}
	for {
		_ = out.Control.SetReadDeadline(time.Now().Add(to.h.IdleTimeout))
		if h.isDraining() {
			return to.endStream(out, closing())
		}
		lines.Retained = 0
		if err := lines.Hold(true); err != nil {
			return to.endStream(out, err)
		}
		batch, end := to.gather(lines)
		if err := lines.Hold(false); err != nil {
			return to.endStream(out, err)
		}
		if err := out.Open(); err != nil { // a client that waits for "100 Continue" has it by now
			return 0, nil, gone(err)
		}
		if len(batch.at) > 0 {
			if err := h.Gate.StillAllowed(r); err != nil {
				return 0, nil, gone(out.End(err))
			}
			results, err := batch.store(r.Context(), to)
			if err == nil {
				err = web.Write(out, results...)
			}
			if err != nil {
				return 0, nil, gone(err)
			}
		}
		if end != nil {
			return to.endStream(out, end)
		}
	}
}

// endReading ends the wait for a line when the server ends. The handler must call stop before it
// returns: net/http panics if a connection is used later.
func (h *Handlers) endReading(out *web.LineWriter) (stop func()) {
	ended := make(chan struct{})
	unregister := context.AfterFunc(h.Life, func() {
		defer close(ended)
		_ = out.Control.SetReadDeadline(time.Now())
	})
	return func() {
		if !unregister() {
			<-ended // it has begun
		}
	}
}

func closing() error { return fmt.Errorf("the broker is closed or closing: %w", tidegate.ErrClosed) }

// endStream reports the reason for the end of a stream, unless the stream is complete.
func (to *sending) endStream(out *web.LineWriter, err error) (int, any, error) {
	switch late := errors.Is(err, os.ErrDeadlineExceeded); {
	case errors.Is(err, io.EOF):
		return 0, nil, nil
	case to.h.isDraining() && (late || errors.Is(err, tidegate.ErrClosed)):
		err = closing()
	case late: // net/http has ended the request's context as well
		err = refusal.New(tidegate.CodeRequestTimeout, "body", fmt.Sprintf("no line arrived for %v", to.h.IdleTimeout))
	case refusal.CodeOf(err) == tidegate.CodeTooManyRequests:
	default:
		return 0, nil, gone(err)
	}
	return 0, nil, gone(out.End(err))
}

// A streamBatch is some lines of a stream. A line that could not be read has an error
// in place of a message.
type streamBatch struct {
	messages []web.Message // of the lines without an error
	at       []int         // numbers of the lines
	errs     []error
}

// gather reads a line and those after it that have arrived already. The error,
// which comes with the last lines, is io.EOF if there will be no more.
func (to *sending) gather(lines *web.LineReader) (b streamBatch, _ error) {
	for size := 0; len(b.at) < maxStreamBatch && size < maxStreamBytes; {
		line, err := lines.Next()
		var m web.Message
		switch {
		case errors.Is(err, web.ErrLineTooLong):
			err = refusal.New(protocol.CodePayloadTooLarge, "line", fmt.Sprintf("the line exceeds the limit of %d bytes", lines.Max))
		case err != nil:
			return b, err
		case len(line) == 0:
			return b, nil // a sign of life
		default:
			err = web.Decode(line, &m)
		}
		if err == nil {
			b.messages = append(b.messages, m)
		}
		b.at, b.errs = append(b.at, lines.Number), append(b.errs, err)
		size += len(line)
		if lines.Retained = size; !lines.Ready() {
			break
		}
	}
	return b, nil
}

// store stores the batch and returns a result for each line.
func (b *streamBatch) store(ctx context.Context, to *sending) ([]SendResult, error) {
	var sent []SendResult
	if len(b.messages) > 0 {
		var err error
		var cut *refusal.Cut
		if sent, _, err = to.all(ctx, b.messages); errors.As(err, &cut) || ctx.Err() != nil {
			return nil, err
		} else if err != nil { // the middleware's answer is each message's
			sent = make([]SendResult, len(b.messages))
			for i := range sent {
				sent[i] = SendResult{ID: b.messages[i].ID, Error: web.ProblemOf(err)}
			}
		}
	}
	results := make([]SendResult, len(b.at))
	for i, err := range b.errs {
		if err != nil {
			results[i].Error = web.ProblemOf(err)
		} else {
			results[i], sent = sent[0], sent[1:]
		}
		results[i].Line = b.at[i]
	}
	return results, nil
}
