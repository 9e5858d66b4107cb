package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// Marks looks up which messages are dead letters already, for callers that
// ask in the order of group and place: that costs little however many marks or
// questions there are. It is one goroutine's.
type Marks struct {
	it    *pebble.Iterator
	key   []byte
	valid bool
	begun bool
	err   error
}

// Marks returns a reader of the marks of dead letters in their current state. The caller closes it.
func (s *Store) Marks() (*Marks, error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: []byte{record.PrefixDeadLetter}, UpperBound: []byte{record.PrefixDeadLetter + 1}})
	if err != nil {
		return nil, fmt.Errorf("reading the marks of dead letters: %w", err)
	}
	return &Marks{it: it}, nil
}

// Has reports whether the message became a dead letter of the group since the last rewind. Close
// returns read errors.
func (m *Marks) Has(group uint32, p Place, rewound int64) bool {
	m.key = record.AppendLeaseKey(m.key[:0], record.PrefixDeadLetter, group, p)
	if !m.begun || m.valid && bytes.Compare(m.it.Key(), m.key) < 0 {
		m.begun, m.valid = true, m.it.SeekGE(m.key)
	}
	if !m.valid || !bytes.Equal(m.it.Key(), m.key) {
		return false
	}
	v, err := m.it.ValueAndErr()
	if err == nil && len(v) != 8 {
		err = fmt.Errorf("%w: the mark of a dead letter has %d bytes, not 8", record.ErrCorrupt, len(v))
	}
	m.err = errors.Join(m.err, err)
	return err == nil && int64(binary.BigEndian.Uint64(v)) >= rewound
}

// Close ends the use of m, and returns why marks could not be read, if so.
func (m *Marks) Close() error {
	if err := errors.Join(m.err, m.it.Close()); err != nil {
		return fmt.Errorf("reading the marks of dead letters: %w", err)
	}
	return nil
}
