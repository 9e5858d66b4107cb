package broker_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The power fails before each write, sync and rename of redrives to one group, with none or a part
// of the unsynced data. Each letter is among the dead letters or is delivered to the group, once,
// and never to another group.
func TestRedriveToOneGroupAtEveryWrite(t *testing.T) {
	t.Parallel()
	const n = 6
	var crashes []*vfs.MemFS
	request := transport.ReceiveRequest{Group: "g", Max: 32, InvisibleDuration: time.Hour}
	synctest.Test(t, func(t *testing.T) {
		var recording atomic.Bool
		fs := &crashFS{MemFS: vfs.NewCrashableMem()}
		fs.before = func(i int) {
			for _, percent := range []int{0, 50, 100} {
				if recording.Load() {
					crashes = append(crashes, fs.clone(percent, uint64(i)))
				}
			}
		}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		for _, topic := range []string{"t", "u"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			nothing(t, b, "h", topic)
			for i := range n / 2 {
				kill(t, b, &tidegate.Message{ID: fmt.Sprint(topic, i), Topic: topic, Body: []byte("x")})
			}
			for range n / 2 {
				ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", topic)})
			}
		}
		recording.Store(true)
		for page, after := 0, ""; page == 0 || after != ""; page++ {
			after = toGroup(t, b, status.DeadLetterSelection{Limit: 2, After: after}).Next
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%d crashes", len(crashes))
	if len(crashes) < 30 {
		t.Fatalf("the power failed %d times, which proves little", len(crashes))
	}
	for i, fs := range crashes {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			seen := map[string]int{}
			for _, id := range listAllLetters(t, b) {
				seen[id]++
			}
			for _, topic := range []string{"t", "u"} {
				nothing(t, b, "h", topic)
				for request.Topic = topic; ; {
					ds := receive(t, b, request)
					if len(ds) == 0 {
						break
					}
					for _, d := range ds {
						seen[d.ID]++
					}
				}
			}
			if len(seen) != n || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
				t.Errorf("crash %d: %v", i, seen)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A groupModel has the messages that the groups g and h must receive.
type groupModel struct {
	t       *testing.T
	b       *broker.Broker
	rnd     *rand.Rand
	pending map[string]map[string]int // by group and message ID
	letters map[string]int            // dead letters of g
	topics  map[string]string         // by message ID
}

// With random sends, failures, restarts and redrives to one group or to all, each group receives
// its messages exactly as often as the model expects.
func TestRedriveToOneGroupModel(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(10), func(t *testing.T, seed uint64) {
		fs := vfs.NewMem()
		m := &groupModel{
			t: t, b: open(t, broker.Options{Dir: "data"}.On(fs)), rnd: rand.New(rand.NewPCG(seed, 0)),
			pending: map[string]map[string]int{"g": {}, "h": {}}, letters: map[string]int{}, topics: map[string]string{},
		}
		for _, topic := range []string{"t", "u"} {
			putTopic(t, m.b, topic, settings.Topic{Queues: 1 + m.rnd.IntN(2)})
		}
		for name := range m.pending {
			putGroup(t, m.b, name, settings.Group{
				MaxAttempts: -1, RetryTopic: settings.RetryTopic{Enabled: m.rnd.IntN(2) == 0, DeadLetterTopic: "%DLQ%" + name},
			})
			nothing(t, m.b, name, "t")
			nothing(t, m.b, name, "u")
		}
		for step := range 80 {
			switch n := m.rnd.IntN(12); {
			case n < 3:
				id, topic := fmt.Sprint("m", step), []string{"t", "u"}[m.rnd.IntN(2)]
				mustSend(t, m.b, &tidegate.Message{ID: id, Topic: topic, Body: []byte("x")})
				m.topics[id] = topic
				m.pending["g"][id]++
				m.pending["h"][id]++
			case n < 6:
				m.receive("g", m.rnd.IntN(3) > 0)
			case n < 7:
				m.receive("h", false)
			case n < 11:
				m.redrive(m.rnd.IntN(3) > 0)
			default:
				m.b = reopen(t, m.b, fs)
			}
		}
		for range 100 {
			m.receive("g", false)
			m.receive("h", false)
		}
		for group, ids := range m.pending {
			for id, n := range ids {
				if n != 0 {
					t.Errorf("group %s has not received %s, %d times", group, id, n)
				}
			}
		}
		m.check()
	})
}

// receive receives some messages and settles them.
func (m *groupModel) receive(group string, fail bool) {
	m.t.Helper()
	topic := []string{"t", "u"}[m.rnd.IntN(2)]
	for _, d := range receive(m.t, m.b, transport.ReceiveRequest{Group: group, Topic: topic, Max: 1 + m.rnd.IntN(4)}) {
		if m.pending[group][d.ID]--; m.pending[group][d.ID] < 0 || m.topics[d.ID] != topic || d.Topic != topic || d.Attempt != 1 {
			m.t.Fatalf("group %s received %s of %s from %s in attempt %d, %d to come", group, d.ID, d.Topic, topic, d.Attempt, m.pending[group][d.ID])
		}
		if !fail || m.rnd.IntN(3) == 0 {
			ackDeliveries(m.t, m.b, []*tidegate.Delivery{d})
			continue
		}
		if _, err := m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
			m.t.Fatal(err)
		}
		m.letters[d.ID]++
	}
}

// redrive redrives some letters, to g alone or to all groups.
func (m *groupModel) redrive(alone bool) {
	m.t.Helper()
	before := m.check()
	sel := status.DeadLetterSelection{ToGroupOnly: alone, Limit: 1 + m.rnd.IntN(4), Newest: m.rnd.IntN(2) == 0}
	done, err := m.b.RedriveDeadLetters(m.t.Context(), "g", sel)
	if err != nil || done.Redriven != int64(min(sel.Limit, len(before))) {
		m.t.Fatalf("%+v of %v: %+v, %v", sel, before, done, err)
	}
	moved := map[string]int{}
	for _, id := range before {
		moved[id]++
	}
	for _, id := range listAllLetters(m.t, m.b) {
		moved[id]--
	}
	for id, n := range moved {
		m.letters[id] -= n
		m.pending["g"][id] += n
		if !alone {
			m.pending["h"][id] += n
		}
	}
	m.check()
}

// check compares the dead letters, and returns them.
func (m *groupModel) check() []string {
	m.t.Helper()
	listed := listAllLetters(m.t, m.b)
	count := map[string]int{}
	for _, id := range listed {
		count[id]++
	}
	for id, n := range m.letters {
		if count[id] != n {
			m.t.Fatalf("%s is a dead letter %d times, want %d", id, count[id], n)
		}
	}
	return listed
}
