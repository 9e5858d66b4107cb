package record

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A LetterClass counts the dead letters of a group in a topic that have one fingerprint.
type LetterClass struct {
	Group       string // its name: dead letters outlive their group
	Fingerprint string // empty for the letters of all classes beyond a limit
	Topic       string // topic of the original sends
	Reason      string // of the latest letter
	Count       int64
	First, Last time.Time // when the first and the last of the letters were stored
	MaxRedrives int       // the largest number of earlier redrives of a letter
}

// AppendTo appends the stored form.
func (c *LetterClass) AppendTo(b []byte) []byte {
	for _, s := range [...]string{c.Group, c.Fingerprint, c.Topic, c.Reason} {
		b = appendString(b, s)
	}
	for _, n := range [...]uint64{uint64(c.Count), uint64(Nanos(c.First)), uint64(Nanos(c.Last)), uint64(c.MaxRedrives)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// DecodeLetterClass reads the stored form.
func DecodeLetterClass(v []byte) (c LetterClass, err error) {
	r := reader{b: v, s: string(v)}
	for _, s := range [...]*string{&c.Group, &c.Fingerprint, &c.Topic, &c.Reason} {
		*s = r.string()
	}
	c.Count = int64(r.uvarint())
	c.First, c.Last = fromNanos(r.uvarint()), fromNanos(r.uvarint())
	c.MaxRedrives = int(r.uvarint())
	if r.err == nil && (r.off != len(v) || c.Count <= 0) {
		r.fail("it has other bytes, or counts no letter")
	}
	if r.err != nil {
		return c, fmt.Errorf("a class of dead letters: %w", r.err)
	}
	return c, nil
}

// AppendClassKey appends the key of a class.
func AppendClassKey(k []byte, topic, class uint32) []byte {
	return AppendGroupTopic(k, PrefixClass, topic, class)
}

// SplitClassKey reads the key of a class; ok is false if it is not one.
func SplitClassKey(k []byte) (topic, class uint32, ok bool) {
	if len(k) != 1+4+4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint32(k[5:]), true
}

// AppendClassOfKey appends the key of the record that has the class of a letter.
func AppendClassOfKey(k []byte, p Place) []byte {
	n := len(k)
	k = AppendMessageKey(k, p)
	k[n] = PrefixClassOf
	return k
}
