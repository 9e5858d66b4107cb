package flow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

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
