package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
)

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		from, to int64
		offsets  []int64
		want     string
	}{
		{0, 0, nil, ""},
		{3, 7, nil, "3-7"},
		{3, 7, []int64{1, 2, 7, 9}, "3-7"},
		{3, 7, []int64{3}, "4-7"},
		{3, 7, []int64{6}, "3-6"},
		{3, 7, []int64{3, 4, 5, 6}, ""},
		{0, 10, []int64{0, 2, 3, 9}, "1-2 4-9"},
	} {
		got := ""
		for i, r := range (Range{1, 2, c.from, c.to}).Without(c.offsets) {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%d-%d", r.From, r.To)
			if r.Topic != 1 || r.Queue != 2 {
				t.Errorf("%+v", r)
			}
		}
		if got != c.want {
			t.Errorf("%d-%d without %v is %q, want %q", c.from, c.to, c.offsets, got, c.want)
		}
	}
}

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
			b.PutMessage(Place{1, 2, i}, &Message{Message: tidegate.Message{ID: "x", Body: []byte("12")}, Cumulative: 2 * (i + 1), StoredAt: time.Unix(i, 0)})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		from := rand.Int64N(n)
		to, at := from+rand.Int64N(n-from+1), rand.Int64N(n+1)
		reads := 0
		got, err := s.FirstThat(Range{1, 2, from, to}, func(m Stored) bool { reads++; return m.At.Unix() >= at && m.Cumulative >= 2*at && m.Size == 2 })
		if want := min(max(at, from), to); err != nil || got != want || reads > 22 {
			t.Fatalf("the first of %d-%d at %d: %d, %v, want %d; %d reads", from, to, at, got, err, want, reads)
		}
	}
	// Where messages were taken out, the next one stands for them.
	if err := s.Messages.Add(func(b *Batch) {
		for _, i := range []int64{500, 501, n - 1} {
			b.DeleteMessage(Place{1, 2, i})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]int64{499: 499, 500: 500, 502: 500, 503: 503, n - 1: n - 1} {
		if got, err := s.FirstThat(Range{1, 2, 0, n}, func(m Stored) bool { return m.At.Unix() >= at }); err != nil || got != want {
			t.Errorf("the first at %d: %d, %v, want %d", at, got, err, want)
		}
	}
	if holes, err := s.Holes(Range{1, 2, 400, n}, 2*(n-400)); err != nil || holes != (Removed{Messages: 3, Bytes: 6}) {
		t.Errorf("holes: %+v, %v", holes, err)
	}
	for _, c := range []struct{ from, to, enough, bytes, next int64 }{
		{0, n, 1, 2, 1}, {0, n, 3, 4, 2}, {499, n, 4, 4, 503}, {500, 502, 4, 0, 502}, {498, 504, 100, 8, 504}, {7, 7, 1, 0, 7},
	} {
		if bytes, next, err := s.Live(Range{1, 2, c.from, c.to}, c.enough); err != nil || bytes != c.bytes || next != c.next {
			t.Errorf("%+v: %d bytes to %d, %v", c, bytes, next, err)
		}
	}
}

// What remains of a queue before its beginning is told apart from what is behind it.
func TestQueueBeginning(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte("123")
	for i := range int64(10) {
		s.Messages.Add(func(b *Batch) {
			b.PutMessage(Place{1, 2, i}, &Message{Message: tidegate.Message{ID: "x", Body: body}, Cumulative: 3 * (i + 1), StoredAt: time.Unix(i, 0)})
		}, nil)
	}
	for _, c := range []struct{ from, to int64 }{{0, 4}, {4, 10}} {
		kept := []int64{3, 7}
		if err := s.Messages.Add(func(b *Batch) {
			for _, r := range (Range{1, 2, c.from, c.to}).Without(kept) {
				b.DeleteMessages(r)
			}
			b.PutMark(1, 2, Mark{c.to, 3 * c.to})
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
		if err != nil || q.First != (Mark{c.to, 3 * c.to}) || q.End != (Mark{10, 30}) {
			t.Errorf("%+v, %v", q, err)
		}
		var got []int64
		for o, m := range q.Kept {
			got = append(got, o)
			if m.At.Unix() != o || m.Size != 3 || m.Cumulative != 3*(o+1) {
				t.Errorf("%d: %+v", o, m)
			}
		}
		if slices.Sort(got); !slices.Equal(got, kept[:len(got)]) || len(got) != map[int64]int{4: 1, 10: 2}[c.to] {
			t.Errorf("kept %v", got)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecodeMark(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 7), 9))
	f.Add(slices.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, v []byte) {
		m, err := decodeMark(v)
		if (err == nil) != (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) || m.Offset < 0 || m.Bytes < 0 {
			t.Errorf("%x: %+v, %v", v, m, err)
		}
		_, n, err := decodeWaiting(make([]byte, 5), v)
		if (err == nil) != (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) || err == nil && n != (Waiting{m.Offset, m.Bytes}) {
			t.Errorf("%x: %+v, %v", v, n, err)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	m := Message{Message: tidegate.Message{ID: "id", Body: []byte("body")}, Cumulative: 300, StoredAt: time.Unix(9, 9)}
	f.Add(m.encode(make([]byte, 0, m.size())))
	f.Add([]byte{1})
	f.Add([]byte{1, 2, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, v []byte) {
		got, err := decodeStored(v)
		var whole Message
		if decodeMessage(v, &whole) == nil && (err != nil || got.Cumulative != whole.Cumulative || !got.At.Equal(whole.StoredAt) || got.Size != int64(len(whole.Body))) {
			t.Errorf("%+v, %v, of %+v", got, err, whole)
		}
	})
}
