package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

// A reader returns the stored messages, for any order of the places, and nothing for a message that
// was removed or never stored.
func TestReader(t *testing.T) {
	const queues, messages = 3, 40
	for _, flushed := range []bool{false, true} {
		s := openInMemory(t, 0)
		rnd := rand.New(rand.NewPCG(11, 7))
		body := func(p Place) []byte {
			return bytes.Repeat([]byte{byte(p.Queue), byte(p.Offset)}, 1+1000*int(p.Offset)) // more than the tail has in all
		}
		var places []Place
		removed := map[Place]bool{}
		for queue := range uint16(queues) {
			for offset := range int64(messages) {
				p := Place{Topic: 1, Queue: queue, Offset: offset}
				places = append(places, p)
				commit(t, s, func(b *Batch) {
					b.PutMessage(p, &Message{Message: tidegate.Message{ID: fmt.Sprint(queue, offset), Body: body(p)}, StoredAt: time.Unix(1, 0)})
				})
			}
			places = append(places, Place{Topic: 1, Queue: queue, Offset: messages})
			removed[places[len(places)-1]] = true // never there
		}
		for range 10 {
			p := places[rnd.IntN(len(places))]
			removed[p] = true
			commit(t, s, func(b *Batch) { b.DeleteMessage(p) })
		}
		if flushed {
			if err := s.messages.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			r := s.Reader(1)
			for _, p := range places {
				m, ok, err := r.Get(p)
				if err != nil || ok == removed[p] {
					t.Fatalf("%+v: found %v, removed %v: %v", p, ok, removed[p], err)
				}
				if ok && (m.ID != fmt.Sprint(p.Queue, p.Offset) || !bytes.Equal(m.Body, body(p))) {
					t.Fatalf("%+v is message %q with %d bytes", p, m.ID, len(m.Body))
				}
			}
			r.Close()
			rnd.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
		}
	}
}

// Damage at one message is reported for that message only.
func TestReaderReportsDamage(t *testing.T) {
	s := openInMemory(t, 0)
	place := func(offset int64) Place { return Place{Topic: 1, Offset: offset} }
	for offset := range int64(3) {
		commit(t, s, func(b *Batch) {
			b.PutMessage(place(offset), &Message{Message: tidegate.Message{ID: fmt.Sprint(offset)}, StoredAt: time.Unix(1, 0)})
		})
	}
	s.tail.mu.Lock()
	s.tail.clear()
	s.tail.mu.Unlock()
	if err := s.messages.Set(appendMessageKey(nil, place(1)), []byte{0xff}, nil); err != nil {
		t.Fatal(err)
	}
	r := s.Reader(1)
	defer r.Close()
	for offset := range int64(3) {
		if m, ok, err := r.Get(place(offset)); IsDamage(err) != (offset == 1) || ok == (offset == 1) || ok && m.ID != fmt.Sprint(offset) {
			t.Errorf("offset %d: %q, %v, %v", offset, m.ID, ok, err)
		}
	}
}
