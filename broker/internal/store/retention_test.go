package store

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
)

// FirstThat agrees with a look at every message, and reads few.
func TestFirstThat(t *testing.T) {
	s, err := openDir("data", vfs.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 1000
	if err := s.Messages.Add(func(b *Batch) {
		for i := range int64(n) {
			b.PutMessage(Place{Topic: 1, Queue: 2, Offset: i}, &Message{Message: tidegate.Message{ID: "x", Body: []byte("12")}, Cumulative: 2 * (i + 1), StoredAt: time.Unix(i, 0)})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		from := rand.Int64N(n)
		to, at := from+rand.Int64N(n-from+1), rand.Int64N(n+1)
		reads := 0
		got, err := s.FirstThat(Range{Topic: 1, Queue: 2, From: from, To: to}, func(m Stored) bool { reads++; return m.At.Unix() >= at && m.Cumulative >= 2*at && m.Size == 2 })
		if want := min(max(at, from), to); err != nil || got != want || reads > 22 {
			t.Fatalf("the first of %d-%d at %d: %d, %v, want %d; %d reads", from, to, at, got, err, want, reads)
		}
	}
	// The message after removed ones has their sums.
	if err := s.Messages.Add(func(b *Batch) {
		for _, i := range []int64{500, 501, n - 1} {
			b.DeleteMessage(Place{Topic: 1, Queue: 2, Offset: i})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]int64{499: 499, 500: 500, 502: 500, 503: 503, n - 1: n - 1} {
		if got, err := s.FirstThat(Range{Topic: 1, Queue: 2, From: 0, To: n}, func(m Stored) bool { return m.At.Unix() >= at }); err != nil || got != want {
			t.Errorf("the first at %d: %d, %v, want %d", at, got, err, want)
		}
	}
	if gaps, err := s.Gaps(Range{Topic: 1, Queue: 2, From: 400, To: n}, 2*(n-400)); err != nil || gaps != (Removed{Messages: 3, Bytes: 6}) {
		t.Errorf("gaps: %+v, %v", gaps, err)
	}
	for _, c := range []struct{ from, to, enough, bytes, next int64 }{
		{0, n, 1, 2, 1}, {0, n, 3, 4, 2}, {499, n, 4, 4, 503}, {500, 502, 4, 0, 502}, {498, 504, 100, 8, 504}, {7, 7, 1, 0, 7},
	} {
		if bytes, next, err := s.Live(Range{Topic: 1, Queue: 2, From: c.from, To: c.to}, c.enough); err != nil || bytes != c.bytes || next != c.next {
			t.Errorf("%+v: %d bytes to %d, %v", c, bytes, next, err)
		}
	}
}

// The messages that remain before the beginning of a queue are separate from those after it.
func TestQueueBeginning(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte("123")
	for i := range int64(10) {
		s.Messages.Add(func(b *Batch) {
			b.PutMessage(Place{Topic: 1, Queue: 2, Offset: i}, &Message{Message: tidegate.Message{ID: "x", Body: body}, Cumulative: 3 * (i + 1), StoredAt: time.Unix(i, 0)})
		}, nil)
	}
	for _, c := range []struct{ from, to int64 }{{0, 4}, {4, 10}} {
		leftovers := []int64{3, 7}
		if err := s.Messages.Add(func(b *Batch) {
			for _, r := range (Range{Topic: 1, Queue: 2, From: c.from, To: c.to}).Without(leftovers) {
				b.DeleteMessages(r)
			}
			b.PutMark(1, 2, Mark{Offset: c.to, Bytes: 3 * c.to})
		}, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = openDir("data", fs); err != nil {
			t.Fatal(err)
		}
		q, err := s.Queue(1, 2)
		if err != nil || q.First != (Mark{Offset: c.to, Bytes: 3 * c.to}) || q.End != (Mark{Offset: 10, Bytes: 30}) {
			t.Errorf("%+v, %v", q, err)
		}
		var got []int64
		for o, m := range q.Leftovers {
			got = append(got, o)
			if m.At.Unix() != o || m.Size != 3 || m.Cumulative != 3*(o+1) {
				t.Errorf("%d: %+v", o, m)
			}
		}
		if slices.Sort(got); !slices.Equal(got, leftovers[:len(got)]) || len(got) != map[int64]int{4: 1, 10: 2}[c.to] {
			t.Errorf("kept %v", got)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
