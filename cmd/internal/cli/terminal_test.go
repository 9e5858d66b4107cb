package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/tidegate/tidegate/internal/assert"
)

// The output does not depend on the places at which a text is divided. The way around the filter
// is the stream itself.
func TestWriter(t *testing.T) {
	const text = "Łódź \x1b[2J\u009b注文\u202e\r\n\rx\xff\x9b\xe2\x80"
	const want = `Łódź \x1b[2J\u009b注文\u202e` + "\r\n" + `\x0dx\xff\x9b\xe2\x80`
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := newWriter(&out)
		for i := 0; i < len(text); i += size {
			part := []byte(text[i:min(i+size, len(text))])
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
			clear(part) // it belongs to the caller
		}
		assert.That(t, utf8.Valid(out.Bytes()), "in parts of %d bytes %q", size, out.String())
		if err := w.End(); err != nil || out.String() != want {
			t.Errorf("in parts of %d bytes %q, %v; want %q", size, out.String(), err, want)
		}
		out.Reset()
		if err := control(newWriter(w), enter); err != nil || out.String() != enter || unfiltered(w) != &out || unfiltered(&out) != &out {
			t.Errorf("a control sequence is %q, %v", out.String(), err)
		}
	}
	assert.Is(t, "the error is", assert.Err(newWriter(&failing{}).Write([]byte("x"))), os.ErrClosed)
	var out bytes.Buffer
	if err := draw(newWriter(&out), "a\x1b[31m\nb\r"); err != nil || out.String() != homeCursor+`a\x1b[31m`+clearLine+"\r\nb\\x0d"+clearLine+clearBelow {
		t.Errorf("the screen is %q, %v", out.String(), err)
	}
}

type failing struct{}

func (*failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

// A Reader returns the bytes and the error of its input.
func TestReader(t *testing.T) {
	text := strings.Repeat("0123456789", 30_000)
	broken := errors.New("broken")
	for name, in := range map[string]io.Reader{
		"at once": strings.NewReader(text), "in bytes": iotest.OneByteReader(strings.NewReader(text)), "end with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		if got, err := io.ReadAll(newReader(t.Context(), in)); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	assert.NoError(t, iotest.TestReader(newReader(t.Context(), strings.NewReader("abc")), []byte("abc")))
	if got, err := io.ReadAll(newReader(t.Context(), io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)))); !errors.Is(err, broken) || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
}

// A read that waits ends with ctx. The bytes before it are there.
func TestReaderEndsWithItsContext(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r := newReader(ctx, in)
	go func() {
		_, _ = out.Write([]byte("abc"))
		cancel()
	}()
	assert.Is(t, "the error is", assert.Err(io.ReadAll(r)), context.Canceled)
	assert.Is(t, "the error of a later read is", assert.Err(r.Read(make([]byte, 1))), context.Canceled)
}
