// Package terminal draws a screen that changes, and reads single keys.
package terminal

import (
	"context"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Enter and Leave begin and end the use of the whole screen, without a cursor.
const (
	Enter = "\x1b[?1049h\x1b[?25l"
	Leave = "\x1b[?25h\x1b[?1049l"
)

const (
	homeCursor = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// Is reports whether a stream is a terminal.
func Is(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor is a small number
}

// fileOf returns the file behind a stream.
func fileOf(stream any) (*os.File, bool) {
	switch s := stream.(type) {
	case *Writer:
		stream = s.to
	case *Reader:
		stream = s.from
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// Draw writes the lines of a screen over the one before.
func Draw(w io.Writer, screen string) error {
	text, rest := output.Lines([]byte(screen))
	screen = string(text) + output.Safe(string(rest))
	return Control(w, homeCursor+strings.ReplaceAll(screen, "\n", clearLine+"\r\n")+clearLine+clearBelow)
}

// Raw lets a terminal deliver each key at once. restore undoes it.
func Raw(in io.Reader) (restore func(), err error) {
	f, ok := fileOf(in)
	if !ok || !Is(in) {
		return func() {}, nil
	}
	fd := int(f.Fd()) //nolint:gosec // a descriptor is a small number
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, before) }, nil // nothing is left to do about an error
}

// Columns returns the columns of a terminal, 80 if they are not known; 0 for a stream that is none.
func Columns(stream any) int {
	if !Is(stream) {
		return 0
	}
	w, _ := Size(stream)
	return w
}

// Size returns the columns and lines of a terminal; 80 and 24 if they are not known.
func Size(stream any) (width, height int) {
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

// Keys returns the keys that are pressed until ctx ends. The channel is closed at the end of the
// input. A read of a terminal cannot be ended, so its goroutine ends with the process.
func Keys(ctx context.Context, in io.Reader) <-chan byte {
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
