package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// enter and leave begin and end the use of the whole screen, without a cursor.
const (
	enter = "\x1b[?1049h\x1b[?25l"
	leave = "\x1b[?25h\x1b[?1049l"
)

const (
	homeCursor = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// is reports whether a stream is a terminal.
func is(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor is a small number
}

// fileOf returns the file behind a stream.
func fileOf(stream any) (*os.File, bool) {
	switch s := stream.(type) {
	case *writer:
		stream = s.to
	case *reader:
		stream = s.from
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// draw writes the lines of a screen over the one before.
func draw(w io.Writer, screen string) error {
	text, rest := output.Lines([]byte(screen))
	screen = string(text) + output.Safe(string(rest))
	return control(w, homeCursor+strings.ReplaceAll(screen, "\n", clearLine+"\r\n")+clearLine+clearBelow)
}

// raw lets a terminal deliver each key at once. restore undoes it.
func raw(in io.Reader) (restore func(), err error) {
	f, ok := fileOf(in)
	if !ok || !is(in) {
		return func() {}, nil
	}
	fd := int(f.Fd()) //nolint:gosec // a descriptor is a small number
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, before) }, nil // nothing is left to do about an error
}

// columns returns the columns of a terminal, 80 if they are not known; 0 for a stream that is none.
func columns(stream any) int {
	if !is(stream) {
		return 0
	}
	w, _ := size(stream)
	return w
}

// size returns the columns and lines of a terminal; 80 and 24 if they are not known.
func size(stream any) (width, height int) {
	if w, h := measure(stream); w > 0 && h > 0 {
		return w, h
	}
	return 80, 24
}

func measure(stream any) (width, height int) {
	f, ok := fileOf(stream)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd())) //nolint:gosec // as above
	if err != nil {
		return 0, 0 // no terminal
	}
	return width, height
}

// keys returns the keys that are pressed until ctx ends. The channel is closed at the end of the
// input. A read of a terminal cannot be ended, so its goroutine ends with the process.
func keys(ctx context.Context, in io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var b [1]byte
		for {
			if n, err := in.Read(b[:]); err != nil || n == 0 {
				return
			}
			select {
			case keys <- b[0]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return keys
}

// A writer is the way of a command to a terminal. Texts of others cannot control the terminal,
// because the Writer escapes the characters of [output.Lines]. Files and pipes get the same text. A
// command writes its own control sequences by [control]. Data that it has to pass on as it is goes
// to [unfiltered]. Several goroutines may use a Writer.
type writer struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character
}

// newWriter returns a Writer. A Writer stays as it is.
func newWriter(to io.Writer) *writer {
	if w, ok := to.(*writer); ok {
		return w
	}
	return &writer{to: to}
}

// Write writes a text. The beginning of a character at its end waits for the next text.
func (w *writer) Write(text []byte) (int, error) {
	if safe := w.safe(text); len(safe) > 0 {
		if _, err := w.to.Write(safe); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// safe returns the text to write now.
func (w *writer) safe(text []byte) []byte {
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
func (w *writer) End() error {
	w.mu.Lock()
	rest := w.rest
	w.rest = nil
	w.mu.Unlock()
	_, err := io.WriteString(w.to, output.Safe(string(rest)))
	return err
}

// control writes a control sequence of the command, for example to clear a line.
func control(w io.Writer, sequence string) error {
	_, err := io.WriteString(unfiltered(w), sequence)
	return err
}

// unfiltered returns the stream behind a Writer, for data that is passed on as it is: by receive
// --raw and --format, and by the programs of users.
func unfiltered(w io.Writer) io.Writer {
	if filtered, ok := w.(*writer); ok {
		return filtered.to
	}
	return w
}

// chunk is the size of the reads of a Reader.
const chunk = 64 << 10

// A reader is a standard input whose reads end with ctx. A read of a terminal or a pipe cannot be
// ended, so a goroutine reads ahead, one chunk at most, and ends with the process. The first Read
// starts it. A Reader is for one goroutine.
type reader struct {
	ctx  context.Context //nolint:containedctx // of the command
	from io.Reader

	start  sync.Once
	chunks chan []byte
	free   chan []byte
	err    error // of from; valid after chunks is closed
	unread []byte
	taken  []byte // the chunk of unread
}

// newReader returns a Reader.
func newReader(ctx context.Context, from io.Reader) *reader {
	return &reader{ctx: ctx, from: from, chunks: make(chan []byte), free: make(chan []byte, 2)}
}

// Read reads, or returns the error of ctx.
func (r *reader) Read(p []byte) (int, error) {
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
func (r *reader) ahead() {
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
