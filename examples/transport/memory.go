package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A memory is a server in this process and the transport to it. Topics and groups need no creation.
// It embeds transport.Base, so it has no capabilities.
type memory struct {
	transport.Base
	groups func(group string) transport.ConsumerSettings

	mu      sync.Mutex // guards the following fields
	closed  bool
	log     []tidegate.Delivery // all messages, in their order
	states  map[string][]*state // by group: the state of each message of the log
	leases  map[string]*state   // by handle
	repeats map[string][]*state // by group and AttemptID: the messages that the receive returned
	changed chan struct{}       // closed and replaced when a receive has to look again
	serial  int                 // of the last handle
}

// A state is the state of one message for one group.
type state struct {
	tidegate.Delivery           // Handle is empty while the message is not in flight
	due               time.Time // when it can be delivered (again)
	done              bool      // acknowledged or dead
}

func newMemory(groups func(group string) transport.ConsumerSettings) *memory {
	return &memory{groups: groups, states: map[string][]*state{}, leases: map[string]*state{}, repeats: map[string][]*state{}, changed: make(chan struct{})}
}

// ended returns the error of a call that must change nothing. m.mu is held.
func (m *memory) ended(ctx context.Context) error {
	if m.closed {
		return &tidegate.Error{Err: tidegate.ErrClosed}
	}
	return context.Cause(ctx)
}

// wake ends the waits of all receives. m.mu is held.
func (m *memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// store adds a message to the log. m.mu is held.
func (m *memory) store(msg *tidegate.Message) {
	d := tidegate.Delivery{Message: *msg.Clone(), Endpoint: "memory", Queue: -1, Offset: -1, BornAt: time.Now(), BornHost: "memory", StoredAt: time.Now()}
	d.Body = slices.Clone(msg.Body)
	m.log = append(m.log, d)
	m.wake()
}

func (m *memory) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]transport.SendResult, len(msgs))
	for i, msg := range msgs {
		if results[i].Err = cmp.Or(m.ended(ctx), msg.Validate(0)); results[i].Err == nil {
			m.store(msg)
			results[i].Receipt = tidegate.Receipt{MessageID: msg.ID, Topic: msg.Topic, Queue: -1, Offset: -1, Endpoint: "memory"}
		}
	}
	return results
}

func (m *memory) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	end := time.Now().Add(r.Wait)
	for {
		m.mu.Lock()
		err := cmp.Or(m.ended(ctx), tidegate.ValidateGroup(r.Group))
		if r.Filter.SQL || r.Repeat {
			err = cmp.Or(err, error(&tidegate.Error{Op: "ReceiveMessage", Subject: r.Topic, Code: tidegate.CodeNotImplemented}))
		}
		if err != nil {
			m.mu.Unlock()
			return nil, err
		}
		ds, next := m.take(r, time.Now(), end)
		changed := m.changed
		m.mu.Unlock()
		if len(ds) > 0 || !time.Now().Before(end) {
			return ds, nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// take delivers the due messages, and returns the time at which the next one is due, or end.
func (m *memory) take(r transport.ReceiveRequest, now, end time.Time) (ds []*tidegate.Delivery, next time.Time) {
	var taken []*state
	for _, s := range m.repeats[r.Group+"/"+r.AttemptID] { // the response of an earlier receive was lost
		if r.AttemptID != "" && !s.done && s.Handle != "" && now.Before(s.due) {
			taken = append(taken, s)
		}
	}
	settings, blocked, size, again := m.groups(r.Group), map[string]bool{}, 0, len(taken) > 0
	for i := 0; i < len(m.log) && !again; i++ { // an ended last attempt adds a dead letter to the log
		s := m.state(r.Group, i)
		if s.Topic != r.Topic || s.done || !selects(r.Filter, s.Tag) {
			continue
		}
		if s.Handle != "" && !now.Before(s.due) && m.fail(s, now) { // the end of a lease is a failure
			continue
		}
		mg := s.MessageGroup
		switch full := len(taken) >= max(1, r.Max) || r.MaxBytes > 0 && len(taken) > 0 && size+len(s.Body) > r.MaxBytes; {
		case settings.FIFO && mg != "" && blocked[mg]:
		case now.Before(s.due):
			if s.due.Before(end) {
				end = s.due
			}
		case !full:
			s.Attempt++
			m.lease(s, now.Add(r.InvisibleDuration))
			taken, size = append(taken, s), size+len(s.Body)
		}
		blocked[mg] = true // for its successors, in a FIFO group
	}
	if r.AttemptID != "" {
		m.repeats[r.Group+"/"+r.AttemptID] = taken
	}
	for _, s := range taken {
		d := s.Delivery
		d.Message, d.Body = *s.Message.Clone(), slices.Clone(s.Body)
		ds = append(ds, &d)
	}
	return ds, end
}

// state returns the state of message i of the log for a group.
func (m *memory) state(group string, i int) *state {
	for n := len(m.states[group]); n <= i; n++ {
		s := &state{Delivery: m.log[n], due: m.log[n].DeliverAt}
		s.ConsumerGroup = group
		m.states[group] = append(m.states[group], s)
	}
	return m.states[group][i]
}

// lease gives the delivery a new handle.
func (m *memory) lease(s *state, until time.Time) {
	delete(m.leases, s.Handle)
	m.serial++
	s.Handle, s.due, s.InvisibleUntil = strconv.Itoa(m.serial), until, until
	m.leases[s.Handle] = s
}

// fail ends an attempt. It reports whether it was the last one; then it makes a dead letter.
func (m *memory) fail(s *state, due time.Time) bool {
	delete(m.leases, s.Handle)
	s.Handle, s.due = "", due
	if last := m.groups(s.ConsumerGroup).MaxAttempts; last > 0 && s.Attempt >= last {
		m.bury(s)
	}
	return s.done
}

// bury makes the message a dead letter of the group.
func (m *memory) bury(s *state) {
	delete(m.leases, s.Handle)
	s.done = true
	letter := s.Message.Clone()
	letter.Topic = tidegate.DeadLetterTopic(s.ConsumerGroup)
	m.store(letter)
}

func selects(f tidegate.Filter, tag string) bool {
	all := f.Expression == "" || f.Expression == "*"
	return all || slices.ContainsFunc(strings.Split(f.Expression, "||"), func(t string) bool { return strings.TrimSpace(t) == tag })
}

func (m *memory) ProducerSettings(ctx context.Context, _ string) (transport.ProducerSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return transport.ProducerSettings{MaxAttempts: 3, MaxBodySize: tidegate.MaxBodySize}, m.ended(ctx)
}

func (m *memory) ConsumerSettings(ctx context.Context, group, _ string) (transport.ConsumerSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups(group), m.ended(ctx)
}

func (m *memory) Queues(ctx context.Context, _, _ string) ([]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return []int{transport.AnyQueue}, m.ended(ctx)
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.wake()
	return nil
}
