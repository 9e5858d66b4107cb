package flow

import (
	"math/rand/v2"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

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
