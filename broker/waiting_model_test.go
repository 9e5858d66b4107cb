package broker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Random sends, retries and waiting receives, of any queue and of one queue, some of them
// cancelled. No receive waits while a message is ready that it can take, and each receive ends at
// its time.
func TestWaitingReceivesModel(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(150), func(t *testing.T, seed uint64) {
		m := &waitingModel{t: t, b: open(t, broker.Options{}), rnd: rand.New(rand.NewPCG(seed, 0)), queueOf: map[string]int{}, readyAt: map[string]time.Time{}, waiting: map[*waitingReceive]bool{}}
		putTopic(t, m.b, "t", settings.Topic{Queues: 2})
		putGroup(t, m.b, "g", settings.Group{MaxAttempts: -1})
		for range 80 {
			for range 1 + m.rnd.IntN(4) { // at once, as a message and a cancellation that meet
				m.step()
			}
			synctest.Wait()
			m.check()
		}
		<-time.After(time.Minute)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.waiting) > 0 {
			t.Errorf("%d receives wait after the last one's time", len(m.waiting))
		}
	})
}

type waitingModel struct {
	t   *testing.T
	b   *broker.Broker
	rnd *rand.Rand

	mu      sync.Mutex
	sent    map[string]int       // the queue of each message that was sent; nil: not needed
	queueOf map[string]int       // of each message that is not consumed
	readyAt map[string]time.Time // of those that are not in flight
	held    []*tidegate.Delivery
	waiting map[*waitingReceive]bool
}

type waitingReceive struct {
	queue  int
	cancel context.CancelFunc
}

func (m *waitingModel) step() {
	switch m.rnd.IntN(8) {
	case 0, 1:
		for range 1 + m.rnd.IntN(3) {
			id := tidegate.NewMessageID()
			m.mu.Lock() // held over the send, so that its receive is noted after it
			r := m.b.Send(m.t.Context(), []*tidegate.Message{{ID: id, Topic: "t", Body: []byte("x")}})[0]
			if r.Err != nil {
				m.t.Error(r.Err)
			}
			m.queueOf[id], m.readyAt[id] = r.Receipt.Queue, time.Now()
			if m.sent != nil {
				m.sent[id] = r.Receipt.Queue
			}
			m.mu.Unlock()
		}
	case 2, 3, 4:
		m.receive()
	case 5:
		m.mu.Lock()
		var d *tidegate.Delivery
		if n := len(m.held); n > 0 {
			i := m.rnd.IntN(n)
			d, m.held[i] = m.held[i], m.held[n-1]
			m.held = m.held[:n-1]
		}
		m.mu.Unlock()
		if d == nil {
			return
		}
		if m.rnd.IntN(2) == 0 {
			if err := m.b.Ack(m.t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
				m.t.Error(err)
			}
			m.mu.Lock()
			delete(m.queueOf, d.ID)
			m.mu.Unlock()
			return
		}
		after := time.Duration(1+m.rnd.IntN(20)) * time.Second
		if _, err := m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: after}); err != nil {
			m.t.Error(err)
		}
		m.mu.Lock()
		m.readyAt[d.ID] = time.Now().Add(after)
		m.mu.Unlock()
	case 6:
		m.mu.Lock()
		for w := range m.waiting {
			w.cancel()
			break
		}
		m.mu.Unlock()
	case 7:
		<-time.After(time.Duration(m.rnd.Int64N(int64(10 * time.Second))))
	}
}

func (m *waitingModel) receive() {
	ctx, cancel := context.WithCancel(m.t.Context())
	w := &waitingReceive{queue: m.rnd.IntN(3) - 1, cancel: cancel}
	wait := time.Duration(1+m.rnd.IntN(30)) * time.Second
	r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: w.queue, Max: 1 + m.rnd.IntN(4), Wait: wait, InvisibleDuration: 10 * time.Hour}
	begin := time.Now()
	m.mu.Lock()
	m.waiting[w] = true
	m.mu.Unlock()
	go func() {
		defer cancel()
		ds, err := m.b.Receive(ctx, r)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiting, w)
		m.held = append(m.held, ds...)
		for _, d := range ds {
			delete(m.readyAt, d.ID)
		}
		took := time.Since(begin)
		switch {
		case err != nil && !errors.Is(err, context.Canceled):
			m.t.Error(err)
		case err == nil && len(ds) == 0 && took != wait, took > wait:
			m.t.Errorf("a receive of %v ended with %d messages after %v", wait, len(ds), took)
		}
	}()
}

// check compares the waiting receives with the ready messages. Nothing runs meanwhile.
func (m *waitingModel) check() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range m.readyAt {
		if at.After(time.Now()) {
			continue
		}
		for w := range m.waiting {
			if w.queue < 0 || w.queue == m.queueOf[id] {
				m.t.Errorf("a receive of queue %d waits, although a message of queue %d is ready since %v", w.queue, m.queueOf[id], time.Since(at))
				return
			}
		}
	}
}
