package spool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// An entry on disk is
//
//	format (1 byte) | length of header (uvarint) | header (JSON) | body
//
// The header is JSON so that a later version can add fields.
const format = 1

// A header is an entry without its body.
type header struct {
	Accepted time.Time        `json:"accepted"`
	Message  tidegate.Message `json:"message"` // without the body

	Reason   string    `json:"reason,omitempty"` // of a rejected entry; empty otherwise
	Rejected time.Time `json:"rejected,omitzero"`
	Corrupt  bool      `json:"corrupt,omitempty"` // the message could not be read; it is empty
}

var errFormat = errors.New("the entry is corrupt, or from a later version")

func encode(h header, body []byte) ([]byte, error) {
	h.Message.Body = nil
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 1, 1+binary.MaxVarintLen64+len(text)+len(body))
	b[0] = format
	b = binary.AppendUvarint(b, uint64(len(text)))
	b = append(b, text...)
	return append(b, body...), nil
}

// decode returns the entry in b. The body shares the memory of b.
func decode(b []byte) (header, error) {
	var h header
	if len(b) == 0 || b[0] != format {
		return h, errFormat
	}
	n, w := binary.Uvarint(b[1:])
	if w <= 0 || n > uint64(len(b)-1-w) {
		return h, errFormat
	}
	text, body := b[1+w:1+w+int(n)], b[1+w+int(n):]
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("%w: %w", errFormat, err)
	}
	h.Message.Body = body
	return h, nil
}

// queueOf returns the name of a message's queue. The messages of a topic and message group share a
// queue, in order. The messages of a topic without a group share another one. Names cannot contain
// a zero byte.
func queueOf(topic, group string) []byte { return []byte(topic + "\x00" + group) }

// grouped reports whether the queue belongs to a message group.
func grouped(queue string) bool { return !strings.HasSuffix(queue, "\x00") }
