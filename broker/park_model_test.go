package broker_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A parkModel knows of each message group how far it is: nothing may overtake.
type parkModel struct {
	t      *testing.T
	b      *broker.Broker
	rnd    *rand.Rand
	sent   map[string]int                // by message group
	done   map[string]map[int]bool       // consumed or dead
	flying map[string]*tidegate.Delivery // by message group
	until  map[string]time.Time
	modes  []settings.OnExhausted
}

func (m *parkModel) config() settings.Group {
	return settings.Group{FIFO: true, MaxAttempts: 1 + m.rnd.IntN(2), OnExhausted: m.modes[m.rnd.IntN(len(m.modes))], FIFORetryInterval: settings.Duration(time.Second)}
}

func (m *parkModel) send() {
	group := fmt.Sprint("mg", m.rnd.IntN(4))
	var ms []*tidegate.Message
	for range 1 + m.rnd.IntN(3) {
		ms = append(ms, &tidegate.Message{ID: fmt.Sprint(group, ":", m.sent[group]), Topic: "t", MessageGroup: group, Body: []byte("x")})
		m.sent[group]++
	}
	mustSend(m.t, m.b, ms...)
}

func (m *parkModel) receive() int {
	ds := receive(m.t, m.b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1 + m.rnd.IntN(4), Push: m.rnd.IntN(2) == 0, InvisibleDuration: 10 * time.Second})
	for _, d := range ds {
		group, text, _ := strings.Cut(d.ID, ":")
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			m.t.Fatal(err)
		}
		if m.flying[group] != nil && time.Now().Before(m.until[group]) {
			m.t.Fatalf("%s is delivered while %s is in flight", d.ID, m.flying[group].ID)
		}
		if m.done[group][n] {
			m.t.Fatalf("%s is delivered, and was done", d.ID)
		}
		for before := range n {
			if !m.done[group][before] && !m.dead(group, before) {
				m.t.Fatalf("%s is delivered before %d is done", d.ID, before)
			}
		}
		m.flying[group], m.until[group] = d, time.Now().Add(10*time.Second)
	}
	return len(ds)
}

// dead reports whether a message is a dead letter, and takes note of it.
func (m *parkModel) dead(group string, n int) bool {
	page, err := m.b.DeadLetters("g", status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{fmt.Sprint(group, ":", n)}}})
	if err != nil || len(page.DeadLetters) > 1 {
		m.t.Fatalf("dead letters of %s:%d: %+v, %v", group, n, page, err)
	}
	if len(page.DeadLetters) == 1 {
		m.finish(group, n)
	}
	return len(page.DeadLetters) == 1
}

func (m *parkModel) finish(group string, n int) {
	if m.done[group] == nil {
		m.done[group] = map[int]bool{}
	}
	m.done[group][n] = true
}

func (m *parkModel) settle(good bool) {
	for group, d := range m.flying {
		if d == nil || !time.Now().Before(m.until[group]) {
			delete(m.flying, group)
			continue
		}
		var n int
		if _, err := fmt.Sscan(d.ID[len(group)+1:], &n); err != nil {
			m.t.Fatal(err)
		}
		var err error
		switch op := m.rnd.IntN(10); {
		case good || op < 3:
			if err = m.b.Ack(m.t.Context(), []*tidegate.Delivery{d})[0]; err == nil {
				m.finish(group, n)
			}
		case op < 7:
			_, err = m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.Retry})
		case op < 8:
			serve(m.b).Return(m.t.Context(), []*tidegate.Delivery{d})
		case op < 9:
			d.Attempt += m.rnd.IntN(2)
			_, err = m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "wanted"})
		default:
			continue
		}
		if err != nil {
			m.t.Fatalf("settling %s: %v", d.ID, err)
		}
		delete(m.flying, group)
		synctest.Wait()
	}
}

func (m *parkModel) redrive() {
	sel := status.ParkedSelection{DeadLetter: m.rnd.IntN(4) == 0}
	if page, err := m.b.Parked("g", status.ParkedQuery{State: "parked"}); err != nil {
		m.t.Fatal(err)
	} else if len(page.Groups) > 0 && m.rnd.IntN(3) > 0 {
		sel.Topic, sel.MessageGroup = "t", page.Groups[m.rnd.IntN(len(page.Groups))].MessageGroup
	}
	if _, err := m.b.RedriveParked(m.t.Context(), "g", sel); err != nil {
		m.t.Fatal(err)
	}
}

// check compares the counters with the unfinished messages.
func (m *parkModel) check() {
	g, err := m.b.Group("g")
	if err != nil || len(g.Topics) == 0 {
		return
	}
	s := g.Topics[0]
	if s.Backlog.Messages != s.Ready+s.Inflight+s.WaitingRetry+s.Parked+s.Blocked || s.Backlog.Bytes != s.Backlog.Messages || (s.Parked > 0) != (s.ParkedGroups > 0) {
		m.t.Fatalf("the counters do not fit: %+v", s)
	}
	sub := subscriptions(m.b)[0]
	fresh := int64(0)
	sub.Look(func(p *consume.Progress) {
		for i, q := range sub.Topic().Queues() {
			fresh += q.End() - p.Cursor(i).Next
		}
	})
	if _, err := sub.Audit(); err != nil {
		m.t.Fatal(err)
	}
	if n := sub.LeasedBytes(); n != s.Backlog.Bytes-fresh { // a body has one byte
		m.t.Fatalf("%d bytes are leased, want %d", n, s.Backlog.Bytes-fresh)
	}
	page, err := m.b.Parked("g", status.ParkedQuery{State: "parked"})
	sum := int64(0)
	for _, p := range page.Groups {
		sum += p.Messages
	}
	if err != nil || int64(len(page.Groups)) != s.ParkedGroups || sum != s.Parked {
		m.t.Fatalf("parked: %+v, %v; the counters are %+v", page, err, s)
	}
}

// Random operations, changes of the setting and restarts: no message overtakes
// another one of its message group, and in the end all are there.
func TestParkingKeepsOrder(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(8), runParkModel)
}

func runParkModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &parkModel{
		t: t, rnd: rnd, sent: map[string]int{}, done: map[string]map[int]bool{},
		flying: map[string]*tidegate.Delivery{}, until: map[string]time.Time{},
		modes: []settings.OnExhausted{settings.OnExhaustedPark, settings.OnExhaustedPark, settings.OnExhaustedBlock, settings.OnExhaustedDeadLetter}[:1+rnd.IntN(4)],
	}
	fs := vfs.NewMem()
	m.b = open(t, broker.Options{Dir: "data"}.On(fs))
	putTopic(t, m.b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1 + rnd.IntN(3)})
	putGroup(t, m.b, "g", m.config())
	for range 150 {
		switch n := rnd.IntN(20); {
		case n < 4:
			m.send()
		case n < 10:
			m.receive()
		case n < 14:
			m.settle(false)
		case n < 15:
			m.redrive()
		case n < 16:
			putGroup(t, m.b, "g", m.config())
		case n < 18:
			time.Sleep(time.Duration(rnd.IntN(8000)) * time.Millisecond)
		case n < 19 && rnd.IntN(2) == 0:
			if err := m.b.Close(); err != nil {
				t.Fatal(err)
			}
			m.b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
		synctest.Wait()
		m.check()
	}
	for idle := 0; idle < 3; idle++ {
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if _, err := m.b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		for m.receive() > 0 {
			idle = 0
			m.settle(true)
			synctest.Wait()
		}
		m.check()
	}
	for group, n := range m.sent {
		for i := range n {
			if !m.done[group][i] && !m.dead(group, i) {
				t.Errorf("%s:%d is lost", group, i)
			}
		}
	}
	if g, err := m.b.Group("g"); err != nil || len(g.Topics) > 0 && g.Topics[0].Backlog != (status.Backlog{}) {
		t.Errorf("the group is left with %+v, %v", g.Topics, err)
	}
}
