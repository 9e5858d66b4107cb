package transporttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A model is the contract in its shortest form: it exists to test the suite.
type model struct {
	mu         sync.Mutex
	topics     map[string]settings.TopicType
	groups     map[string]transport.ConsumerSettings
	log        []*tidegate.Delivery // of every message, as delivered the first time
	copies     map[string]*subCopy  // group, log index → the group's copy
	replays    map[string][]*tidegate.Delivery
	wake       chan struct{} // closed and replaced at every change
	closed     chan struct{}
	serial     int
	server     Server
	letters    map[string][]*tidegate.Message // by group, not yet in its dead letter queue
	told       bool                           // there was a response, so that the client knows can
	lite       map[transport.LiteConsumer]map[string]bool
	fault      string                    // makes the model break one promise; empty for none
	cut        bool                      // there is no connection
	swallowing *transport.ReceiveRequest // of a receive that was cancelled; see fault
}

type subCopy struct {
	replaced, changed string // handles: of the last change, and the one that it returned
	attempt           int
	due               time.Time // when it can be delivered (again)
	held              bool      // in flight, as opposed to waiting
	push              bool
	uncounted         bool // the attempt does not count when the lease ends, by a fault
	handle            string
	done              bool
}

// everything has all capabilities of the model.
var everything = transport.Capabilities{Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatChange: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck, Watch: true}

// perfect is a server that keeps all promises and has everything.
func perfect() Server {
	s := AllGuarantees()
	s.Capabilities, s.Virtual = everything, true
	return s
}

func newModel(server Server) *model {
	return &model{
		server: server, letters: map[string][]*tidegate.Message{},
		topics: map[string]settings.TopicType{}, groups: map[string]transport.ConsumerSettings{}, copies: map[string]*subCopy{},
		lite: map[transport.LiteConsumer]map[string]bool{}, replays: map[string][]*tidegate.Delivery{}, wake: make(chan struct{}), closed: make(chan struct{}),
	}
}

func (m *model) changed() {
	close(m.wake)
	m.wake = make(chan struct{})
}

func (m *model) isClosed() bool {
	select {
	case <-m.closed:
		return true
	default:
		return false
	}
}

// unconnected returns the error of a call without a connection; nil if there is one. m.mu is held,
// and released while the call waits for a connection.
func (m *model) unconnected(ctx context.Context) error {
	if !m.cut {
		return nil
	}
	e := &tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: m.fault != "hide the lost connection"}
	if transport.AwaitsConnection(ctx) && m.fault != "never wait for a connection" {
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		e.Err = context.Cause(ctx)
	}
	return e
}

func fault(c tidegate.Code) error { return &tidegate.Error{Code: c} }

func (m *model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isClosed() {
		close(m.closed)
	}
	return nil
}

func (m *model) check(msg *tidegate.Message) error {
	if err := msg.Validate(0); err != nil {
		return err
	}
	if err := m.missing(msg.Topic); err != nil {
		return err
	}
	switch t := m.topics[msg.Topic]; {
	case m.server.LacksTopicTypes:
	case (t == settings.TopicFIFO) != (msg.MessageGroup != "") && m.fault != "no group needed":
		return fault(protocol.CodeMessagePropertyConflict)
	case (t == settings.TopicLite) != (msg.LiteTopic != "") && m.fault != "lite topics everywhere":
		return fault(protocol.CodeMessagePropertyConflict)
	case msg.Priority > 0 && t != settings.TopicPriority && m.fault != "priorities everywhere":
		return fault(protocol.CodeMessagePropertyConflict)
	}
	return nil
}

// order returns the indexes of the log in the order of deliveries: the highest priority first.
func (m *model) order() []int {
	order := make([]int, len(m.log))
	for i := range order {
		order[i] = i
	}
	if m.server.Priorities && m.fault != "no priorities" {
		slices.SortStableFunc(order, func(a, b int) int { return m.log[b].Priority - m.log[a].Priority })
	}
	return order
}

// missing returns the error for a topic that does not exist, or creates it.
func (m *model) missing(topic string) error {
	if m.topics[topic] == "" && m.server.LacksMissingTopics {
		m.topics[topic] = settings.TopicNormal
	}
	if m.topics[topic] == "" {
		return fault(tidegate.CodeTopicNotFound)
	}
	return nil
}

func (m *model) Ping(_ context.Context, topics ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range topics {
		if err := m.missing(t); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]transport.SendResult, len(msgs))
	lost := m.unconnected(ctx)
	for i, msg := range msgs {
		err := m.check(msg)
		switch {
		case lost != nil:
			err = lost
		case m.isClosed():
			err = tidegate.ErrClosed
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			results[i].Err = err
			continue
		}
		d := m.store(msg)
		if m.fault == "share body" {
			d.Body = msg.Body
		}
		results[i].Receipt = tidegate.Receipt{MessageID: d.ID, Topic: d.Topic, Queue: d.Queue, Offset: d.Offset}
	}
	if m.fault != "wake no receive" {
		m.changed()
	}
	if m.fault == "reverse results" {
		slices.Reverse(results)
	}
	return results
}

func (m *model) store(msg *tidegate.Message) *tidegate.Delivery {
	d := &tidegate.Delivery{Message: *msg.Clone(), Offset: int64(len(m.log)), BornAt: time.Now(), StoredAt: time.Now(), BornHost: "model"}
	d.Body = slices.Clone(msg.Body)
	if m.server.LacksPositions {
		d.Queue, d.Offset = -1, -1
	}
	if m.server.LacksStoreTimes {
		d.StoredAt = time.Time{}
	}
	m.log = append(m.log, d)
	return d
}

func (m *model) copy(group string, i int) *subCopy {
	key := fmt.Sprint(group, "/", i)
	if m.copies[key] == nil {
		m.copies[key] = &subCopy{}
	}
	return m.copies[key]
}

// expire applies the passing of time to one copy.
func (m *model) expire(group string, i int, c *subCopy, now time.Time) {
	if c.done || now.Before(c.due) || c.attempt == 0 {
		return
	}
	if c.held {
		c.held, c.handle = false, ""
		if c.uncounted {
			c.attempt--
		}
		if c.attempt >= m.groups[group].MaxAttempts {
			m.bury(group, i, c, "timed out")
		} else if c.push && m.server.TimeoutsTakeTheSchedule && m.fault != "no ladder for timeouts" {
			c.due = c.due.Add(m.groups[group].Retry.Delay(c.attempt - 1))
			m.expire(group, i, c, now)
		}
	}
}

func (m *model) bury(group string, i int, c *subCopy, reason string) {
	c.done, c.held, c.handle = true, false, ""
	d := m.log[i]
	letter := d.Clone()
	letter.Topic = tidegate.DeadLetterTopic(group)
	if m.fault == "lose the lite topic" {
		letter.LiteTopic = ""
	}
	if letter.Properties == nil {
		letter.Properties = map[string]string{}
	}
	maps.Copy(letter.Properties, map[string]string{
		protocol.PropertyDeadLetterTopic: d.Topic, protocol.PropertyDeadLetterMessageID: d.ID,
		protocol.PropertyDeadLetterQueue: strconv.Itoa(d.Queue), protocol.PropertyDeadLetterOffset: strconv.FormatInt(d.Offset, 10),
		protocol.PropertyDeadLetterGroup: group, protocol.PropertyDeadLetterAttempts: strconv.Itoa(c.attempt),
		protocol.PropertyDeadLetterReason: reason,
	})
	if m.fault == "lose the reason" {
		delete(letter.Properties, protocol.PropertyDeadLetterReason)
	}
	if !m.server.DeadLetterOrigins {
		letter.Properties = maps.Clone(d.Properties)
	}
	m.letters[group] = append(m.letters[group], letter)
	if m.server.DeadLettersAtOnce {
		m.moveLetters(group)
	}
}

// moveLetters puts the dead letters of a group into its dead letter queue.
func (m *model) moveLetters(group string) {
	for _, letter := range m.letters[group] {
		m.topics[letter.Topic] = settings.TopicNormal
		m.store(letter)
	}
	delete(m.letters, group)
}

func matches(f tidegate.Filter, tag string) bool {
	if f.Expression == "" || f.Expression == "*" {
		return true
	}
	for t := range strings.SplitSeq(f.Expression, "||") {
		if t = strings.TrimSpace(t); t == tag {
			return true
		}
	}
	return false
}

// hash is Java's, on which RocketMQ's broker filters.
func hash(s string) (h int32) {
	for _, r := range s {
		h = 31*h + r
	}
	return h
}

// take returns the messages that can be delivered now, and the time of the next ones.
func (m *model) take(r transport.ReceiveRequest, now time.Time) (ds []*tidegate.Delivery, next time.Time) {
	if m.fault == "give one at a time" {
		r.Max = 1
	}
	blocked := map[string]bool{}
	for _, i := range m.order() {
		d := m.log[i]
		byHash := m.fault == "filter by hash" && hash(r.Filter.Expression) == hash(d.Tag)
		if d.Topic != r.Topic || !matches(r.Filter, d.Tag) && !byHash || !m.subscribed(r, d.LiteTopic) {
			continue
		}
		line := cmp.Or(d.MessageGroup, d.LiteTopic)
		c := m.copy(r.Group, i)
		m.expire(r.Group, i, c, now)
		if c.done {
			continue
		}
		if now.Before(c.due) {
			if next.IsZero() || c.due.Before(next) {
				next = c.due
			}
		} else if len(ds) < max(1, r.Max) && !blocked[line] && !m.tooLarge(r, ds, d) {
			m.serial++
			c.attempt++
			c.held, c.push, c.due, c.handle = true, r.Push, now.Add(r.InvisibleDuration), fmt.Sprint(r.Group, "/", i, "/", m.serial)
			out := *d
			out.Message = *d.Clone()
			out.Body = slices.Clone(d.Body)
			out.ConsumerGroup, out.Attempt, out.Handle, out.InvisibleUntil = r.Group, c.attempt, c.handle, c.due
			ds = append(ds, &out)
		}
		if line != "" && m.fault != "no order" && (d.LiteTopic == "" || m.fault != "no order of lite topics") {
			blocked[line] = true
		}
		if (m.fault == "a failed group locks the queue" || !m.server.GroupsFlow && blocked[d.MessageGroup] && d.LiteTopic == "") && c.attempt > 0 && now.Before(c.due) {
			return ds, next
		}
	}
	return ds, next
}

// tooLarge reports whether another message does not fit into the receive.
func (m *model) tooLarge(r transport.ReceiveRequest, ds []*tidegate.Delivery, another *tidegate.Delivery) bool {
	n := len(another.Body)
	for _, d := range ds {
		n += len(d.Body)
	}
	return r.MaxBytes > 0 && len(ds) > 0 && n > r.MaxBytes && m.fault != "ignore MaxBytes"
}

func (m *model) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := tidegate.ValidateGroup(r.Group); err != nil {
		return nil, err
	}
	if !m.server.ExactWaits {
		r.Wait = min(max(r.Wait, 5*time.Second), 20*time.Second)
	}
	end := time.Now().Add(r.Wait)
	for {
		now := time.Now()
		m.mu.Lock()
		if err := m.unconnected(ctx); err != nil {
			m.mu.Unlock()
			return nil, err
		}
		if err := m.missing(r.Topic); err != nil {
			m.mu.Unlock()
			return nil, err
		}
		if ds := m.replays[r.AttemptID]; ds != nil {
			m.mu.Unlock()
			return ds, nil
		}
		if r.Repeat {
			m.mu.Unlock()
			return nil, nil
		}
		if m.isClosed() || ctx.Err() != nil {
			if m.fault == "swallow when cancelled" {
				m.swallowing = &r // the next messages
			}
			m.mu.Unlock()
			if m.fault == "hide the cause" && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, cmp.Or(context.Cause(ctx), tidegate.ErrClosed)
		}
		if m.swallowing != nil {
			if taken, _ := m.take(*m.swallowing, now); len(taken) > 0 {
				m.swallowing = nil
			}
		}
		ds, next := m.take(r, now)
		m.moveLetters(r.Group)
		if !m.server.RetriesWakeReceives {
			next = end
		}
		if m.fault == "forget attempt IDs" {
			r.AttemptID = ""
		}
		if len(ds) > 0 && r.AttemptID != "" {
			m.replays[r.AttemptID] = ds
		}
		wake := m.wake
		m.mu.Unlock()
		if len(ds) > 0 || !now.Before(end) {
			return ds, nil
		}
		if next.IsZero() || next.After(end) {
			next = end
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-wake:
		case <-timer.C:
		case <-m.closed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// settingsClosed is the error of the Configurer's methods after Close.
func (m *model) settingsClosed() error {
	if m.isClosed() && m.fault != "open settings after Close" {
		return tidegate.ErrClosed
	}
	return nil
}

func (m *model) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.settingsClosed(); err != nil {
		return transport.ProducerSettings{}, err
	}
	m.told = m.fault != "announce no capabilities"
	if m.fault == "forget the settings" {
		return transport.ProducerSettings{}, nil
	}
	return transport.ProducerSettings{MaxAttempts: 3, Backoff: backoff.Steps{time.Second}, MaxBodySize: 4 << 20}, nil
}

func (m *model) ConsumerSettings(_ context.Context, group, _ string) (transport.ConsumerSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.settingsClosed(); err != nil {
		return transport.ConsumerSettings{}, err
	}
	c := m.groups[group]
	if m.fault == "forget the settings" {
		return transport.ConsumerSettings{FIFO: c.FIFO}, nil
	}
	return c, nil
}

func (m *model) Queues(_ context.Context, _, topic string) ([]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.settingsClosed(); err != nil {
		return nil, err
	}
	if err := m.missing(topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Capabilities are unknown at first, as with a connection that is not yet there.
func (m *model) Capabilities(string) transport.Capabilities {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.told {
		return transport.Capabilities{}
	}
	return m.server.Capabilities
}

// fixtureOf returns the function that opens a model of the server.
func fixtureOf(s Server) func(*testing.T) Fixture {
	return func(*testing.T) Fixture { return newModel(s).fixture() }
}

func (m *model) fixture() Fixture {
	m.fault = os.Getenv(faultVariable)
	if f := reflect.ValueOf(&m.server).Elem().FieldByName(m.fault); f.IsValid() {
		f.SetBool(true) // a fault that the Server of the run does not admit
	}
	return Fixture{
		Transport: m,
		CreateTopic: func(_ context.Context, name string, t settings.TopicType) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.topics[name] = t
			return nil
		},
		CreateGroup: m.createGroup,
		CreateLiteGroup: func(ctx context.Context, name, _ string, s transport.ConsumerSettings) error {
			return m.createGroup(ctx, name, s)
		},
		Disconnect: func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.cut = true
		},
	}
}

func (m *model) createGroup(_ context.Context, name string, s transport.ConsumerSettings) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups[name] = s
	return nil
}

// subscribed reports whether the consumer of a receive has the lite topic. Messages without one are
// for all consumers.
func (m *model) subscribed(r transport.ReceiveRequest, liteTopic string) bool {
	set := m.lite[transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}]
	return liteTopic == "" || r.LiteConsumer == "" && strings.HasPrefix(r.Topic, protocol.DeadLetterPrefix) || set[liteTopic] || m.fault == "deliver every lite topic"
}

// SyncLite changes a set. The position of the group is what its copies say.
func (m *model) SyncLite(ctx context.Context, s transport.LiteSync) error {
	for _, name := range s.Topics {
		if err := tidegate.ValidateLiteTopic(name); err != nil && m.fault != "take every name" {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.unconnected(ctx); err != nil {
		return err
	}
	set := m.lite[s.LiteConsumer]
	if set == nil || s.Action == transport.LiteSet && m.fault != "only add lite topics" {
		set = map[string]bool{}
		m.lite[s.LiteConsumer] = set
	}
	for _, name := range s.Topics {
		set[name] = s.Action != transport.LiteRemove || m.fault == "keep lite topics"
		if s.Action == transport.LiteAdd && m.fault == "forget positions" {
			s.Start.Newest = true
		}
		for i, d := range m.log {
			if d.Topic == s.Topic && d.LiteTopic == name && (s.Start.Newest || s.Start.Oldest) && m.fault != "ignore starts" {
				m.copy(s.Group, i).done = s.Start.Newest
			}
		}
	}
	if m.fault != "wake no receive" {
		m.changed()
	}
	return nil
}

// ServeLite ends no lite topic.
func (m *model) ServeLite(ctx context.Context, _ transport.LiteConsumer, _ func(string)) error {
	<-ctx.Done()
	if m.fault == "return the end of ServeLite" {
		return context.Cause(ctx)
	}
	return nil
}

// settle finds the copy that d's handle names now and changes it.
func (m *model) settle(ctx context.Context, d *tidegate.Delivery, change func(i int, c *subCopy)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.unconnected(ctx); err != nil {
		return err
	}
	if m.isClosed() && m.fault != "open after Close" {
		return tidegate.ErrClosed
	}
	if ctx.Err() != nil && m.fault != "settle with a dead ctx" {
		return context.Cause(ctx)
	}
	i := index(d)
	c := m.copy(d.ConsumerGroup, i)
	m.expire(d.ConsumerGroup, i, c, time.Now())
	valid := c.handle == d.Handle || m.fault == "handles name messages"
	if c.handle == "" || !valid {
		return fault(tidegate.CodeInvalidReceiptHandle)
	}
	change(i, c)
	if m.server.RetriesWakeReceives {
		m.changed()
	}
	return nil
}

// index returns the place of the delivery's message in the log, from the handle.
func index(d *tidegate.Delivery) int {
	i, err := strconv.Atoi(strings.Split(d.Handle, "/")[1])
	if err != nil {
		panic(err)
	}
	return i
}

func (m *model) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = m.settle(ctx, d, func(_ int, c *subCopy) { c.done, c.handle = true, "" })
		if !m.server.RefusesStaleHandles && errors.Is(errs[i], tidegate.ErrInvalidHandle) {
			errs[i] = nil
			if m.fault == "old handles acknowledge" {
				m.mu.Lock()
				m.copy(d.ConsumerGroup, index(d)).done = true
				m.mu.Unlock()
			}
		}
	}
	return errs
}

// Settle takes the verdicts of every server, Snooze and NegativeAck.
func (m *model) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (result transport.RetryResult, err error) {
	group := m.groups[d.ConsumerGroup]
	if v.Kind > transport.DeadLetter && !m.server.Capabilities.Verdicts.Has(v.Kind) && m.fault != "take every verdict" {
		return result, v.Unsupported(d)
	}
	if v.Kind == transport.DeadLetter && d.LiteTopic != "" && d.Topic != tidegate.DeadLetterTopic(d.ConsumerGroup) && m.server.LacksLiteDeadLetters {
		return result, &tidegate.Error{Op: "Settle", Subject: d.Topic, Code: tidegate.CodeNotImplemented}
	}
	switch v.Kind {
	case transport.Release:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			free := c.push && m.server.Capabilities.Suspend && m.fault != "suspending counts" || m.server.LacksCountedReleases
			c.due = time.Now()
			if c.push || free {
				c.held, c.handle = false, ""
			}
			if free {
				c.attempt--
			}
		})
	case transport.Retry:
		err = m.settle(ctx, d, func(i int, c *subCopy) {
			after := v.Delay
			if after == transport.BySchedule && m.fault != "no ladder for failures" {
				after = group.Retry.Delay(c.attempt - 1)
			}
			if m.server.LacksExactRetries && !group.FIFO {
				after = 12 * time.Second // the server's own
			}
			result = transport.RetryResult{Fate: transport.FateAgain, Delay: after}
			c.held, c.handle, c.due = false, "", time.Now().Add(after)
			switch m.fault {
			case "retry early":
				c.due = c.due.Add(-after / 4)
			case "retry late":
				c.due = c.due.Add(after / 4)
			case "retry does not count":
				c.attempt--
			}
			if c.attempt >= group.MaxAttempts {
				result = transport.RetryResult{Fate: transport.FateDeadLetter}
				m.bury(d.ConsumerGroup, i, c, cmp.Or(v.Reason, "failed"))
			}
			if m.fault == "return no results" {
				result = transport.RetryResult{}
			}
		})
	case transport.DeadLetter:
		m.mu.Lock()
		over := m.copy(d.ConsumerGroup, index(d)).done && !m.isClosed()
		m.mu.Unlock()
		if over {
			return result, nil
		}
		err = m.settle(ctx, d, func(i int, c *subCopy) { m.bury(d.ConsumerGroup, i, c, v.Reason) })
		if m.fault == "late dead letters succeed" && errors.Is(err, tidegate.ErrInvalidHandle) {
			err = nil
		}
	case transport.Snooze:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			c.held, c.handle, c.due = false, "", time.Now().Add(v.Delay)
			if m.fault == "snooze early" {
				c.due = time.Now()
			}
			if m.fault != "snoozing counts" {
				c.attempt--
			}
		})
	case transport.NegativeAck:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			c.held, c.handle, c.due = false, "", time.Now().Add(v.Delay)
			if m.fault == "negative acknowledgements come early" {
				c.due = time.Now()
			}
			result = transport.RetryResult{Fate: transport.FateAgain, Delay: v.Delay}
		})
	}
	return result, err
}

func (m *model) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (handle string, err error) {
	now, again := *d, false
	m.mu.Lock()
	if c := m.copy(d.ConsumerGroup, index(d)); repeat && c.replaced == d.Handle && c.changed == c.handle && m.fault != "no change twice" {
		now.Handle, again = c.handle, true
	}
	m.mu.Unlock()
	err = m.settle(ctx, &now, func(_ int, c *subCopy) {
		m.serial++
		if m.fault == "change counts from the receipt" {
			c.due = c.due.Add(dur)
		} else {
			c.due = time.Now().Add(dur)
		}
		if !again {
			c.replaced, c.handle = c.handle, fmt.Sprint(c.handle, "+", m.serial)
			c.changed = c.handle
		}
		c.uncounted = dur > 0 && m.fault == "extended leases do not count"
		handle = c.handle
	})
	return handle, err
}

// ReceiveOrWatch leaves a watch that every change makes ready.
func (m *model) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	r.Wait = 0
	m.mu.Lock()
	ready := m.wake
	m.mu.Unlock()
	ds, err := m.Receive(ctx, r)
	switch {
	case err != nil || len(ds) == r.Max || m.fault == "leave no watch":
		return ds, nil, err
	case m.fault == "report no message":
		ready = make(chan struct{})
	case m.fault == "report all the time":
		done := make(chan struct{})
		close(done)
		ready = done
	}
	return ds, ready, nil
}
