package wire

import (
	"bytes"
	"compress/zlib"
	"crypto/md5"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// ErrTooLong is the error of a body above the limit of [Gunzip].
var ErrTooLong = errors.New("the body exceeds the limit after decompression")

// The writers and readers of gzip are those of klauspost/compress. Its BestSpeed takes a seventh of
// the time of the standard library's default for 1 KiB of JSON, and 2 % more bytes. For bytes that
// do not shrink it takes a twentieth of the time, so no caller needs to know the topics with such
// bodies.
var writers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level exists
	}
	return w
}}

var readers = sync.Pool{New: func() any { return new(gzip.Reader) }}

// Gzip returns body in the format of gzip. The result is longer if body has nothing to compress.
func Gzip(body []byte) []byte {
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

// Gunzip returns a packed body of at most limit bytes. Beyond that the error is ErrTooLong, and no
// more than the limit was unpacked. Other errors are those of a damaged body; a truncated one has
// io.ErrUnexpectedEOF.
func Gunzip(packed []byte, limit int) ([]byte, error) {
	r := readers.Get().(*gzip.Reader)
	defer readers.Put(r)
	if err := r.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	return readAll(r, limit, 4*len(packed))
}

// readAll returns all bytes of r, or ErrTooLong if there are more than limit. It expects about so
// many bytes as guess.
func readAll(r io.Reader, limit, guess int) ([]byte, error) {
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

// decompress returns an unpacked body of at most limit bytes. Producers of RocketMQ 4 use zlib
// under the name GZIP, so the first bytes decide.
func decompress(body []byte, limit int) ([]byte, error) {
	var out []byte
	var err error
	switch {
	case bytes.HasPrefix(body, []byte{0x1f, 0x8b}):
		out, err = Gunzip(body, limit)
	case bytes.HasPrefix(body, []byte{0x78}):
		var r io.ReadCloser
		if r, err = zlib.NewReader(bytes.NewReader(body)); err == nil {
			out, err = readAll(r, limit, 4*len(body))
		}
	default:
		err = errors.New("neither gzip nor zlib")
	}
	switch {
	case errors.Is(err, ErrTooLong):
		return nil, fmt.Errorf("the body exceeds %d bytes after decompression (Options.MaxReceiveSize); raise the limit to receive the message", limit)
	case err != nil:
		return nil, fmt.Errorf("the body cannot be decompressed: %w", err)
	}
	return out, nil
}

// A sum is the digest of a body.
type sum struct {
	room [sha1.Size]byte // the longest of them
	size int             // 0: the kind of digest is not known
}

func sumOf(body []byte, kind rmqpb.DigestType) (s sum) {
	switch kind {
	case rmqpb.DigestType_CRC32:
		binary.BigEndian.PutUint32(s.room[:], crc32.ChecksumIEEE(body))
		s.size = crc32.Size
	case rmqpb.DigestType_MD5:
		m := md5.Sum(body)
		s.size = copy(s.room[:], m[:])
	case rmqpb.DigestType_SHA1:
		s.room, s.size = sha1.Sum(body), sha1.Size
	}
	return s
}

const upperHex = "0123456789ABCDEF"

// appendHex appends the sum in upper-case hexadecimal, the one form of an MD5 on which all of
// RocketMQ's clients agree.
func (s *sum) appendHex(b []byte) []byte {
	for _, c := range s.room[:s.size] {
		b = append(b, upperHex[c>>4], upperHex[c&15])
	}
	return b
}

// equals reports whether text is the sum in hexadecimal. Clients and servers differ in case, and
// some print numbers without leading zeros.
func (s *sum) equals(text string) bool {
	for len(text) > 0 && text[0] == '0' {
		text = text[1:]
	}
	if len(text) > 2*s.size {
		return false
	}
	for i := range 2 * s.size { // from the last digit on
		have := s.room[s.size-1-i/2]
		if i%2 == 1 {
			have >>= 4
		}
		want := upperHex[have&15]
		switch at := len(text) - 1 - i; {
		case at < 0 && want != '0':
			return false
		case at >= 0 && text[at] != want && (want < 'A' || text[at] != want+'a'-'A'):
			return false
		}
	}
	return true
}

// checkDigest compares the body as transported with its digest. A kind of digest that is not known
// proves nothing, and neither does an empty one.
func checkDigest(body []byte, d *rmqpb.Digest) error {
	want := d.GetChecksum()
	if want == "" {
		return nil
	}
	if have := sumOf(body, d.GetType()); have.size > 0 && !have.equals(want) {
		return fmt.Errorf("the checksum of the body is %s %s, but the sender's is %.80q", d.GetType(), have.appendHex(nil), want)
	}
	return nil
}

// MatchesDigest compares the body as transported with its digest. It returns the correct checksum,
// which is empty if the kind of digest is not known. RocketMQ's clients disagree about the form of
// a CRC32 (padded or not, Node decimal), so it accepts all of them.
func MatchesDigest(body []byte, d *rmqpb.Digest) (ok bool, checksum string) {
	have := sumOf(body, d.GetType())
	if have.size == 0 {
		return false, ""
	}
	if d.GetType() == rmqpb.DigestType_CRC32 {
		n, err := strconv.ParseUint(d.GetChecksum(), 10, 32)
		ok = err == nil && n == uint64(binary.BigEndian.Uint32(have.room[:]))
	}
	return ok || have.equals(d.GetChecksum()), string(have.appendHex(nil))
}

// MD5 returns the digest of a body that RocketMQ's Node client requires.
func MD5(body []byte) *rmqpb.Digest {
	s := sumOf(body, rmqpb.DigestType_MD5)
	return &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: string(s.appendHex(nil))}
}

// appendDigest appends the Digest of a body. A CRC32 costs least; it has no leading zeros, as in
// RocketMQ's Go client.
func appendDigest(b []byte, kind rmqpb.DigestType, body []byte) []byte {
	s := sumOf(body, kind)
	var room [2 * sha1.Size]byte
	text := s.appendHex(room[:0])
	for kind == rmqpb.DigestType_CRC32 && len(text) > 1 && text[0] == '0' {
		text = text[1:]
	}
	b = appendTag(b, tagSystemDigest, 2+2+len(text))
	b = appendNumber(b, tagFirstNumber, uint64(kind)) //nolint:gosec // not negative
	return append(appendTag(b, tagSecondText, len(text)), text...)
}
