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
