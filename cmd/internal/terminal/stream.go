package terminal

import (
	"context"
	"io"
	"sync"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A Writer is the way of a command to a terminal. Texts of others cannot control the terminal,
// because the Writer escapes the characters of [output.Lines]. Files and pipes get the same text. A
// command writes its own control sequences by [Control]. Data that it has to pass on as it is goes
// to [Unfiltered]. Several goroutines may use a Writer.
type Writer struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character
}

// NewWriter returns a Writer. A Writer stays as it is.
func NewWriter(to io.Writer) *Writer {
	if w, ok := to.(*Writer); ok {
		return w
	}
	return &Writer{to: to}
}

// Write writes a text. The beginning of a character at its end waits for the next text.
func (w *Writer) Write(text []byte) (int, error) {
	if safe := w.safe(text); len(safe) > 0 {
		if _, err := w.to.Write(safe); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// safe returns the text to write now.
func (w *Writer) safe(text []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		text = append(w.rest, text...)
		w.rest = nil
	}
	safe, rest := output.Lines(text)
	w.rest = append(w.rest, rest...) // a copy: text belongs to the caller
	return safe
}

// End writes the beginning of a character that waits.
func (w *Writer) End() error {
	w.mu.Lock()
	rest := w.rest
	w.rest = nil
	w.mu.Unlock()
	_, err := io.WriteString(w.to, output.Safe(string(rest)))
	return err
}

// Control writes a control sequence of the command, for example to clear a line.
func Control(w io.Writer, sequence string) error {
	_, err := io.WriteString(Unfiltered(w), sequence)
	return err
}

// Unfiltered returns the stream behind a Writer, for data that is passed on as it is: by receive
// --raw and --format, and by the programs of users.
func Unfiltered(w io.Writer) io.Writer {
	if filtered, ok := w.(*Writer); ok {
		return filtered.to
	}
	return w
}

// chunk is the size of the reads of a Reader.
const chunk = 64 << 10

// A Reader is a standard input whose reads end with ctx. A read of a terminal or a pipe cannot be
// ended, so a goroutine reads ahead, one chunk at most, and ends with the process. The first Read
// starts it. A Reader is for one goroutine.
type Reader struct {
	ctx  context.Context //nolint:containedctx // of the command
	from io.Reader

	start  sync.Once
	chunks chan []byte
	free   chan []byte
	err    error // of from; valid after chunks is closed
	unread []byte
	taken  []byte // the chunk of unread
}

// NewReader returns a Reader.
func NewReader(ctx context.Context, from io.Reader) *Reader {
	return &Reader{ctx: ctx, from: from, chunks: make(chan []byte), free: make(chan []byte, 2)}
}

// Read reads, or returns the error of ctx.
func (r *Reader) Read(p []byte) (int, error) {
	r.start.Do(func() {
		r.free <- make([]byte, chunk)
		r.free <- make([]byte, chunk)
		go r.ahead()
	})
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.unread) == 0 && len(p) > 0 {
		if r.taken != nil {
			r.free <- r.taken[:chunk]
			r.taken = nil
		}
		select {
		case next, ok := <-r.chunks:
			if !ok {
				return 0, r.err
			}
			r.unread, r.taken = next, next
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// ahead reads chunks until the end of the input or of ctx.
func (r *Reader) ahead() {
	defer close(r.chunks)
	for r.err == nil {
		var b []byte
		select {
		case b = <-r.free:
		case <-r.ctx.Done():
			return
		}
		var n int
		n, r.err = r.from.Read(b)
		if n == 0 {
			r.free <- b
			continue
		}
		select {
		case r.chunks <- b[:n]:
		case <-r.ctx.Done():
			return
		}
	}
}
