package store

import (
	"testing"
	"testing/synctest"
	"time"
)

// A caller that waits for space in the log continues at the moment at which a batch is on disk.
func TestRoomIsWokenByACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := openDir("", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := s.Messages
		l.held.Add(s.maxHeld)
		done := make(chan error)
		go func() { done <- l.Room(t.Context(), 1, nil) }()
		<-time.After(roomLook + roomLook/2) // between two of its own looks
		begin := time.Now()
		m := sampleMessage()
		l.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1}, &m) }, func(error) { l.held.Add(-s.maxHeld) })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it waited %v after the commit", waited)
		}
		l.Release(1)
	})
}
