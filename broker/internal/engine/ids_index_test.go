package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

func TestRun(t *testing.T) {
	const window = 100
	type message struct{ offset, at int64 }
	for name, c := range map[string]struct {
		messages []message
		written  [][]uint64 // records written because of Over; hashes are the offsets
		left     []uint64
		first    int64 // offset of the first message that is left
	}{
		"one after another":             {[]message{{5, 0}, {6, 50}, {7, 99}}, nil, []uint64{5, 6, 7}, 5},
		"as old as the window":          {[]message{{5, 0}, {6, 50}, {7, 100}, {8, 101}}, [][]uint64{{5, 6}}, []uint64{7, 8}, 7},
		"the window is over each time":  {[]message{{5, 0}, {6, 100}, {7, 200}}, [][]uint64{{5}, {6}}, []uint64{7}, 7},
		"others in between":             {[]message{{5, 0}, {6, 1}, {9, 2}, {10, 3}}, nil, []uint64{9, 10}, 9},
		"others in between, much later": {[]message{{5, 0}, {9, 200}}, nil, []uint64{9}, 9},
	} {
		var r runOfIDs
		var written [][]uint64
		for _, m := range c.messages {
			if r.Over(m.offset, m.at, window) {
				ids := r.Take(3)
				written = append(written, slices.Clone(ids.Hashes))
			}
			if r.Add(m.offset, uint64(m.offset), m.at) {
				t.Errorf("%s: it is full", name)
			}
		}
		last := c.messages[len(c.messages)-1]
		for now, fresh := range map[int64]bool{last.at + window - 1: true, last.at + window: false} {
			if got := r.Fresh(window, time.Unix(0, now)); got != fresh {
				t.Errorf("%s: fresh at %d: %t", name, now, got)
			}
		}
		left := r.Take(3)
		if !slices.EqualFunc(written, c.written, slices.Equal) || !slices.Equal(left.Hashes, c.left) {
			t.Errorf("%s: written %d, left %d; want %d and %d", name, written, left.Hashes, c.written, c.left)
		}
		if left.Queue != 3 || left.First() != c.first || left.End != last.offset+1 || left.At.UnixNano() != last.at {
			t.Errorf("%s: the record is %+v", name, left)
		}
		if r.Len() != 0 || r.Fresh(window, time.Unix(0, last.at)) {
			t.Errorf("%s: %d are left", name, r.Len())
		}
	}
}

func TestRunIsFull(t *testing.T) {
	var r runOfIDs
	for offset := range int64(3 * store.MaxRecentIDs) {
		full := r.Add(offset, uint64(offset)+1, 7)
		if want := (offset+1)%store.MaxRecentIDs == 0; full != want {
			t.Fatalf("with offset %d it is full: %t", offset, full)
		}
		if full {
			if ids := r.Take(0); len(ids.Hashes) != store.MaxRecentIDs || ids.End != offset+1 {
				t.Fatalf("the record has %d up to %d", len(ids.Hashes), ids.End)
			}
		}
	}
}

func TestIndexExpires(t *testing.T) {
	const window = 100
	at := func(n int64) time.Time { return time.Unix(0, n) }
	for name, c := range map[string]struct {
		index  idIndex
		window time.Duration
		now    int64
		want   outdatedIDs
		from   int64 // Index.From afterwards
	}{
		"there is none":                {idIndex{}, window, 1000, outdatedIDs{}, 0},
		"nothing is old":               {idIndex{Last: 1000, From: 950}, window, 1001, outdatedIDs{Next: at(1100)}, 950},
		"old for less than half of it": {idIndex{Last: 1000, From: 850}, window, 1000, outdatedIDs{Next: at(1100)}, 850},
		"old for half of it":           {idIndex{Last: 1000, From: 849}, window, 1000, outdatedIDs{From: at(849), To: at(900), Next: at(1100)}, 900},
		"no record is written":         {idIndex{Last: 1000}, window, 1050, outdatedIDs{Next: at(1100)}, 0},
		"all but the last":             {idIndex{Last: 1000, From: 1}, window, 1099, outdatedIDs{From: at(1), To: at(999), Next: at(1100)}, 999},
		"all":                          {idIndex{Last: 1000, From: 900}, window, 1100, outdatedIDs{All: true}, 900},
		"no window any more":           {idIndex{Last: 1000, From: 900}, 0, 1000, outdatedIDs{All: true}, 900},
	} {
		if got := c.index.Expire(c.window, at(c.now)); got != c.want || c.index.From != c.from {
			t.Errorf("%s: %+v, from %d; want %+v, from %d", name, got, c.index.From, c.want, c.from)
		}
	}
}

// From is the time of the oldest record, regardless of the order of writes.
func TestIndexBegins(t *testing.T) {
	var x idIndex
	for _, c := range []struct{ at, from int64 }{{50, 50}, {60, 50}, {40, 40}, {45, 40}} {
		if x.Wrote(store.RecentIDs{At: time.Unix(0, c.at)}); x.From != c.from {
			t.Errorf("with a record of %d it begins at %d, want %d", c.at, x.From, c.from)
		}
	}
}
