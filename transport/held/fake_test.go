package held_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A fake is a system that pushes messages to links with credit, and a transport over it. A message
// that a link does not settle is ready again when the link ends. A message group of a FIFO group is
// with one link.
type fake struct {
	*held.Table

	mu      sync.Mutex
	topics  map[string]settings.TopicType
	groups  map[string]transport.ConsumerSettings
	logs    map[string][]*tidegate.Delivery // by topic, as delivered the first time
	queues  map[[2]string]*queue            // by group and topic
	links   map[*fakeLink]struct{}
	cut     bool // there is no connection
	closed  bool
	opens   int
	grants  int
	faults  faults
	settled []settled // successful ones
}

// faults are the bad manners of a fake.
type faults struct {
	openDelay    time.Duration                           // of each Open
	deliverDelay time.Duration                           // between a grant and its messages
	gap          time.Duration                           // between two messages
	excess       int                                     // messages of each grant beyond it
	settle       func(held.Settlement) error             // refuses settlements
	carriedOut   func(held.Settlement) bool              // a refused settlement is carried out nevertheless
	slow         func(held.Settlement) (d time.Duration) // before a settlement
}

type settled struct {
	id      string
	outcome held.Outcome
}

type queue struct {
	entries []*entry
	wake    chan struct{} // closed and replaced at every change
}

// An entry is the copy of a message for a group.
type entry struct {
	msg   *tidegate.Delivery
	count int // failed deliveries
	due   time.Time
	link  *fakeLink // that has it; nil: ready or waiting
	done  bool
}

func newFake(opts held.Options) *fake {
	f := &fake{
		topics: map[string]settings.TopicType{}, groups: map[string]transport.ConsumerSettings{},
		logs: map[string][]*tidegate.Delivery{}, queues: map[[2]string]*queue{}, links: map[*fakeLink]struct{}{},
	}
	if opts.Settings == nil {
		opts.Settings = f.settings
	}
	f.Table = held.New(f, opts)
	return f
}

func (f *fake) settings(group, _ string) transport.ConsumerSettings {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.groups[group]
}

type steps []time.Duration

func (s steps) Delay(n int) time.Duration { return s[min(n, len(s)-1)] }

// queue returns the queue of a group. f.mu is held.
func (f *fake) queue(group, topic string) *queue {
	q := f.queues[[2]string{group, topic}]
	if q == nil {
		q = &queue{wake: make(chan struct{})}
		for _, m := range f.logs[topic] {
			q.entries = append(q.entries, &entry{msg: m})
		}
		f.queues[[2]string{group, topic}] = q
	}
	return q
}

func (q *queue) changed() {
	close(q.wake)
	q.wake = make(chan struct{})
}

func (f *fake) lost() error {
	return &tidegate.Error{Endpoint: "fake", NotConnected: true, Err: errors.New("the fake is cut off")}
}

// store adds a message to a topic. f.mu is held.
func (f *fake) store(msg *tidegate.Message) (offset int64) {
	offset = int64(len(f.logs[msg.Topic]))
	m := &tidegate.Delivery{Message: *msg.Clone(), Endpoint: "fake", Offset: offset, BornAt: time.Now(), StoredAt: time.Now(), BornHost: "host"}
	m.Body = slices.Clone(msg.Body)
	f.logs[m.Topic] = append(f.logs[m.Topic], m)
	for k, q := range f.queues {
		if k[1] == m.Topic {
			q.entries = append(q.entries, &entry{msg: m})
			q.changed()
		}
	}
	return offset
}

// Open implements held.System.
func (f *fake) Open(ctx context.Context, feed *held.Feed) (held.Link, error) {
	f.mu.Lock()
	delay := f.faults.openDelay
	f.opens++
	f.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.cut:
		return nil, f.lost()
	case f.topics[feed.Topic] == "":
		return nil, &tidegate.Error{Endpoint: "fake", Code: tidegate.CodeTopicNotFound}
	}
	l := &fakeLink{fake: f, feed: feed, queue: f.queue(feed.Group, feed.Topic), end: make(chan struct{}), granted: make(chan struct{}, 1)}
	f.links[l] = struct{}{}
	l.wg.Go(l.push)
	return l, nil
}

type fakeLink struct {
	fake    *fake
	feed    *held.Feed
	queue   *queue
	credit  int // guarded by fake.mu
	granted chan struct{}
	end     chan struct{}
	ended   bool // guarded by fake.mu
	wg      sync.WaitGroup
}

func (l *fakeLink) Grant(n int) {
	l.fake.mu.Lock()
	faults := l.fake.faults
	l.fake.grants++
	l.fake.mu.Unlock()
	grant := func() {
		l.fake.mu.Lock()
		l.credit += n + faults.excess
		l.fake.mu.Unlock()
		select {
		case l.granted <- struct{}{}:
		default:
		}
	}
	if faults.deliverDelay > 0 {
		time.AfterFunc(faults.deliverDelay, grant)
		return
	}
	grant()
}

// push delivers messages until the link ends.
func (l *fakeLink) push() {
	for {
		l.fake.mu.Lock()
		if l.ended {
			l.fake.mu.Unlock()
			return
		}
		e, next := l.next(time.Now())
		gap := l.fake.faults.gap
		var wake chan struct{}
		var d *tidegate.Delivery
		if e != nil {
			e.link = l
			l.credit--
			c := *e.msg
			d = &c
			d.Message, d.Attempt = *e.msg.Clone(), e.count+1
			d.Body = slices.Clone(e.msg.Body)
		} else if l.credit > 0 {
			wake = l.queue.wake
		}
		l.fake.mu.Unlock()
		if e != nil {
			l.feed.Deliver(d, e)
			if gap > 0 {
				select {
				case <-time.After(gap):
				case <-l.end:
				}
			}
			continue
		}
		var due <-chan time.Time
		if wake != nil && !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-wake:
		case <-due:
		case <-l.granted:
		case <-l.end:
		}
	}
}

// next returns the next message, or the time at which there is one. fake.mu is held.
func (l *fakeLink) next(now time.Time) (*entry, time.Time) {
	var next time.Time
	if l.credit < 1 {
		return nil, next
	}
	elsewhere := map[string]bool{} // groups of other links
	for _, e := range l.queue.entries {
		switch g := e.msg.MessageGroup; {
		case e.done:
		case e.link != nil:
			elsewhere[g] = e.link != l && g != ""
		case l.feed.FIFO && elsewhere[g]:
		case !e.due.After(now):
			return e, next
		case next.IsZero() || e.due.Before(next):
			next = e.due
		}
	}
	return nil, next
}

// Settle implements held.Link.
func (l *fakeLink) Settle(ctx context.Context, list []held.Settlement) []error {
	errs := make([]error, len(list))
	for i, s := range list {
		errs[i] = l.settle(ctx, s)
	}
	return errs
}

func (l *fakeLink) settle(ctx context.Context, s held.Settlement) error {
	l.fake.mu.Lock()
	faults := l.fake.faults
	l.fake.mu.Unlock()
	if faults.slow != nil {
		select {
		case <-time.After(faults.slow(s)):
		case <-ctx.Done():
			return &tidegate.Error{Err: context.Cause(ctx), MaybeStored: true}
		case <-l.end:
		}
	}
	f := l.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.ended {
		return f.lost()
	}
	if faults.settle != nil {
		if err := faults.settle(s); err != nil && (faults.carriedOut == nil || !faults.carriedOut(s)) {
			return err
		} else if err != nil {
			f.settle(l, s)
			return err
		}
	}
	f.settle(l, s)
	return nil
}

// settle carries out a settlement. f.mu is held.
func (f *fake) settle(l *fakeLink, s held.Settlement) {
	e := s.Native.(*entry)
	if e.link != l {
		return // settled before
	}
	f.settled = append(f.settled, settled{e.msg.ID, s.Outcome})
	e.link = nil
	switch s.Outcome {
	case held.Accepted:
		e.done = true
	case held.Retried:
		e.count++
		e.due = time.Now().Add(s.Delay)
	case held.Redelivered:
		e.count++
	case held.DeadLettered:
		e.done = true
		f.bury(l.feed, s)
	}
	l.queue.changed()
}

func (f *fake) bury(feed *held.Feed, s held.Settlement) {
	letter := s.Delivery.Clone()
	letter.Topic = tidegate.DeadLetterTopic(feed.Group)
	if letter.Properties == nil {
		letter.Properties = map[string]string{}
	}
	maps.Copy(letter.Properties, map[string]string{
		protocol.PropertyDeadLetterTopic: feed.Topic, protocol.PropertyDeadLetterMessageID: letter.ID,
		protocol.PropertyDeadLetterQueue: strconv.Itoa(s.Delivery.Queue), protocol.PropertyDeadLetterOffset: strconv.FormatInt(s.Delivery.Offset, 10),
		protocol.PropertyDeadLetterGroup: feed.Group, protocol.PropertyDeadLetterAttempts: strconv.Itoa(s.Delivery.Attempt),
		protocol.PropertyDeadLetterReason: s.Reason,
	})
	f.topics[letter.Topic] = settings.TopicNormal
	f.store(letter)
}

// Close implements held.Link.
func (l *fakeLink) Close() {
	l.fake.mu.Lock()
	l.stop()
	l.fake.mu.Unlock()
	l.wg.Wait()
}

// stop ends the link. fake.mu is held.
func (l *fakeLink) stop() {
	if l.ended {
		return
	}
	l.ended = true
	close(l.end)
	delete(l.fake.links, l)
	for _, e := range l.queue.entries {
		if e.link == l {
			e.link = nil
		}
	}
	l.queue.changed()
}

// disconnect ends all links. New ones fail while cut is set.
func (f *fake) disconnect(cut bool) {
	f.mu.Lock()
	f.cut = cut
	links := slices.Collect(maps.Keys(f.links))
	for _, l := range links {
		l.stop()
	}
	f.mu.Unlock()
	for _, l := range links {
		l.feed.Lost(f.lost())
	}
}

// The transport.

func (f *fake) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	return f.Table.Close()
}

func (f *fake) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		if results[i].Err = f.refused(ctx, m); results[i].Err == nil {
			results[i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Offset: f.store(m), Endpoint: "fake"}
		}
	}
	return results
}

// refused returns the error of a send. f.mu is held, except while the call waits for a connection.
func (f *fake) refused(ctx context.Context, m *tidegate.Message) error {
	t := f.topics[m.Topic]
	switch {
	case f.closed:
		return tidegate.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case f.cut && transport.AwaitsConnection(ctx):
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return &tidegate.Error{NotConnected: true, Err: context.Cause(ctx)}
	case f.cut:
		return f.lost()
	}
	if err := m.Validate(0); err != nil {
		return err
	}
	switch {
	case t == "":
		return &tidegate.Error{Code: tidegate.CodeTopicNotFound}
	case (t == settings.TopicFIFO) != (m.MessageGroup != ""):
		return &tidegate.Error{Code: protocol.CodeMessagePropertyConflict}
	}
	return nil
}

func (f *fake) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{MaxAttempts: 3, Backoff: steps{time.Second}, MaxBodySize: 4 << 20}, f.closedError()
}

func (f *fake) ConsumerSettings(_ context.Context, group, topic string) (transport.ConsumerSettings, error) {
	return f.settings(group, topic), f.closedError()
}

func (f *fake) Queues(_ context.Context, _, topic string) ([]int, error) {
	err := f.closedError()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topics[topic] == "" {
		err = cmp.Or(err, error(&tidegate.Error{Code: tidegate.CodeTopicNotFound}))
	}
	return []int{transport.AnyQueue}, err
}

func (f *fake) closedError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return tidegate.ErrClosed
	}
	return nil
}

func (f *fake) Capabilities(endpoint string) transport.Capabilities {
	c := f.Table.Capabilities(endpoint)
	c.IdempotentDeadLetter = true
	return c
}

func (f *fake) fixture() transporttest.Fixture {
	return transporttest.Fixture{
		Transport: f,
		CreateTopic: func(_ context.Context, name string, t settings.TopicType) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.topics[name] = t
			return nil
		},
		CreateGroup: func(_ context.Context, name string, s transport.ConsumerSettings) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.groups[name] = s
			return nil
		},
		Disconnect: func() { f.disconnect(true) },
	}
}
