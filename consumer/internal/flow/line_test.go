package flow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// An item is a delivery.
type item struct {
	group string
	id    string
	line  *Line[*item]
}

func inGroup(g string, n int) []*item {
	items := make([]*item, n)
	for i := range items {
		items[i] = &item{group: g, id: fmt.Sprint(g, i)}
	}
	return items
}

// lines are Lines whose items know their line.
type lines struct{ Lines[*item] }

func newLines() lines { return lines{Lines[*item]{}} }

func (l lines) join(it *item) (first bool) {
	it.line, first = l.Join(Key{Group: it.group}, it)
	return first
}

func (l lines) close(it *item) { l.Close(it.line) }

func (l lines) leave(it *item, consumed bool) (next *item, behind []*item) {
	next, behind = l.Leave(it.line, it, consumed)
	it.line = nil
	for _, b := range behind {
		b.line = nil
	}
	return next, behind
}

// M1 fails, M2 was received with it. Before M2 is released, the server has the failure
// and delivers M1 again: it must not be released with M2.
func TestLinesFailureThenRedelivery(t *testing.T) {
	l := newLines()
	old, again := inGroup("a", 2), inGroup("a", 2)
	for _, it := range old {
		l.join(it)
	}
	l.close(old[0])
	assert.That(t, l.join(again[0]) && !l.join(again[1]), "a delivery after the failure waits for one before it")
	if next, behind := l.leave(old[0], false); next != nil || !slices.Equal(behind, old[1:]) {
		t.Errorf("next %v, behind %v; want the one behind the failed one released", next, behind)
	}
	l.leave(old[1], false)
	next, _ := l.leave(again[0], true)
	assert.That(t, next == again[1], "the new line does not continue")
	l.leave(again[1], true)
	assert.That(t, len(l.Lines) == 0, "%d empty lines are left", len(l.Lines))
}

// These rules hold for any arrivals, failures and departures: at most one delivery of a line is
// free, lines keep their order, each delivery of a line becomes free or is released once, and empty
// lines are removed.
func TestLinesProperty(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		l := newLines()
		var waiting, going []*item
		order := map[*item]int{}
		for n := range 300 {
			switch {
			case rnd.IntN(2) == 0:
				it := inGroup(fmt.Sprint(rnd.IntN(3)), 1)[0]
				order[it] = n
				if l.join(it) {
					going = append(going, it)
				} else {
					waiting = append(waiting, it)
				}
			case len(going) > 0:
				i := rnd.IntN(len(going))
				it := going[i]
				ok := rnd.IntN(3) > 0
				if !ok && rnd.IntN(2) == 0 {
					l.close(it)
				}
				going = slices.Delete(going, i, i+1)
				next, behind := l.leave(it, ok)
				if next != nil {
					behind = append(behind, next)
					going = append(going, next)
					assert.MustThat(t, order[next] >= order[it], "seed %d: one goes before its elder", seed)
				}
				for _, b := range behind {
					j := slices.Index(waiting, b)
					assert.MustThat(t, j >= 0, "seed %d: a delivery goes, or is released, that did not wait", seed)
					waiting = slices.Delete(waiting, j, j+1)
				}
			}
			heads := map[*Line[*item]]bool{}
			for _, it := range going {
				assert.MustThat(t, !heads[it.line] && it.line.items[0] == it, "seed %d: two of one line may go", seed)
				heads[it.line] = true
			}
		}
		for len(going) > 0 {
			it := going[0]
			going = going[1:]
			if next, _ := l.leave(it, true); next != nil {
				going = append(going, next)
			}
		}
		assert.MustThat(t, len(l.Lines) == 0, "seed %d: %d lines are left", seed, len(l.Lines))
	}
}

// In any order of pushes and pops, the messages of a topic keep their order, and each is returned
// once. No topic has two turns while another topic waits.
func TestLanesProperty(t *testing.T) {
	type message struct{ topic, n int }
	for range 100 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		var l Lanes[message]
		pushed, popped := map[int]int{}, map[int]int{}
		waits := map[int]map[int]int{} // messages of others since a waiting topic had its turn
		for range 1000 {
			if topic := rnd.IntN(4); rnd.IntN(2) == 0 {
				if pushed[topic] == popped[topic] {
					waits[topic] = map[int]int{}
				}
				l.Push(topic, false, message{topic, pushed[topic]})
				pushed[topic]++
				continue
			}
			before := l.Len()
			m, ok := l.Pop(false)
			assert.MustThat(t, ok == (before > 0), "seed %d: Pop of %d messages: %v", seed, before, ok)
			if !ok {
				continue
			}
			assert.MustThat(t, m.n == popped[m.topic], "seed %d: message %d of topic %d came before %d", seed, m.n, m.topic, popped[m.topic])
			popped[m.topic]++
			waits[m.topic] = map[int]int{}
			for other := range pushed {
				if other == m.topic || pushed[other] == popped[other] {
					continue
				}
				if waits[other][m.topic]++; waits[other][m.topic] > 1 {
					t.Fatalf("seed %d: topic %d had two turns while topic %d waited", seed, m.topic, other)
				}
			}
		}
	}
}

// A pop that prefers fresh messages returns a retried one only if there is no fresh one.
func TestPopPrefersFresh(t *testing.T) {
	var l Lanes[string]
	l.Push(0, true, "retried")
	for range 8 {
		l.Push(0, false, "fresh")
	}
	for n := range 8 {
		x, ok := l.Pop(true)
		assert.That(t, ok && x == "fresh", "pop %d: %q, %v", n, x, ok)
	}
	x, _ := l.Pop(true)
	assert.That(t, x == "retried", "the last pop: %q", x)
}

// The consumer's defaults.
const (
	maxBuffered = 1024
	maxBytes    = 64 << 20
)

// handling returns credits whose handlers take d.
func handling(d time.Duration, concurrency int) Credits {
	c := New(concurrency, maxBuffered, maxBytes)
	c.handling, c.peak = d, 1<<10
	return c
}

func TestBufferFollowsTheHandlersSpeed(t *testing.T) {
	for _, tt := range []struct {
		handling    time.Duration
		concurrency int
		want        int
	}{
		{time.Minute, 20, 0}, // no message is kept from other consumers
		{time.Second, 20, 4},
		{10 * time.Millisecond, 20, 400},
		{0, 20, maxBuffered},
		{0, 1, maxBuffered},
		{200 * time.Millisecond, 1, 1},
	} {
		c := handling(tt.handling, tt.concurrency)
		if got := c.buffer(); got != tt.want {
			t.Errorf("handlers of %v, concurrency %d: %d messages wait, want %d", tt.handling, tt.concurrency, got, tt.want)
		}
	}
	c := New(20, maxBuffered, maxBytes)
	for range 200 {
		c.Handled(time.Microsecond)
	}
	assert.Equal(t, "after 200 quick messages may wait", c.buffer(), maxBuffered)
}

// For messages of any size, a server that keeps to the requests exceeds the byte bound by at most
// one body for each receive. Reservations end with their receives, and a receive is always
// possible.
func TestCreditsProperty(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + rnd.IntN(64<<20)
		c := New(1+rnd.IntN(64), rnd.IntN(2000), limit)
		c.sources = 1 + rnd.IntN(4)
		var inHand []int
		var underWay []Grant
		largest := 0
		for range 2000 {
			switch rnd.IntN(3) {
			case 0:
				if g := c.Grant(Ask{Batch: 32, UnderWay: min(len(underWay), 1)}); g.Messages > 0 {
					underWay = append(underWay, g)
				}
			case 1:
				if len(underWay) == 0 {
					continue
				}
				g := underWay[0]
				underWay = underWay[1:]
				c.Refund(g)
				for n, bytes := 0, 0; n < g.Messages; n++ {
					size := rnd.IntN(1 << rnd.IntN(23))
					if n > 0 && bytes+size > g.Bytes {
						break
					}
					bytes += size
					largest = max(largest, size)
					c.Take(size)
					inHand = append(inHand, size)
				}
			case 2:
				c.Handled(time.Duration(rnd.Int64N(int64(time.Second))))
				if len(inHand) > 0 {
					c.Free(inHand[0])
					inHand = inHand[1:]
				}
			}
			over := c.bytes - limit
			assert.MustThat(t, over <= largest*(1+c.sources+8), "seed %d: %d bytes in hand, the limit is %d", seed, c.bytes, limit)
		}
		for _, g := range underWay {
			c.Refund(g)
		}
		for _, size := range inHand {
			c.Free(size)
		}
		assert.MustThat(t, c.reservedMessages == 0 && c.reservedBytes == 0 && c.messages == 0 && c.bytes == 0 && c.Grant(Ask{Batch: 32}).Messages != 0, "seed %d: %+v at rest", seed, c)
	}
}

// A prompt receive takes a full batch or waits, beside quick handlers. While other topics are slow,
// a topic without a message in hand gets one.
func TestPromptGrant(t *testing.T) {
	const concurrency, batch = 20, 32
	quick, slow := 10*time.Millisecond, time.Minute // a buffer of 400 messages, and none
	for name, tt := range map[string]struct {
		handling time.Duration
		inHand   int
		ask      Ask
		want     int
	}{
		"quick, nothing in hand":               {quick, 0, Ask{}, batch},
		"quick, half of the buffer is free":    {quick, 220, Ask{}, batch},
		"quick, less than half is free":        {quick, 389, Ask{}, 0},
		"quick, the same for a spare topic":    {quick, 389, Ask{Spare: true}, 0},
		"quick, full":                          {quick, 420, Ask{Spare: true}, 0},
		"slow, nothing in hand":                {slow, 0, Ask{}, concurrency},
		"slow, one handler is free":            {slow, 19, Ask{}, 1},
		"slow, full":                           {slow, 20, Ask{}, 0},
		"slow, full, a spare topic":            {slow, 20, Ask{Spare: true}, 1},
		"slow, far beyond, a spare topic":      {slow, 500, Ask{Spare: true}, 1},
		"slow, full, a spare topic's second":   {slow, 20, Ask{Spare: true, UnderWay: 1}, 0},
		"just slow, full, a spare topic":       {201 * time.Millisecond, 39, Ask{Spare: true}, 1},
		"not quite slow, full, a spare topic":  {200 * time.Millisecond, 40, Ask{Spare: true}, 0},
		"not quite slow, full, no spare topic": {200 * time.Millisecond, 40, Ask{}, 0},
	} {
		c := handling(tt.handling, concurrency)
		c.SetSources(1000)
		for range tt.inHand {
			c.Take(1 << 10)
		}
		tt.ask.Batch, tt.ask.Prompt = batch, true
		if may, g := c.May(tt.ask), c.Grant(tt.ask); g.Messages != tt.want || may != (tt.want > 0) {
			t.Errorf("%s: granted %d messages, May %v; want %d", name, g.Messages, may, tt.want)
		}
	}
}

// A prompt receive does not wait for the reservations of parked receives. They may stay for long.
func TestPromptBesideParked(t *testing.T) {
	c := handling(time.Millisecond, 4)
	c.SetSources(20)
	var parked []Grant
	for {
		g := c.Grant(Ask{Batch: 32})
		assert.MustThat(t, g.Messages != 0, "a parked receive gets nothing")
		parked = append(parked, g)
		if len(parked) == 19 {
			break
		}
	}
	for c.reservedMessages < c.concurrency+c.buffer() { // all of the window
		parked = append(parked, c.Grant(Ask{Batch: 32}))
	}
	prompt := Ask{Batch: 32, Prompt: true}
	if g := c.Grant(prompt); g.Messages == 0 {
		t.Error("beside parked receives, a prompt one gets nothing")
	} else {
		c.Refund(g)
	}
	for _, g := range parked {
		c.Refund(g)
	}
	if g := c.Grant(prompt); g.Messages != 32 || c.parked != 0 {
		t.Errorf("after the parked receives, a prompt one gets %d messages, and %d count as parked", g.Messages, c.parked)
	}
}

// With any number of queues and any sizes, prompt receives of quick handlers never ask for less
// than a batch or the free messages of the window, and the reservations keep to the bytes. When
// all have ended, a prompt receive may begin.
func TestPromptProperty(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := handling(time.Duration(1+rnd.IntN(100))*time.Millisecond, 1+rnd.IntN(64))
		c.maxBytes = 1<<20 + rnd.IntN(64<<20)
		c.SetSources(1000)
		var underWay []Grant
		var inHand []int
		for range 3000 {
			switch rnd.IntN(4) {
			case 0, 1:
				ask := Ask{Batch: 32, Spare: rnd.IntN(2) == 0, Prompt: true}
				free := c.concurrency + c.buffer() - c.messages - c.reservedMessages
				peak := c.peak
				left := c.maxBytes - c.bytes - c.reservedBytes
				g := c.Grant(ask)
				if g.Messages == 0 {
					continue
				}
				if bytes := min(left, c.maxBytes/2/(1+(c.concurrency+c.buffer())/32)); g.Messages < min(32, free, bytes/peak) {
					t.Fatalf("seed %d: granted %d messages, %d are free in the window, and bytes for %d", seed, g.Messages, free, bytes/peak)
				}
				assert.MustThat(t, c.messages+c.reservedMessages <= c.concurrency+c.buffer(),
					"seed %d: %d messages beyond the window", seed, c.messages+c.reservedMessages-c.concurrency-c.buffer())
				assert.MustThat(t, c.bytes+c.reservedBytes <= c.maxBytes, "seed %d: %d of %d bytes are in hand or reserved", seed, c.bytes+c.reservedBytes, c.maxBytes)
				underWay = append(underWay, g)
			case 2:
				if len(underWay) == 0 {
					continue
				}
				g := underWay[0]
				underWay = underWay[1:]
				c.Refund(g)
				for range rnd.IntN(g.Messages + 1) {
					size := rnd.IntN(1 + g.Bytes/g.Messages)
					c.Take(size)
					inHand = append(inHand, size)
				}
			case 3:
				for range min(len(inHand), rnd.IntN(64)) {
					c.Free(inHand[0])
					inHand = inHand[1:]
				}
			}
		}
		for _, g := range underWay {
			c.Refund(g)
		}
		for _, size := range inHand {
			c.Free(size)
		}
		assert.MustThat(t, c.reservedMessages == 0 && c.reservedBytes == 0 && c.May(Ask{Batch: 32, Prompt: true}), "seed %d: %+v at rest", seed, c)
	}
}

// Entries are returned in the order of their times, after any sequence of settings, changes and
// removals.
func TestOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var s Schedule[int]
	assert.That(t, s.First() == nil && len(s.All()) == 0, "the zero value is not empty")
	entries := make([]Entry[int], 50)
	due := map[int]time.Time{}
	for range 2000 {
		i := rnd.IntN(len(entries))
		entries[i].Value = i
		if rnd.IntN(3) == 0 {
			s.Remove(&entries[i])
			delete(due, i)
		} else {
			due[i] = time.Unix(rnd.Int64N(100), 0)
			s.Set(&entries[i], due[i])
		}
		if got := s.All(); len(got) != len(due) || slices.ContainsFunc(got, func(i int) bool { return due[i] != entries[i].At }) {
			t.Fatalf("%v are scheduled, want %v", got, due)
		}
		first := s.First()
		for i, at := range due {
			assert.MustThat(t, first != nil && !at.Before(first.At), "the first is %+v, but entry %d is due at %v", first, i, at)
		}
	}
	var last time.Time
	for e := s.First(); e != nil; e = s.First() {
		assert.That(t, !e.At.Before(last), "%v comes after %v", e.At, last)
		last = e.At
		s.Remove(e)
		s.Remove(e) // has no effect
	}
}

// Reminders of one queue within a step are one; the latest are dropped if there are too many.
func TestReminders(t *testing.T) {
	var r Reminders[*int]
	a, b := new(int), new(int)
	begin := time.Unix(1000, 0)
	for i := range 2 * remindMax {
		r.add(begin.Add(time.Duration(remindMax*2-i)*time.Second), a)
		r.add(begin.Add(time.Duration(remindMax*2-i)*time.Second), a) // shares it
	}
	r.add(begin, b)
	assert.That(t, len(r) == remindMax, "%d reminders", len(r))
	got := r.Due(begin)
	assert.That(t, got == nil, "%v before the time", got)
	got = r.Due(begin.Add(2 * time.Second))
	assert.That(t, len(got) == 2 && got[0] == b && got[1] == a, "got %v", got)
}
