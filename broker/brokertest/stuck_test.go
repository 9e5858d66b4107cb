package brokertest

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// A log is a buffer for several goroutines.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// The clock of the watch is the real time here.
func TestWatchReportsSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out log
		w := newWatch(time.Second, 30*time.Second, &out)
		defer w.start()()
		quick := w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "quick", Topic: "orders"}, Attempt: 1})
		slow := w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "slow", Topic: "orders"}, Attempt: 3})
		time.Sleep(25 * time.Second)
		quick()
		time.Sleep(10 * time.Minute)
		slow()
		time.Sleep(time.Minute)
		const want = "brokertest: the handler has not returned for 30s of real time: message slow of topic orders (group billing, attempt 3)\n"
		assert.Equal(t, "the watch wrote", out.String(), want)
		// It works again after a time without handlers.
		defer w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "later", Topic: "orders"}, Attempt: 1})()
		time.Sleep(time.Minute)
		got := out.String()
		assert.That(t, strings.Contains(got, "message later"), "the watch wrote %q, want the later handler in it", got)
	})
}

func TestRunningHandlersAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(time.Second, 30*time.Second, &log{})
		defer w.start()()
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			d := &tidegate.Delivery{Message: tidegate.Message{ID: id, Topic: "orders"}, Attempt: 1}
			defer w.begin("a", "billing", d)()
			defer w.begin("b", "billing", d)()
			defer w.begin("a", "other", d)()
			time.Sleep(time.Minute)
		}
		const want = "; the handler has not returned for 5m0s: message 1 of topic orders (group billing, attempt 1)" +
			"; the handler has not returned for 4m0s: message 2 of topic orders (group billing, attempt 1)" +
			"; the handler has not returned for 3m0s: message 3 of topic orders (group billing, attempt 1)" +
			"; and 2 more handlers"
		assert.Equal(t, "handlers of a/billing", w.of("a", "billing"), want)
		assert.Equal(t, "handlers of c/billing", w.of("c", "billing"), "")
	})
}

// Chaos changes the order of messages, except within a message group.
func TestReorderKeepsMessageGroups(t *testing.T) {
	moved := false
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var ds []*tidegate.Delivery
		for i := range 12 {
			ds = append(ds, &tidegate.Delivery{Offset: int64(i), Message: tidegate.Message{MessageGroup: []string{"", "a", "b"}[r.IntN(3)]}})
		}
		last, seen := map[string]int64{"a": -1, "b": -1}, map[int64]bool{}
		for i, d := range reorder(ds, r) {
			moved = moved || d.Offset != int64(i)
			assert.MustThat(t, !seen[d.Offset], "seed %d: offset %d comes twice", seed, d.Offset)
			seen[d.Offset] = true
			if d.MessageGroup == "" {
				continue
			}
			if d.Offset < last[d.MessageGroup] {
				t.Errorf("seed %d: in message group %s, offset %d comes after %d", seed, d.MessageGroup, d.Offset, last[d.MessageGroup])
			}
			last[d.MessageGroup] = d.Offset
		}
		assert.That(t, len(seen) == len(ds), "seed %d: %d of %d messages are left", seed, len(seen), len(ds))
	}
	assert.That(t, moved, "nothing was moved")
}
