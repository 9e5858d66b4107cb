package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// A LetterClass counts the dead letters of a group in a topic that have one fingerprint.
type LetterClass = record.LetterClass

// PutClass writes a class of dead letters. The number identifies the class in its topic.
func (b *Batch) PutClass(topic, class uint32, c *LetterClass) {
	must(b.pebble().Set(record.AppendClassKey(nil, topic, class), c.AppendTo(nil), nil))
}

// DeleteClass removes a class that has no letters any more.
func (b *Batch) DeleteClass(topic, class uint32) {
	must(b.pebble().Delete(record.AppendClassKey(nil, topic, class), nil))
}

// PutClassOf writes the class of a dead letter.
func (b *Batch) PutClassOf(p Place, class uint32) {
	must(b.pebble().Set(record.AppendClassOfKey(nil, p), binary.BigEndian.AppendUint32(nil, class), nil))
}

// DeleteClassesOf removes the records of PutClassOf for messages that are removed.
func (b *Batch) DeleteClassesOf(r Range) {
	from, to := classRange(r)
	if r.To == r.From+1 {
		must(b.pebble().Delete(from, nil))
		return
	}
	must(b.pebble().DeleteRange(from, to, nil))
}

func classRange(r Range) (from, to []byte) {
	return record.AppendClassOfKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.From}),
		record.AppendClassOfKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.To})
}

// Classes calls f with every class of dead letters.
func (s *Store) Classes(f func(topic, class uint32, c *LetterClass) error) error {
	return scan(s.messages, record.PrefixClass, func(k, v []byte) error {
		topic, class, ok := record.SplitClassKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a class of dead letters", record.ErrCorrupt)
		}
		c, err := record.DecodeLetterClass(v)
		if err != nil {
			return err
		}
		return f(topic, class, &c)
	})
}

// ClassesOf calls f with the class of each dead letter in a range, in the order of the offsets. It
// reads the committed state, and no message.
func (s *Store) ClassesOf(r Range, f func(offset int64, class uint32)) error {
	from, to := classRange(r)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("reading the classes of dead letters: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil && len(v) != 4 {
			err = fmt.Errorf("%w: the class of a dead letter has %d bytes, not 4", record.ErrCorrupt, len(v))
		}
		if err != nil {
			return fmt.Errorf("reading the classes of dead letters: %w", err)
		}
		f(record.MessageOffset(it.Key()), binary.BigEndian.Uint32(v))
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("reading the classes of dead letters: %w", err)
	}
	return nil
}
