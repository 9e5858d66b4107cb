package consume

import (
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A feed is a ranked topic whose new messages are read at once.
type feed struct {
	p   *Progress
	now time.Time
}

func newFeed(ends ...int64) *feed {
	f := &feed{p: New(Config{MaxInvisible: time.Hour, Ranked: true}), now: time.Unix(1e9, 0)}
	for q, end := range ends {
		f.p.AddQueue(store.Mark{})
		f.p.Extend(q, end)
	}
	return f
}

// receive receives up to most messages of a queue, or of any, and returns the grants.
func (f *feed) receive(queue, most int) []Grant {
	r := Receive{Queue: queue, Max: most, MaxBytes: 1 << 20, Push: true, Invisible: time.Minute, Filter: anyMessage{}}
	f.p.Begin(&r, f.now)
	for {
		c, ok := f.p.Claim(&r, f.now)
		if !ok {
			break
		}
		ms, offsets := make([]store.Message, min(int64(c.Limit), c.To-c.From)), []int64(nil)
		for i := range ms {
			ms[i].StoredAt, offsets = f.now, append(offsets, c.From+int64(i))
		}
		f.p.Unclaim(&r, c.Queue)
		f.p.Admit(&r, c, false, ms, offsets, f.now)
	}
	f.p.End(&r, f.now)
	f.p.Effects().Reset()
	return r.Grants
}

// queues returns the queues of grants.
func queues(gs []Grant) (qs []int) {
	for _, g := range gs {
		qs = append(qs, int(g.Lease.Queue()))
	}
	return qs
}

// A receive of a ranked topic takes the highest queue first, and one of a single queue that queue.
func TestRanked(t *testing.T) {
	t.Parallel()
	f := newFeed(3, 2, 0, 1)
	for _, step := range []struct {
		queue, most int
		want        []int
	}{{-1, 2, []int{3, 1}}, {0, 1, []int{0}}, {-1, 9, []int{1, 0, 0}}, {-1, 9, nil}} {
		if got := queues(f.receive(step.queue, step.most)); !slices.Equal(got, step.want) {
			t.Errorf("a receive of %d messages of queue %d got those of the queues %v, want %v", step.most, step.queue, got, step.want)
		}
	}
}

// A message that is ready again has its priority, and shares a receive with the new messages of its
// queue.
func TestRankedRetries(t *testing.T) {
	t.Parallel()
	f := newFeed(8, 8)
	first := f.receive(1, 4)
	for _, g := range first {
		f.p.Release(g.Receipt, f.now)
	}
	for _, want := range [][]int{{1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}} {
		if got := queues(f.receive(-1, 4)); !slices.Equal(got, want) {
			t.Errorf("a receive got messages of the queues %v, want %v", got, want)
		}
	}
}

// While the highest queue has messages without end, each lower queue gets a message of each
// turnAfter times the number of the lower queues.
func TestRankedQueuesDoNotStarve(t *testing.T) {
	t.Parallel()
	const lower = 3
	for _, most := range []int{1, 4, 32} {
		f := newFeed(1000, 1000, 1000, 1e6)
		counts := make([]int, lower+1)
		const rounds = 600
		for range rounds {
			for _, q := range queues(f.receive(-1, most)) {
				counts[q]++
			}
		}
		receives := max(1, (turnAfter+most)/most) // from turn to turn, at most
		for q := range lower {
			if least := rounds / receives / lower; counts[q] < least-1 || counts[q] > rounds*most/turnAfter/lower+1 {
				t.Errorf("receives of %d messages: the queues got %v, want about one of %d receives for the lower ones in turn", most, counts, receives)
			}
		}
	}
}
