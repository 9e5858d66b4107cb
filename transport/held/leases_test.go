package held

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

// one returns a shelf with a delivery whose lease ends after a second.
func one(t *testing.T, now time.Time) (*shelf, *tidegate.Delivery) {
	t.Helper()
	s := newShelf(limits{Messages: 10, Bytes: 1 << 20, Idle: time.Hour, Grace: time.Second, Linger: time.Millisecond}, "h")
	w, _, err := s.Receive(request{key: key{Group: "g", Topic: "t"}, Max: 1, Invisible: time.Second, Wait: time.Minute}, now)
	if err != nil || w == nil {
		t.Fatal("the receive does not wait", err)
	}
	l := s.Take().Open[0]
	s.Opened(l, nil, now)
	s.Deliver(l, &tidegate.Delivery{Message: tidegate.Message{Body: []byte("x")}}, nil, now)
	ds, done, _, err := s.Collect(w, now)
	if err != nil || !done || len(ds) != 1 {
		t.Fatal(ds, done, err)
	}
	return s, ds[0]
}

// The handle of a dead letter is known until the end of the lease, and not at all if the lease had
// ended when the dead letter was made.
func TestDeadLetterIsKnownUntilTheEndOfItsLease(t *testing.T) {
	now := time.Unix(0, 0)
	for after, known := range map[time.Duration]bool{0: true, time.Second - 1: true, time.Second: false, time.Minute: false} {
		s, d := one(t, now)
		m, err := s.Begin(d.Handle, now)
		if err != nil {
			t.Fatal(err)
		}
		s.Finish(m, nil, true, now.Add(after))
		if got := s.Buried(d.Handle); got != known {
			t.Errorf("a dead letter made %v after the begin of a lease of 1 s is known: %t", after, got)
		}
		if known {
			s.Due(now.Add(time.Second))
			if s.Buried(d.Handle) || len(s.handles) != 0 {
				t.Error("it is known after the end of its lease")
			}
		}
	}
}
