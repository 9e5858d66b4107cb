package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/declare"
)

// leastBody is the smallest body: it has the number of the message, the number of the run, and a
// checksum of the body.
const leastBody = 16

// Bodies makes the bodies of messages. The zero value is not ready.
type Bodies struct {
	least, most int64
	plain       []byte // the longest body, without a number
	Run         uint32 // distinguishes the messages of this run from others
}

// ParseBodies reads a size (1KiB), an interval of sizes (uniform:100-4096), or the name of a file
// whose content is the body (file:PATH).
func ParseBodies(text string) (Bodies, error) {
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		content, err := os.ReadFile(path)
		if err == nil && len(content) < leastBody {
			err = fmt.Errorf("the file has %d bytes", len(content))
		}
		if err != nil {
			return Bodies{}, fmt.Errorf("--size %s: %w; a body has at least %d bytes", text, err, leastBody)
		}
		return Bodies{least: int64(len(content)), most: int64(len(content)), plain: content}, nil
	}
	var b Bodies
	least, most := text, text
	if interval, ok := strings.CutPrefix(text, "uniform:"); ok {
		if least, most, ok = strings.Cut(interval, "-"); !ok {
			return Bodies{}, fmt.Errorf("--size is %s; an interval is uniform:MIN-MAX, for example uniform:100-4096", text)
		}
	}
	var err error
	if b.least, err = bytesOf(least); err == nil {
		b.most, err = bytesOf(most)
	}
	switch {
	case err != nil:
		return Bodies{}, fmt.Errorf("--size is %s: %w", text, err)
	case b.least < leastBody || b.most < b.least:
		return Bodies{}, fmt.Errorf("--size is %s; a body has at least %d bytes, and MAX is not below MIN", text, leastBody)
	}
	b.plain = bytes.Repeat([]byte("abcdefghijklmnopqrstuvwxyz"), int(b.most/26)+1)
	return b, nil
}

func bytesOf(text string) (int64, error) {
	digits, err := declare.Digits("bytes", text)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(digits, 10, 32)
}

// Body returns the body of a message, which begins with its number. The same number has the same
// body each time.
func (b Bodies) Body(number int64) []byte {
	body := bytes.Clone(b.Plain(number))
	binary.BigEndian.PutUint64(body, uint64(number)) //nolint:gosec // numbers are not negative
	binary.BigEndian.PutUint32(body[8:], b.Run)
	binary.BigEndian.PutUint32(body[12:], checksum(body))
	return body
}

// Plain returns a body of the size of Body without a number. All messages share its memory, so the
// caller must not change it. It costs no allocation.
func (b Bodies) Plain(number int64) []byte {
	n := b.least
	if b.most > b.least {
		n += rand.New(rand.NewPCG(uint64(number), 0)).Int64N(b.most - b.least + 1) //nolint:gosec // a repeatable load needs no secret
	}
	return b.plain[:n:n]
}

// checksum is that of a body without the place of the checksum.
func checksum(body []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(body[:12]), crc32.IEEETable, body[16:])
}

// Number returns the number of a body; false if the body is not of this run, or damaged.
func (b Bodies) Number(body []byte) (int64, bool) {
	if len(body) < leastBody || binary.BigEndian.Uint32(body[8:]) != b.Run || binary.BigEndian.Uint32(body[12:]) != checksum(body) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(body)), true //nolint:gosec // as Body wrote it
}
