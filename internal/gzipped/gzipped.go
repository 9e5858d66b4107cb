// Package gzipped packs and unpacks bodies in the format of gzip, with writers and readers that are
// used again.
//
// They are those of klauspost/compress. Its BestSpeed takes a seventh of the time of the standard
// library's default for 1 KiB of JSON, and 2 % more bytes. For bytes that do not shrink it takes a
// twentieth of the time, so no caller needs to know the topics with such bodies.
package gzipped

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// ErrTooLong is the error of a body above the limit of [Unpack].
var ErrTooLong = errors.New("the body exceeds the limit after decompression")

var writers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level exists
	}
	return w
}}

var readers = sync.Pool{New: func() any { return new(gzip.Reader) }}

// Pack returns body in the format of gzip. The result is longer if body has nothing to compress.
func Pack(body []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(body)/2 + 64)
	w := writers.Get().(*gzip.Writer)
	defer writers.Put(w)
	w.Reset(&b)
	// A bytes.Buffer takes everything.
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// Unpack returns a packed body of at most limit bytes. Beyond that the error is ErrTooLong, and no
// more than the limit was unpacked. Other errors are those of a damaged body; a truncated one has
// io.ErrUnexpectedEOF.
func Unpack(packed []byte, limit int) ([]byte, error) {
	r := readers.Get().(*gzip.Reader)
	defer readers.Put(r)
	if err := r.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	return ReadAll(r, limit, 4*len(packed))
}

// ReadAll returns all bytes of r, or ErrTooLong if there are more than limit. It expects about so
// many bytes as guess.
func ReadAll(r io.Reader, limit, guess int) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(max(0, min(limit, guess)))
	n, err := b.ReadFrom(io.LimitReader(r, max(int64(limit), int64(limit)+1))) // the sum may overflow
	switch {
	case n > int64(limit):
		return nil, ErrTooLong
	case err != nil:
		return nil, err
	}
	return b.Bytes(), nil
}
