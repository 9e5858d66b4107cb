package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
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
	assert.That(t, m.looks <= 3*m.events, "receives have looked %d times, with %d events", m.looks, m.events)
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
	x.request.begin()
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
		assert.MustThat(m.t, n <= 10_000, "receives wake each other without end")
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

// noMemory rejects all bodies.
type noMemory struct{}

func (noMemory) Admit(int64) error { return errNoMemory }

// retried has retry topics for the group.
type retried struct {
	*subscriptionFixture
	subscriptions func() []*Subscription
}

func (r retried) RetrySubscriptions(context.Context, *Subscription) ([]*Subscription, error) {
	return r.subscriptions(), nil
}

// newWatch returns a watch and the number of times that it was woken.
func newWatch() (*Watch, *int) {
	n := new(int)
	return NewWatch(func() { *n++ }), n
}

func watching(w *Watch) *Request {
	return &Request{ReceiveRequest: transport.ReceiveRequest{Topic: "t", Queue: transport.AnyQueue, Max: 1}, Watch: w}
}

// A watch is at each source of its receive. The source that wakes it forgets it, the end removes it
// from the others.
func TestWatchLeavesNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		retry := newSubscription(&f.Env, f.group, f.create("retry", settings.Topic{Queues: 1}), false)
		defer retry.Stop()
		f.Topics = retried{f, func() []*Subscription { return []*Subscription{retry} }}
		first, woken := newWatch()
		second, wokenToo := newWatch()
		for _, w := range []*Watch{first, second} {
			if ds, err := s.Receive(t.Context(), watching(w)); len(ds) > 0 || err != nil || !w.Left() {
				t.Fatalf("%d messages, left %t, error %v", len(ds), w.Left(), err)
			}
		}
		time.Sleep(time.Hour)
		if len(s.watches) != 2 || len(retry.watches) != 2 || s.Idle(time.Second, time.Now()) || retry.Idle(time.Second, time.Now()) {
			t.Fatalf("%d and %d watches, want 2 in each, and no idle subscription", len(s.watches), len(retry.watches))
		}
		f.send(message("a", ""))
		if len(s.watches) != 0 || *woken != 1 || *wokenToo != 1 {
			t.Errorf("a message has woken the watches %d and %d times, and %d are left", *woken, *wokenToo, len(s.watches))
		}
		retry.Wake(1, 0)
		assert.That(t, *woken == 1 && *wokenToo == 1, "a watch is woken again")
		third, _ := newWatch()
		assert.Must(t, assert.Err(retry.Receive(t.Context(), watching(third))))
		first.End()
		second.End()
		assert.Equal(t, "watches are left after the end of all but one", len(retry.watches), 1)
		third.End()
		third.End() // has no effect
		assert.That(t, len(s.watches) == 0 && len(retry.watches) == 0, "%d and %d watches are left", len(s.watches), len(retry.watches))
		if now := time.Now(); s.Idle(time.Second, now) || !s.Idle(time.Second, now.Add(time.Second)) {
			t.Error("a watch does not count as a look for messages until its end")
		}
	})
}

// A receive that looks for messages several times decides each time about its watch.
func TestWatchOfAReceiveThatLooksAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		w, woken := newWatch()
		p := watching(w)
		p.begin()
		var err error
		if p.match, err = filter.Tags("this"); err != nil {
			t.Fatal(err)
		}
		look := func() error {
			_, lines, err := takeFirst(t.Context(), []subscriptionSource{{s, p}})
			leave(lines)
			return err
		}
		f.send(message("a", "other"))
		if err := look(); err != nil || !w.Left() || len(s.watches) != 1 {
			t.Errorf("a look that skips all messages: error %v, left %t, %d watches", err, w.Left(), len(s.watches))
		}
		if err := look(); err != nil || !w.Left() || len(s.watches) != 1 || *woken != 0 {
			t.Errorf("a look without messages: error %v, left %t, %d watches, woken %d times", err, w.Left(), len(s.watches), *woken)
		}
		p.Memory = noMemory{}
		f.send(message("b", "this"))
		if err := look(); err == nil || w.Left() || len(s.watches) != 0 || *woken != 1 {
			t.Errorf("a look that fails: error %v, left %t, %d watches, woken %d times", err, w.Left(), len(s.watches), *woken)
		}
		w.End()
	})
}

// A retry topic that is created or deleted while a receive looks for messages is not among its
// sources. The receive cannot leave the watch there, so it wakes the watch.
func TestWatchOfOutdatedSources(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s, retry *Subscription) []*Subscription{
		"created": func(s, _ *Subscription) []*Subscription {
			defer s.AddSource()
			return nil
		},
		"deleted": func(_, retry *Subscription) []*Subscription {
			retry.Close(refusal.TopicNotFound("retry"))
			return []*Subscription{retry}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newSubscriptionFixture(t)
			s := f.subscribe(false)
			retry := newSubscription(&f.Env, f.group, f.create("retry", settings.Topic{Queues: 1}), false)
			defer retry.Stop()
			f.Topics = retried{f, func() []*Subscription { return change(s, retry) }}
			w, woken := newWatch()
			ds, err := s.Receive(t.Context(), watching(w))
			if len(ds) > 0 || err != nil || !w.Left() || *woken != 1 {
				t.Errorf("%s: %d messages, error %v, left %t, woken %d times; want a watch that was woken", name, len(ds), err, w.Left(), *woken)
			}
			if w.End(); len(s.watches) != 0 {
				t.Errorf("%s: a watch is left", name)
			}
		})
	}
}

// The end of a subscription wakes its watches: the next receive reports the reason.
func TestCloseWakesWatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		w, woken := newWatch()
		assert.Must(t, assert.Err(s.Receive(t.Context(), watching(w))))
		if s.Close(refusal.GroupNotFound("g")); *woken != 1 || len(s.watches) != 0 {
			t.Errorf("woken %d times, and %d watches are left", *woken, len(s.watches))
		}
		late, _ := newWatch()
		if _, err := s.Receive(t.Context(), watching(late)); err == nil || late.Left() || len(s.watches) != 0 {
			t.Errorf("after the end, a receive has the error %v and leaves a watch: %t", err, late.Left())
		}
	})
}
