package retention

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A message is a stored message of a test.
type message struct {
	at   time.Duration // after epoch
	size int64
	gone bool // removed from between others
}

var epoch = time.Unix(1_000_000, 0)

// stored are the messages of a topic, by queue and offset.
type stored [][]message

func (s stored) in(r store.Range) (found []int64) {
	for o := r.From; o < min(r.To, int64(len(s[r.Queue]))); o++ {
		if !s[r.Queue][o].gone {
			found = append(found, o)
		}
	}
	return found
}

func (s stored) at(queue uint16, offset int64) store.Stored {
	m := s[queue][offset]
	before, _ := s.BodiesBefore(queue, offset)
	return store.Stored{At: epoch.Add(m.at), Size: m.size, Cumulative: before + m.size}
}

func (s stored) FirstIn(r store.Range) (m store.Stored, ok bool, err error) {
	if found := s.in(r); len(found) > 0 {
		return s.at(r.Queue, found[0]), true, nil
	}
	return m, false, nil
}

func (s stored) LastIn(r store.Range) (m store.Stored, ok bool, err error) {
	if found := s.in(r); len(found) > 0 {
		return s.at(r.Queue, found[len(found)-1]), true, nil
	}
	return m, false, nil
}

func (s stored) FirstThat(r store.Range, f func(store.Stored) bool) (int64, error) {
	for o := r.From; o < r.To; o++ {
		if m, ok, _ := s.FirstIn(store.Range{Queue: r.Queue, From: o, To: r.To}); !ok || f(m) {
			return o, nil
		}
	}
	return r.To, nil
}

func (s stored) Live(r store.Range, enough int64) (bytes, next int64, err error) {
	for _, o := range s.in(r) {
		if bytes += s[r.Queue][o].size; bytes >= enough {
			return bytes, o + 1, nil
		}
	}
	return bytes, r.To, nil
}

func (s stored) Gaps(r store.Range, bytes int64) (gaps store.Removed, err error) {
	gaps = store.Removed{Messages: r.To - r.From, Bytes: bytes}
	for _, o := range s.in(r) {
		gaps.Messages--
		gaps.Bytes -= s[r.Queue][o].size
	}
	return gaps, nil
}

func (s stored) BodiesBefore(queue uint16, offset int64) (bytes int64, err error) {
	for _, m := range s[queue][:offset] {
		bytes += m.size
	}
	return bytes, nil
}

// held returns the bytes that are stored from the beginnings of the queues on.
func (s stored) held(begins []int64) (bytes int64) {
	for i := range s {
		for _, o := range s.in(store.Range{Queue: uint16(i), From: begins[i], To: int64(len(s[i]))}) {
			bytes += s[i][o].size
		}
	}
	return bytes
}

// plan returns a plan for queues that begin at offset 0, unless begins has other offsets.
func (s stored) plan(t *testing.T, p Plan, begins ...int64) *Plan {
	t.Helper()
	for len(begins) < len(s) {
		begins = append(begins, 0)
	}
	for i := range s {
		q := QueuePlan{Queue: &Queue{}, Number: uint16(i), End: int64(len(s[i]))}
		q.Begin.Offset = begins[i]
		q.Begin.Bytes, _ = s.BodiesBefore(q.Number, begins[i])
		q.Removed = q.Begin
		for _, m := range s[i][begins[i]:] {
			q.HasGaps = q.HasGaps || m.gone
		}
		if i < len(p.Queues) {
			q.Done, q.Waiting = p.Queues[i].Done, p.Queues[i].Waiting
			q.End = cmp.Or(p.Queues[i].End, q.End)
			p.Queues[i] = q
			continue
		}
		p.Queues = append(p.Queues, q)
	}
	plan := assert.Value(New(p, s.held(begins), s))(t)
	return plan
}

// uniform are n messages of 10 bytes, one a minute.
func uniform(n int) (ms []message) {
	for i := range n {
		ms = append(ms, message{at: time.Duration(i) * time.Minute, size: 10})
	}
	return ms
}

func TestPlan(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute) // after ten messages
	gaps := uniform(10)
	gaps[0].gone, gaps[2].gone = true, true
	for name, c := range map[string]struct {
		stored stored
		policy Policy
		queues []QueuePlan
		purge  bool
		want   []int64 // where the queues begin
		causes [Causes]int64
		next   time.Duration // after now; 0 for never
	}{
		"nothing":                    {stored{uniform(10)}, Policy{MaxAge: Forever}, nil, false, []int64{0}, [Causes]int64{}, 0},
		"empty":                      {stored{{}}, Policy{MaxAge: time.Minute}, nil, false, []int64{0}, [Causes]int64{}, 0},
		"age":                        {stored{uniform(10)}, Policy{MaxAge: 5 * time.Minute}, nil, false, []int64{6}, [Causes]int64{TooOld: 6}, time.Minute},
		"too young":                  {stored{uniform(10)}, Policy{MaxAge: time.Hour}, nil, false, []int64{0}, [Causes]int64{}, 50 * time.Minute},
		"age, a stream":              {stored{uniform(10)}, Policy{MaxAge: 10*time.Minute - time.Second}, nil, false, []int64{1}, [Causes]int64{TooOld: 1}, 59 * time.Second},
		"age, duplicate window":      {stored{uniform(10)}, Policy{MaxAge: time.Minute, Window: 8 * time.Minute, WindowMessages: 100}, nil, false, []int64{3}, [Causes]int64{TooOld: 3}, time.Minute},
		"age, small window":          {stored{uniform(10)}, Policy{MaxAge: time.Minute, Window: time.Hour, WindowMessages: 3}, nil, false, []int64{7}, [Causes]int64{TooOld: 7}, 57 * time.Minute},
		"consumed":                   {stored{uniform(10)}, Policy{MaxAge: Forever, Consumed: true}, []QueuePlan{{Done: 4}}, false, []int64{4}, [Causes]int64{Consumed: 4}, 0},
		"consumed, duplicate window": {stored{uniform(10)}, Policy{MaxAge: Forever, Consumed: true, Window: 8 * time.Minute, WindowMessages: 100}, []QueuePlan{{Done: 4}}, false, []int64{3}, [Causes]int64{Consumed: 3}, time.Minute},
		"consumed and age":           {stored{uniform(10)}, Policy{MaxAge: 5 * time.Minute, Consumed: true}, []QueuePlan{{Done: 4}}, false, []int64{6}, [Causes]int64{Consumed: 4, TooOld: 2}, time.Minute},
		"bytes":                      {stored{uniform(10)}, Policy{MaxAge: Forever, MaxBytes: 35}, nil, false, []int64{7}, [Causes]int64{TooMany: 7}, 0},
		"bytes, all":                 {stored{uniform(10)}, Policy{MaxAge: Forever, MaxBytes: 5}, nil, false, []int64{10}, [Causes]int64{TooMany: 10}, 0},
		"bytes of two queues":        {stored{uniform(10), uniform(4)}, Policy{MaxAge: Forever, MaxBytes: 60}, nil, false, []int64{4, 4}, [Causes]int64{TooMany: 8}, 0},
		"bytes and gaps":             {stored{gaps}, Policy{MaxAge: Forever, MaxBytes: 60}, nil, false, []int64{4}, [Causes]int64{TooMany: 2}, 0},
		"bytes, duplicate window":    {stored{uniform(10)}, Policy{MaxAge: Forever, MaxBytes: 10, Window: 8 * time.Minute, WindowMessages: 100}, nil, false, []int64{3}, [Causes]int64{TooMany: 3}, time.Minute},
		"parked":                     {stored{uniform(10)}, Policy{MaxAge: time.Minute}, []QueuePlan{{End: 2, Waiting: true}}, false, []int64{2}, [Causes]int64{TooOld: 2}, time.Minute / 64},
		"purge":                      {stored{gaps}, Policy{MaxAge: Forever, Window: time.Hour, WindowMessages: 100}, nil, true, []int64{10}, [Causes]int64{Purged: 8}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.stored.plan(t, Plan{Policy: c.policy, Now: now, Purge: c.purge, Queues: c.queues})
			p.Begun()
			assert.Must(t, errors.Join(p.Complete(), p.FindGaps()))
			var causes [Causes]int64
			for i := range p.Queues {
				q := &p.Queues[i]
				if q.To.Offset != c.want[i] {
					t.Errorf("queue %d begins at %d, want %d", i, q.To.Offset, c.want[i])
				}
				for j, n := range p.Commit(q).Removed {
					causes[j] += n
				}
			}
			assert.Equal(t, "removed by cause", causes, c.causes)
			next, ok, err := p.Next(func(queue uint16) int64 { return int64(len(c.stored[queue])) })
			if err != nil || ok != (c.next > 0) || ok && next.Sub(now) != c.next {
				t.Errorf("the next round is due in %v, %v, %v; want %v", next.Sub(now), ok, err, c.next)
			}
		})
	}
}

// Messages that a group needs become leftovers, and are removed when no group needs them.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	s := stored{uniform(10)}
	policy := Policy{MaxAge: 5 * time.Minute}
	now := epoch.Add(10 * time.Minute)
	p := s.plan(t, Plan{Policy: policy, Now: now})
	q := &p.Queues[0]
	q.Retain(2, now.Add(time.Hour))
	q.Retain(2, now.Add(time.Minute)) // another group needs it for a shorter time
	q.Retain(4, time.Time{})
	assert.That(t, p.AddsLeftovers(), "leftovers are not new")
	assert.Must(t, p.Complete())
	if got, want := fmt.Sprint(q.Ranges(1)), fmt.Sprint([]store.Range{{Topic: 1, To: 2}, {Topic: 1, From: 3, To: 4}, {Topic: 1, From: 5, To: 6}}); got != want {
		t.Errorf("it removes %v, want %v", got, want)
	}
	if c := p.Commit(q); c.Removed[TooOld] != 4 || c.Leftovers != 2 || c.LeftoversBytes != 20 || c.Bytes != 40 || c.Advanced != 6 {
		t.Errorf("counts %+v", c)
	}
	assert.Slices(t, "leftovers", slices.Sorted(maps.Keys(q.Leftovers)), []int64{2, 4})

	again := Plan{Policy: policy, Now: now.Add(10 * time.Second), Queues: []QueuePlan{{Queue: q.Queue, Begin: q.To, End: 10}}}
	p2 := assert.Value(New(again, 40, s))(t)
	q = &p2.Queues[0]
	if q.Moves() || !p2.Changes() {
		t.Errorf("the second round moves to %v, changes: %v", q.To, p2.Changes())
	}
	assert.That(t, p2.Expired(q, 2) && !p2.Expired(q, 3), "a leftover is too old, and others are not there")
	q.Retain(4, time.Time{})
	assert.That(t, !p2.AddsLeftovers(), "a leftover is new again")
	assert.Must(t, p2.Complete())
	assert.Slices(t, "finished", q.Finished(), []int64{2})
	c := p2.Commit(q)
	assert.That(t, c.Removed[Consumed] == 1 && c.Leftovers == -1 && c.From == 2 && c.To == 6 && c.Bytes == 10, "counts %+v", c)
}

// A message that was removed from between others is no longer a leftover.
func TestLeftoverThatIsGone(t *testing.T) {
	t.Parallel()
	ms := uniform(4)
	ms[1].gone = true
	p := stored{ms}.plan(t, Plan{Policy: Policy{MaxAge: time.Minute}, Now: epoch.Add(time.Hour)})
	q := &p.Queues[0]
	q.Retain(1, time.Time{})
	assert.Must(t, errors.Join(p.Complete(), p.FindGaps()))
	c := p.Commit(q)
	assert.That(t, c.Removed[TooOld] == 3 && c.Leftovers == 0 && c.Bytes == 30, "counts %+v", c)
}

// A round moves the beginning and then fails to remove the messages. They count for the cause of
// that round, even if the next round has another cause.
func TestCauseOfAFailedRound(t *testing.T) {
	t.Parallel()
	s := stored{uniform(10)}
	now := epoch.Add(10 * time.Minute)
	p := s.plan(t, Plan{Policy: Policy{MaxAge: 5 * time.Minute}, Now: now})
	p.Begun() // and the write fails
	q := p.Queues[0]
	again := Plan{Policy: Policy{MaxAge: Forever, MaxBytes: 10}, Now: now, Queues: []QueuePlan{{Queue: q.Queue, Begin: q.To, End: 10}}}
	next := assert.Value(New(again, 100, s))(t)
	next.Begun()
	if c := next.Commit(&next.Queues[0]); c.Removed != [Causes]int64{TooOld: 6, TooMany: 3} || c.Advanced != 9 {
		t.Errorf("removed by cause: %v, advanced %d", c.Removed, c.Advanced)
	}
}

// TestBytesAtRandom plans random topics with a limit of bytes and checks:
//   - The remaining messages are within the limit.
//   - No message is removed unnecessarily.
//   - No message is removed before another one that is older by more than a millisecond.
func TestBytesAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		s := make(stored, 1+rnd.IntN(3))
		for i := range s {
			at := time.Duration(0)
			for range rnd.IntN(40) {
				at += time.Duration(rnd.IntN(3)) * time.Duration(rnd.IntN(1000)) * time.Millisecond
				s[i] = append(s[i], message{at: at, size: int64(rnd.IntN(20)), gone: seed%2 == 0 && rnd.IntN(5) == 0})
			}
		}
		begins := make([]int64, len(s))
		limit := 1 + rnd.Int64N(s.held(begins)+10)
		p := s.plan(t, Plan{Policy: Policy{MaxAge: Forever, MaxBytes: limit}, Now: epoch.Add(time.Hour)})
		after := make([]int64, len(s))
		youngest, oldest := time.Duration(-1), Forever
		for i := range p.Queues {
			after[i] = p.Queues[i].To.Offset
			if found := s.in(store.Range{Queue: uint16(i), To: after[i]}); len(found) > 0 {
				youngest = max(youngest, s[i][found[len(found)-1]].at)
			}
			if found := s.in(store.Range{Queue: uint16(i), From: after[i], To: int64(len(s[i]))}); len(found) > 0 {
				oldest = min(oldest, s[i][found[0]].at)
			}
		}
		held := s.held(after)
		assert.That(t, held <= limit, "seed %d: %d bytes are held, the limit is %d", seed, held, limit)
		assert.That(t, youngest-time.Millisecond <= oldest,
			"seed %d: a message of %v is removed, and one of %v stays", seed, youngest, oldest)
		for i := range after { // one message less would not be enough
			before := slices.Clone(after)
			found := s.in(store.Range{Queue: uint16(i), To: after[i]})
			if len(found) == 0 || s[i][found[len(found)-1]].at < youngest-time.Millisecond || s[i][found[len(found)-1]].size == 0 {
				continue
			}
			before[i] = found[len(found)-1]
			if held := s.held(before); held <= limit {
				t.Errorf("seed %d: queue %d could begin at %d, not %d: %d bytes, the limit is %d", seed, i, before[i], after[i], held, limit)
			}
		}
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, time.Second: time.Second / 64, time.Hour: time.Hour / 64, 72 * time.Hour: time.Minute, Forever: time.Minute,
	} {
		got := (Policy{MaxAge: age}).AgePause()
		assert.That(t, got == want, "the pause for %v is %v, want %v", age, got, want)
	}
	if _, ok := (Policy{MaxAge: Forever}).Expires(epoch); ok {
		t.Error("it expires")
	}
	for _, c := range []struct{ begin, undone, next, want int64 }{
		{0, 100, 10, 10}, {0, 3, 10, 3}, {5, 3, 10, 5}, {5, 3, 3 + StepOver - 1, 5}, {5, 3, 3 + StepOver, 3 + StepOver},
	} {
		got := ConsumedBefore(c.begin, c.undone, c.next)
		assert.That(t, got == c.want, "%+v: %d", c, got)
	}
}
