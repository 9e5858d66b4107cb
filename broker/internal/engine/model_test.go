package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

// A receiveModel plays the producers and consumers of a subscription. Receives take turns: one of
// them looks, and others act while it reads messages.
type receiveModel struct {
	*subscriptionFixture
	s       *Subscription
	r       *rand.Rand
	fifo    bool
	lines   map[string][]*letter // messages that must be delivered one after the other
	letters map[store.Place]*letter
	held    []*letter
	waiting []*receiver
	reading int // receives that read messages
	number  int
	events  int
	looks   int
}

// A letter is a message that is not consumed.
type letter struct {
	line    string
	place   store.Place
	held    bool
	receipt consume.Handle // if it is held
	ready   time.Time      // the earliest delivery, if it is not held
}

// A receiver is a receive.
type receiver struct {
	request *Request
	waiter  *waiter
}

// While no woken receive is about to look, no receive waits for a message that it can take. Each
// receive looks once, and again only for a message that has become ready since or for a receive
// that has left messages.
func TestReceiveModel(t *testing.T) {
	t.Parallel()
	model.Run(t, 40, func(t *testing.T, r *rand.Rand) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { runReceiveModel(t, r) })
	})
}

func runReceiveModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &receiveModel{subscriptionFixture: newSubscriptionFixture(t), r: r, lines: map[string][]*letter{}, letters: map[store.Place]*letter{}, fifo: r.IntN(2) == 0}
	m.topic = m.create("orders", settings.Topic{Queues: 2})
	m.group.SetSettings(settings.Group{FIFO: m.fifo, MaxAttempts: -1}.WithDefaults())
	m.s = m.subscribe(false)
	for n := 0; n < 800 && !t.Failed(); n++ {
		m.step()
		if r.IntN(4) == 0 {
			m.settle()
		}
	}
	m.settle()
	if m.looks > 3*m.events {
		t.Errorf("receives have looked %d times, with %d events", m.looks, m.events)
	}
}

// step makes one random event happen.
func (m *receiveModel) step() {
	switch n := m.r.IntN(100); {
	case n < 20:
		m.send(1 + m.r.IntN(3))
	case n < 50:
		m.receive()
	case n < 55 && len(m.waiting) > 0:
		m.leave(m.r.IntN(len(m.waiting)))
	case n < 80 && len(m.held) > 0:
		m.end(m.r.IntN(len(m.held)))
	case n < 90:
		m.goOn()
	case n < 91:
		m.s.ForgetReadAhead()
	case n < 95 && m.reading == 0: // time passes
		<-time.After(time.Duration(m.r.IntN(4000)) * time.Millisecond)
		synctest.Wait()
	}
}

// send stores messages in one queue.
func (m *receiveModel) send(n int) {
	q := m.topic.Queues()[m.r.IntN(2)]
	var ms []store.Message
	for range n {
		m.number++
		x := &letter{line: fmt.Sprint(m.number), ready: time.Now(), place: store.Place{Topic: m.topic.ID(), Queue: q.Number(), Offset: q.Next().Offset + int64(len(ms))}}
		msg := message(x.line, "")
		if m.fifo && m.r.IntN(4) > 0 {
			x.line = fmt.Sprintf("queue %d, group %d", q.Number(), m.r.IntN(3))
			msg.MessageGroup = x.line
		}
		m.lines[x.line], m.letters[x.place] = append(m.lines[x.line], x), x
		ms = append(ms, msg)
	}
	m.events += n
	if err := m.Store.Messages.Add(func(w *store.Batch) {
		for i := range ms {
			m.topic.Put(w, q, &ms[i], time.Now())
		}
	}, func(error) {
		q.Publish(q.Next().Offset)
		m.topic.Wake(q, int64(n))
	}).Wait(); err != nil {
		m.t.Error(err)
	}
}

var errNoMemory = errors.New("no memory for the messages")

// A meanwhile is the memory of a receive, of which there may be none. Others act when it is asked
// for.
type meanwhile struct {
	m    *receiveModel
	none bool
}

func (w meanwhile) Admit(int64) error {
	w.m.meanwhile()
	if w.none {
		return errNoMemory
	}
	return nil
}

// receive begins a receive. Others act while it reads, and some find no memory.
func (m *receiveModel) receive() {
	x := &receiver{request: &Request{ReceiveRequest: transport.ReceiveRequest{Queue: m.r.IntN(3) - 1, Max: 1 + m.r.IntN(4), InvisibleDuration: time.Hour}}}
	refuses := m.r.IntN(20) == 0
	x.request.Memory = meanwhile{m, refuses}
	m.events++
	m.look(x)
}

// meanwhile lets others act.
func (m *receiveModel) meanwhile() {
	if m.reading > 2 {
		return
	}
	for range m.r.IntN(3) {
		m.step()
	}
}

// look lets a receive take messages or wait.
func (m *receiveModel) look(x *receiver) {
	m.reading++
	defer func() { m.reading-- }()
	for range 100 {
		m.looks++
		grants, _, w, err := m.s.take(x.request)
		for _, g := range grants {
			m.taken(g)
		}
		if x.waiter = w; w != nil {
			m.waiting = append(m.waiting, x)
		}
		if w != nil || err != nil || len(grants) > 0 {
			return
		}
	}
	m.t.Error("a receive looks for messages without end")
}

// taken notes a delivery.
func (m *receiveModel) taken(g consume.Grant) {
	x := m.letters[g.Receipt.Place]
	if x == nil || !m.takeable(x) {
		m.t.Errorf("a message is delivered that is consumed, delivered, or not ready: %+v", x)
		return
	}
	x.held, x.receipt = true, g.Receipt
	m.held = append(m.held, x)
}

// takeable reports whether a receive may take the message now.
func (m *receiveModel) takeable(x *letter) bool {
	return !x.held && !x.ready.After(time.Now()) && m.lines[x.line][0] == x
}

// leave ends a receive that waits, also one that was woken.
func (m *receiveModel) leave(i int) {
	x := m.waiting[i]
	m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
	m.events++
	m.s.leave(x.waiter)
}

// end acknowledges a delivery, reports its failure or releases it.
func (m *receiveModel) end(i int) {
	x := m.held[i]
	m.held = append(m.held[:i], m.held[i+1:]...)
	m.events++
	x.held = false
	switch m.r.IntN(4) {
	case 0, 1:
		delete(m.letters, x.place)
		if m.lines[x.line] = m.lines[x.line][1:]; len(m.lines[x.line]) == 0 {
			delete(m.lines, x.line)
		}
		errs := make([]error, 1)
		if m.s.Ack([]consume.Handle{x.receipt}, errs); errs[0] != nil {
			m.t.Error(errs[0])
		}
	case 2:
		x.ready = time.Now()
		m.s.Release([]consume.Handle{x.receipt})
	case 3:
		after := time.Duration(1+m.r.IntN(8)) * time.Second
		x.ready = time.Now().Add(after)
		if _, _, _, err := m.s.settleUnsynced(func(policy *consume.Policy, now time.Time) (consume.Outcome, error) {
			return m.s.progress.Settle(x.receipt, transport.Verdict{Kind: transport.Retry, Delay: after}, 0, policy, now)
		}); err != nil {
			m.t.Error(err)
		}
	}
}

// goOn lets a woken receive look again, and reports whether there was one.
func (m *receiveModel) goOn() bool {
	for i, x := range m.waiting {
		select {
		case <-x.waiter.woken:
			m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
			m.look(x)
			return true
		default:
		}
	}
	return false
}

// settle lets all woken receives look, and checks that none of the others can take a message.
func (m *receiveModel) settle() {
	synctest.Wait()
	m.events++
	for n := 0; m.goOn(); n++ {
		if n > 10_000 {
			m.t.Fatal("receives wake each other without end")
		}
	}
	for _, x := range m.letters {
		for _, w := range m.waiting {
			if q := w.request.Queue; m.takeable(x) && (q == transport.AnyQueue || q == int(x.place.Queue)) {
				m.t.Errorf("a receive of queue %d waits, although a message of queue %d is ready", q, x.place.Queue)
				return
			}
		}
	}
}
