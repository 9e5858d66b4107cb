package browse

import (
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// A cursor is the direction of the query and the position in each of its queues.
const (
	forward  = 1
	backward = 2
)

func (s *scan) direction() byte {
	if s.query.Newest {
		return backward
	}
	return forward
}

// cursor returns the text of the present position.
func (s *scan) cursor() string {
	b := []byte{s.direction()}
	for _, r := range s.readers {
		at := r.from
		if s.query.Newest {
			at = r.to
		}
		b = binary.AppendUvarint(b, uint64(at))
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// resume moves the readers to the position of the query.
func (s *scan) resume() error {
	if s.query.After == "" {
		return nil
	}
	at, err := parse(s.query.After, s.direction())
	if err != nil || len(at) > len(s.readers) {
		return refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page of this query; give the value next of the previous page, or nothing for the first page", s.query.After)
	}
	for i, offset := range at { // the topic may have further queues meanwhile
		r := s.readers[i]
		if s.query.Newest {
			r.to = max(min(r.to, offset), r.from)
		} else {
			r.from = max(r.from, min(offset, r.to))
		}
	}
	return nil
}

var errCursor = errors.New("it is not a cursor")

func parse(text string, direction byte) (at []int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 2 || b[0] != direction {
		return nil, errCursor
	}
	for b = b[1:]; len(b) > 0; {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > 1<<62 {
			return nil, errCursor
		}
		at, b = append(at, int64(n)), b[size:]
	}
	return at, nil
}
