package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/model"
)

// A spoolModel plays the topics, the disk and the goroutines of a producer with a spool.
type spoolModel struct {
	p        *Producer
	t        *testing.T
	r        *rand.Rand
	added    []*item          // to the spool, and not written yet, in their order
	writing  []*item          // of the write under way
	groups   map[string]int   // messages of them, and of those whose result is not stored
	results  map[*item]result // of the writes whose results are not stored
	ready    []func()         // goroutines that are starting
	number   int
	adds     int
	writes   int
	finished int
}

type result struct{ err error }

// Each message for the spool is written once, in order, and has the result of its write. A message
// that waits has a goroutine, and no write is without messages. A later message of a message group
// follows the earlier ones until they are written.
func TestSpoolWriterModel(t *testing.T) { model.Run(t, 60, runSpoolModel) }

func runSpoolModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &spoolModel{t: t, r: r, groups: map[string]int{}, results: map[*item]result{}}
	var err error
	if m.p, err = New(script(), Options{Spool: m}); err != nil {
		t.Fatal(err)
	}
	m.p.spooler.start = func(run func()) {
		m.p.ledger.Running.Add(1)
		m.ready = append(m.ready, run)
	}
	for n := 0; n < 3000 && !t.Failed(); n++ {
		m.step()
	}
	for len(m.ready) > 0 && !t.Failed() {
		m.run()
	}
	m.check()
	if m.finished != m.adds || m.writes > m.adds || len(m.p.topics["orders"].spooling) > 0 {
		t.Errorf("%d of %d messages have a result, after %d writes; the topic waits for writes of %v", m.finished, m.adds, m.writes, m.p.topics["orders"].spooling)
	}
	if !t.Failed() {
		_ = m.p.Close()
	}
}

// step makes one random event happen.
func (m *spoolModel) step() {
	switch n := m.r.IntN(1000); {
	case n == 0:
		for range m.r.IntN(3 * maxSpooled) {
			m.add()
		}
	case n < 700:
		m.add()
	case len(m.ready) > 0:
		m.run()
	}
	m.check()
}

// add lets a message move to the spool.
func (m *spoolModel) add() {
	m.number++
	msg := &tidegate.Message{ID: fmt.Sprint(m.number), Topic: "orders", MessageGroup: []string{"", "a", "b", "c"}[m.r.IntN(4)]}
	it := newItem(m.t.Context(), msg)
	it.topic, it.wake = m.p.use("orders"), make(chan struct{})
	if !m.p.ledger.Admit(it, &it.entry, 1) {
		m.t.Error("the producer is closed")
		return
	}
	it.topic.mu.Lock()
	defer it.topic.mu.Unlock()
	if it.topic.diverts(it) != (m.groups[msg.MessageGroup] > 0) {
		m.t.Errorf("a message of a group with %d messages on their way to the spool follows them: %v", m.groups[msg.MessageGroup], it.topic.diverts(it))
	}
	if msg.MessageGroup != "" {
		m.groups[msg.MessageGroup]++
	}
	m.adds++
	m.added = append(m.added, it)
	it.topic.spool(it, it.fail(StopThrottled, nil))
}

// run runs a goroutine of the producer until it ends.
func (m *spoolModel) run() {
	run := m.ready[0]
	m.ready = m.ready[1:]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer m.p.ledger.Running.Done()
		defer m.store()
		run()
	}()
	<-ended
}

// PutBatch implements Spool. Other events happen meanwhile.
func (m *spoolModel) PutBatch(_ context.Context, msgs []*tidegate.Message) []error {
	m.store()
	if m.writes++; len(msgs) == 0 || len(msgs) > maxSpooled || len(msgs) < min(len(m.added), maxSpooled) {
		m.t.Errorf("a write of %d messages, and %d wait", len(msgs), len(m.added))
	}
	if len(m.ready) > 0 {
		m.t.Error("a write has begun, and another goroutine is starting")
	}
	m.writing = m.added[:len(msgs):len(msgs)]
	m.added = m.added[len(msgs):]
	errs := make([]error, len(msgs))
	wrong, goexit := m.r.IntN(20) == 0, m.r.IntN(20) == 0
	for i, it := range m.writing {
		if msgs[i] != it.Message {
			m.t.Errorf("message %s is written in the place of %s", msgs[i].ID, it.Message.ID)
		}
		if m.r.IntN(4) == 0 {
			errs[i] = errDisk
		}
		m.results[it] = result{errs[i]}
		if wrong || goexit {
			m.results[it] = result{errOther}
		}
	}
	for range m.r.IntN(4) {
		m.add()
		m.check()
	}
	switch {
	case goexit:
		runtime.Goexit()
	case wrong:
		return errs[1:]
	}
	return errs
}

var errDisk, errOther = errors.New("the disk is full"), errors.New("another error")

// store checks the results of the last write, which the producer has stored meanwhile.
func (m *spoolModel) store() {
	for _, it := range m.writing {
		want := m.results[it].err
		switch {
		case want == nil && (it.state != spooled || it.err != nil || !it.receipt.Spooled),
			want != nil && (it.state != failed || it.err == nil),
			errors.Is(want, errDisk) != (it.err != nil && errors.Is(it.err, errDisk)):
			m.t.Errorf("the result of a message is in state %d with %v, want %v", it.state, it.err, want)
		}
		select {
		case <-it.wake:
		default:
			m.t.Error("a message has its result, and its caller still waits")
		}
		m.finished++
		if m.groups[it.Message.MessageGroup]--; m.groups[it.Message.MessageGroup] <= 0 {
			delete(m.groups, it.Message.MessageGroup)
		}
		delete(m.results, it)
	}
	m.writing = nil
}

// check checks that a message which waits has a goroutine.
func (m *spoolModel) check() {
	if len(m.writing) == 0 && len(m.added) > 0 && len(m.ready) == 0 || len(m.ready) > 1 {
		m.t.Errorf("%d messages wait for a write, and %d goroutines are starting", len(m.added), len(m.ready))
	}
}

// Holds implements Spool.
func (m *spoolModel) Holds(string, string) bool { return false }

// Drain implements Spool.
func (m *spoolModel) Drain(ctx context.Context, _ func(context.Context, []*tidegate.Message) []error) error {
	<-ctx.Done()
	return nil
}
