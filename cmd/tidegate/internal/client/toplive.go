package client

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/tidegate/tidegate/cmd/tidegate/internal/view"
)

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// live redraws the screen at each interval and after each key, until q, Ctrl-C or the end of ctx.
func (k *topCommand) live(ctx context.Context, f view.TopFrame) error {
	restore, err := raw(k.In)
	if err != nil {
		return err
	}
	defer restore()
	if _, err := io.WriteString(k.Out, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(k.Out, leaveScreen) }() // the error before it is returned
	keys := keysOf(ctx, k.In)
	s := view.TopScreen{Server: k.client.Endpoint(), Frame: f}
	all := f.Rows
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		s.View = k.TopView
		if rows, err := k.Rows(all); err == nil { // else the pattern is not finished
			s.Frame.Rows = rows
		}
		s.Width, s.Height = sizeOf(k.Out)
		if err := k.draw(&s); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if s.Paused {
				continue
			}
			s.Failed = k.sampled(ctx, &s, &all)
		case key, ok := <-keys:
			if !ok {
				return nil // no more keys, so nobody is there
			}
			topics := k.Topics
			if k.pressed(key, &s) {
				return nil
			}
			if topics != k.Topics {
				s.Failed = k.sampled(ctx, &s, &all)
			}
		}
	}
}

// sampled takes the next sample. After an error the screen keeps the last one.
func (k *topCommand) sampled(ctx context.Context, s *view.TopScreen, all *[]view.TopRow) error {
	f, err := k.look(ctx)
	if err == nil {
		s.Frame, *all = f, f.Rows
	}
	return err
}

// pressed carries out a key. It reports whether top ends.
func (k *topCommand) pressed(key byte, s *view.TopScreen) (quit bool) {
	const ctrlC, escape, backspace, del = 3, 27, 8, 127
	if s.Typing {
		switch {
		case key == '\r' || key == '\n' || key == escape:
			s.Typing = false
		case key == ctrlC:
			return true
		case key == backspace || key == del:
			k.Match = k.Match[:max(0, len(k.Match)-1)]
		case key >= ' ' && key < del:
			k.Match += string(rune(key))
		}
		return false
	}
	switch key {
	case 'q', ctrlC:
		return true
	case 's':
		k.NextOrder()
	case 'r':
		k.Reverse = !k.Reverse
	case 'g':
		k.Topics = !k.Topics
	case 'f':
		s.Typing, k.Match = true, ""
	case 'p':
		s.Paused = !s.Paused
	}
	return false
}

// draw writes the screen over the one before.
func (k *topCommand) draw(s *view.TopScreen) error {
	var b bytes.Buffer
	if err := s.Write(&b, k.options()); err != nil {
		return err
	}
	text := homeCursor + strings.ReplaceAll(b.String(), "\n", clearLine+"\r\n") + clearLine + clearBelow
	_, err := io.WriteString(k.Out, text)
	return err
}

// raw lets a terminal deliver each key at once. restore undoes it.
func raw(in io.Reader) (restore func(), err error) {
	f, ok := in.(*os.File)
	if !ok || !isTerminal(in) {
		return func() {}, nil
	}
	fd := int(f.Fd()) //nolint:gosec // a descriptor is a small number
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, before) }, nil // nothing is left to do about an error
}

// sizeOf returns the columns and lines of a terminal; 80 and 24 if they are not known.
func sizeOf(out io.Writer) (width, height int) {
	if f, ok := out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 { //nolint:gosec // as above
			return w, h
		}
	}
	return 80, 24
}

// keysOf returns the keys that are pressed until ctx ends. The channel is closed at the end of the
// input. A read of a terminal cannot be ended, so its goroutine ends with the process.
func keysOf(ctx context.Context, in io.Reader) <-chan byte {
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
