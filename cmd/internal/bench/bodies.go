package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/size"
)

// leastBody is the smallest body: it has the number of the message.
const leastBody = 16

// Bodies makes the bodies of messages. The zero value is not ready.
type Bodies struct {
	least, most int64
	text        []byte // repeated to the size
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
		return Bodies{int64(len(content)), int64(len(content)), content}, nil
	}
	b := Bodies{text: []byte("abcdefghijklmnopqrstuvwxyz")}
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
	return b, nil
}

func bytesOf(text string) (int64, error) {
	digits, err := size.Digits("bytes", text)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(digits, 10, 32)
}

// Body returns the body of a message, which begins with its number. The same number has the same
// body each time.
func (b Bodies) Body(number int64) []byte {
	n := b.least
	if b.most > b.least {
		n += rand.New(rand.NewPCG(uint64(number), 0)).Int64N(b.most - b.least + 1) //nolint:gosec // a repeatable load needs no secret
	}
	body := make([]byte, n)
	for at := 0; at < len(body); {
		at += copy(body[at:], b.text)
	}
	binary.BigEndian.PutUint64(body, uint64(number)) //nolint:gosec // numbers are not negative
	return body
}

// Number returns the number of a body; false if it is too short to have one.
func Number(body []byte) (int64, bool) {
	if len(body) < 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(body)), true //nolint:gosec // as Body wrote it
}
