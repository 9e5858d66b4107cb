package subscription

import (
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

func TestReadAheadSkip(t *testing.T) {
	t.Parallel()
	offsets := []int64{10, 11, 14, 15}
	for _, c := range []struct {
		from  int64
		ok    bool
		first int64
	}{
		{9, false, 0}, // before the messages that were read: there may be others
		{10, true, 10}, {11, true, 11}, {12, true, 14}, {14, true, 14}, {15, true, 15},
		{16, false, 0},
	} {
		a := readAhead{from: 10, messages: make([]store.Message, len(offsets)), offsets: offsets}
		if ok := a.skip(c.from); ok != c.ok || ok && (a.offsets[0] != c.first || len(a.messages) != len(a.offsets)) {
			t.Errorf("skip(%d) = %v, leaves %v", c.from, ok, a.offsets)
		}
	}
}

// The bounds of the messages of a receive are those of store.Read.
func TestReadAheadFirst(t *testing.T) {
	t.Parallel()
	body := func(n int) store.Message { return store.Message{Message: tidegate.Message{Body: make([]byte, n)}} }
	a := readAhead{messages: []store.Message{body(5), body(5), body(0), body(5)}}
	for _, c := range []struct {
		limit    int
		maxBytes int64
		want     int
	}{{9, 100, 4}, {2, 100, 2}, {9, 0, 1}, {9, 5, 1}, {9, 6, 2}, {9, 10, 2}, {9, 11, 4}} {
		if got := a.first(c.limit, c.maxBytes); got != c.want {
			t.Errorf("first(%d, %d) = %d, want %d", c.limit, c.maxBytes, got, c.want)
		}
	}
}
