// Command transport shows how to write a transport for another server: type memory is
// a transport to a server in this process, and memory_test.go runs the suite of package
// transporttest on it. A producer and a consumer work with it like with every other transport. The
// handler fails once, so the message is delivered twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "transport:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	m := newMemory(func(string) transport.ConsumerSettings {
		return transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps{100 * time.Millisecond}}
	})
	defer m.Close()
	p, err := producer.New(m, producer.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("hello")}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	handler := func(_ context.Context, d *tidegate.Delivery) error {
		fmt.Fprintf(out, "attempt %d: %s\n", d.Attempt, d.Body)
		if d.Attempt == 1 {
			return errors.New("try again")
		}
		cancel()
		return nil
	}
	c, err := consumer.NewPush(m, consumer.Subscription{Group: "billing", Topic: "orders"}, handler, consumer.PushOptions{})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

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

// do calls f with m.mu held, unless the transport is closed or ctx has ended.
func (m *memory) do(ctx context.Context, f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return &tidegate.Error{Err: tidegate.ErrClosed}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return f()
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
	results := make([]transport.SendResult, len(msgs))
	for i, msg := range msgs {
		results[i].Receipt = tidegate.Receipt{MessageID: msg.ID, Topic: msg.Topic, Queue: -1, Offset: -1, Endpoint: "memory"}
		results[i].Err = m.do(ctx, func() error {
			err := msg.Validate(0)
			if err == nil {
				m.store(msg)
			}
			return err
		})
	}
	return results
}

func (m *memory) Receive(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, err error) {
	if r.Filter.SQL || r.Repeat {
		return nil, &tidegate.Error{Op: "ReceiveMessage", Subject: r.Topic, Code: tidegate.CodeNotImplemented}
	}
	if err := tidegate.ValidateGroup(r.Group); err != nil {
		return nil, err
	}
	end := time.Now().Add(r.Wait)
	for {
		var next time.Time
		var changed chan struct{}
		err := m.do(ctx, func() error {
			ds, next = m.take(r, time.Now(), end)
			changed = m.changed
			return nil
		})
		if err != nil || len(ds) > 0 || !time.Now().Before(end) {
			return ds, err
		}
		select {
		case <-changed:
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
		}
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
func (m *memory) lease(s *state, until time.Time) (handle string) {
	delete(m.leases, s.Handle)
	m.serial++
	s.Handle, s.due, s.InvisibleUntil = strconv.Itoa(m.serial), until, until
	m.leases[s.Handle] = s
	return s.Handle
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

// settle calls change with the state that d's handle names.
func (m *memory) settle(ctx context.Context, d *tidegate.Delivery, change func(s *state)) error {
	return m.do(ctx, func() error {
		s := m.leases[d.Handle]
		if s == nil || !time.Now().Before(s.due) {
			return &tidegate.Error{Subject: d.Topic, Endpoint: "memory", Code: tidegate.CodeInvalidReceiptHandle}
		}
		change(s)
		m.wake()
		return nil
	})
}

func (m *memory) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = m.settle(ctx, d, func(s *state) { s.done = true; delete(m.leases, s.Handle) })
	}
	return errs
}

// Settle counts the attempt of a Release, because the server announces no Capabilities.Suspend.
func (m *memory) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (r transport.RetryResult, err error) {
	switch v.Kind {
	case transport.Release, transport.Retry: // the Delay of a Release is 0
		return r, m.settle(ctx, d, func(s *state) { m.fail(s, time.Now().Add(v.Delay)) })
	case transport.DeadLetter:
		return r, m.settle(ctx, d, m.bury)
	}
	return r, v.Unsupported(d)
}

func (m *memory) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (handle string, err error) {
	err = m.settle(ctx, d, func(s *state) { handle = m.lease(s, time.Now().Add(dur)) })
	return handle, err
}

func (m *memory) ProducerSettings(ctx context.Context, _ string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{MaxAttempts: 3, MaxBodySize: tidegate.MaxBodySize}, m.do(ctx, func() error { return nil })
}

func (m *memory) ConsumerSettings(ctx context.Context, group, _ string) (transport.ConsumerSettings, error) {
	return m.groups(group), m.do(ctx, func() error { return nil })
}

func (m *memory) Queues(ctx context.Context, _, _ string) ([]int, error) {
	return []int{transport.AnyQueue}, m.do(ctx, func() error { return nil })
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.wake()
	return nil
}
