package server

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidegate/tidegate/broker/server/internal/transit"
)

// A LineReader returns the lines of a text, in any pieces, except those that are too long.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n", "a\nb", "a\r\n\n\nb\n", strings.Repeat("x", 21) + "\ny", strings.Repeat("x", 20) + "\r\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
			var got, want []string
			for line := range strings.Lines(text) {
				if line = strings.TrimRight(line, "\r\n"); len(line) > 20 {
					line = "too long"
				}
				want = append(want, line)
			}
			l := newLines(t, r, 20)
			for {
				line, err := l.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, errLineTooLong) {
					line, err = []byte("too long"), nil
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(line))
			}
			if !slices.Equal(got, want) || l.Number != len(want) {
				t.Errorf("%q: lines %q, want %q", text, got, want)
			}
		}
		l := newLines(t, io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), 20)
		n := 0
		for {
			if _, err := l.Next(); errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			n++
		}
		if n != strings.Count(text, "\n") {
			t.Errorf("%q, cut off there, has %d lines", text, n)
		}
	})
}

// A long line costs no more than its limit.
func TestLongLine(t *testing.T) {
	l := newLines(t, io.MultiReader(io.LimitReader(endless{}, 100<<20), strings.NewReader("\nb")), 1<<10)
	if _, err := l.Next(); !errors.Is(err, errLineTooLong) || cap(l.buf) > 1<<20 {
		t.Errorf("%v, %d bytes kept", err, cap(l.buf))
	}
	if line, err := l.Next(); err != nil || string(line) != "b" {
		t.Errorf("%q, %v", line, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func newLines(t *testing.T, r io.Reader, limit int) *lineReader {
	t.Helper()
	l, err := newLineReader(r, limit, transit.Of(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
