package gzipped

import (
	"bytes"
	stdgzip "compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"
)

// orders returns n bytes of JSON.
func orders(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, `{"order":%d,"customer":"c-%d","amount":%d.%02d,"currency":"EUR","note":"%x"},`,
			r.IntN(1e9), r.IntN(1e5), r.IntN(1e4), r.IntN(100), r.Uint32())
	}
	return b.Bytes()[:n]
}

func random(n int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// The standard library reads the output of Pack, and Unpack reads the output of the standard
// library.
func TestStandardLibraryAgrees(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1 << 10, 70_000, 1 << 20} {
		for name, body := range map[string][]byte{"orders": orders(n), "random": random(n)} {
			r, err := stdgzip.NewReader(bytes.NewReader(Pack(body)))
			if err != nil {
				t.Fatalf("%d bytes of %s: %v", n, name, err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %s: the standard library reads %d bytes: %v", n, name, len(got), err)
			}
			var b bytes.Buffer
			w := stdgzip.NewWriter(&b)
			if _, err := w.Write(body); err != nil || w.Close() != nil {
				t.Fatal(err)
			}
			if got, err := Unpack(b.Bytes(), n); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %s: Unpack reads %d bytes of the standard library's: %v", n, name, len(got), err)
			}
		}
	}
}

func TestPackShrinksText(t *testing.T) {
	if body := orders(1 << 10); len(Pack(body)) > len(body)*2/5 {
		t.Errorf("1 KiB of orders has %d bytes", len(Pack(body)))
	}
}

func TestUnpackRejects(t *testing.T) {
	packed := Pack(orders(10_000))
	bomb := Pack(make([]byte, 64<<20))
	broken := bytes.Clone(packed)
	broken[len(broken)-6] ^= 1 // in the checksum
	for _, c := range []struct {
		name   string
		packed []byte
		limit  int
		want   error // nil for any
	}{
		{"a byte above the limit", packed, 9_999, ErrTooLong},
		{"a bomb", bomb, 1 << 20, ErrTooLong},
		{"a truncated body", packed[:len(packed)/2], 1 << 20, io.ErrUnexpectedEOF},
		{"a truncated trailer", packed[:len(packed)-1], 1 << 20, io.ErrUnexpectedEOF},
		{"a wrong checksum", broken, 1 << 20, nil},
		{"no gzip", []byte("plain text"), 1 << 20, nil},
		{"nothing", nil, 1 << 20, nil},
	} {
		body, err := Unpack(c.packed, c.limit)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || body != nil {
			t.Errorf("%s: %d bytes, %v; want no bytes and the error %v", c.name, len(body), err, c.want)
		}
	}
	// A reader that failed reads the next body.
	if body, err := Unpack(packed, math.MaxInt); err != nil || !bytes.Equal(body, orders(10_000)) {
		t.Errorf("after the refusals: %d bytes, %v", len(body), err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(Pack([]byte("a body")), 100)
	f.Add(Pack(nil), 0)
	f.Fuzz(func(t *testing.T, packed []byte, limit int) {
		limit &= 1<<16 - 1
		got, err := Unpack(packed, limit)
		if len(got) > limit {
			t.Fatalf("%d bytes with the limit %d", len(got), limit)
		}
		r, stdErr := stdgzip.NewReader(bytes.NewReader(packed))
		var want []byte
		if stdErr == nil {
			want, stdErr = io.ReadAll(io.LimitReader(r, int64(limit)+1))
		}
		if len(want) > limit {
			stdErr = ErrTooLong
		}
		if (err == nil) != (stdErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v; the standard library: %d bytes, %v", len(got), err, len(want), stdErr)
		}
	})
}

// BenchmarkPack compares Pack with the standard library's default.
func BenchmarkPack(b *testing.B) {
	for name, body := range map[string][]byte{"orders": orders(1 << 10), "random": random(1 << 10)} {
		b.Run(name+"/ours", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				Pack(body)
			}
		})
		b.Run(name+"/standard", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			var out bytes.Buffer
			w := stdgzip.NewWriter(nil)
			for b.Loop() {
				out.Reset()
				w.Reset(&out)
				_, _ = w.Write(body)
				_ = w.Close()
			}
		})
	}
}
