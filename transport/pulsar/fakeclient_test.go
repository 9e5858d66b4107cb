package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

// A fakeClient is a client of a fakeServer. It has the manners of pulsar-client-go v0.19:
//   - CreateProducer, Subscribe and TopicPartitions try for the operation timeout while there is no
//     connection, and do not end with a ctx. The reason is in the log only.
//   - A producer whose connection is lost, or that the server closes, calls BackOffPolicyFunc in a
//     goroutine of the client, tries to connect again MaxReconnectToBroker times, and sends its
//     pending messages then. Until that or Close they have no response.
//   - Close of a producer fails the messages that were written. It forgets those in its queue.
//   - After the loss of a connection the client still passes on the responses that it has read. It
//     panics if the producer is closed meanwhile (producer_partition.go, ReceivedSendReceipt).
//   - SendAsync panics during and after Close.
//   - A consumer calls BackOffPolicyFunc in the goroutine that Close waits for.
//   - An acknowledgement during or after Close of the consumer never returns.
//   - A consumer looks for new partitions every AutoDiscoveryPeriod, by default 1 min. If it cannot
//     subscribe to one of them, it ends those that it has, reports nothing, and panics at Close
//     (consumer_impl.go, internalTopicSubscribeToPartitions).
type fakeClient struct {
	pulsar.Client
	server  *fakeServer
	timeout time.Duration // OperationTimeout
	log     log.Logger
}

// errDial is the reason that the client logs when it cannot connect.
var errDial = errors.New("dial tcp 127.0.0.1:6650: connect: connection refused")

func (c *fakeClient) Close() {}

// request sends a request of a kind about a topic. The client repeats it while it fails.
func (c *fakeClient) request(kind, topic string) error {
	s := c.server
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		s.mu.Lock()
		err := errors.New("connection error")
		rejection := ""
		if s.reject != nil {
			rejection = s.reject()
		}
		if rejection != "" {
			c.log.Warnf("Failed to establish connection with broker: '%s'", rejection)
		} else if !s.away && !s.stalled {
			if s.reject != nil {
				c.log.Info("Connection is ready")
			}
			err = nil
			if s.refuse != nil {
				err = s.refuse(kind, topic)
			}
			s.mu.Unlock()
			return err
		}
		if s.away {
			c.log.WithError(errDial).Warn("Failed to connect to broker.")
		}
		s.mu.Unlock()
		if time.Since(start) >= c.timeout {
			return errors.Join(context.DeadlineExceeded, err)
		}
	}
}

// TopicPartitions does not create the topic.
func (c *fakeClient) TopicPartitions(topic string) ([]string, error) {
	if err := c.request("metadata", topic); err != nil {
		return nil, err
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := s.parts(topic)
	if s.manual && s.topics[parts[0]] == nil {
		return nil, errors.New("TopicNotFound")
	}
	return parts, nil
}

// A fakeProducer is a producer of the client. The fields are guarded by server.mu.
type fakeProducer struct {
	pulsar.Producer
	server  *fakeServer
	options pulsar.ProducerOptions
	topics  []*fakeTopic // the partitions
	batches map[*fakeTopic]fakeBatch
	turn    int
	pending []*fakeSend // that are written, and unwritten ones
	lost    bool
	closing bool
	done    chan struct{} // closed by Close
}

// A fakeBatch is a batch that a producer gathers.
type fakeBatch struct {
	key   string
	begun time.Time
}

// A fakeSend is a message of a producer without a response.
type fakeSend struct {
	message  *pulsar.ProducerMessage
	topic    *fakeTopic
	key      string // of its batch
	callback func(pulsar.MessageID, *pulsar.ProducerMessage, error)
	at       time.Time // when the server stores it; zero: it waits for others in the batch
	written  bool
	flushed  []chan struct{} // of calls of FlushWithCtx, which wait for the response
}

func (c *fakeClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	s := c.server
	s.mu.Lock()
	s.asked++
	open := s.openTime
	s.mu.Unlock()
	time.Sleep(open)
	if _, err := c.TopicPartitions(o.Topic); err != nil {
		return nil, err
	}
	if err := c.request("producer", o.Topic); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	topics, err := s.open(o.Topic)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(topics, s.exceeds) {
		return nil, fmt.Errorf("server error: %s: Cannot create producer on topic with backlog quota exceeded", s.policy)
	}
	s.created++
	p := &fakeProducer{server: s, options: o, topics: topics, batches: map[*fakeTopic]fakeBatch{}, done: make(chan struct{})}
	s.producers[p] = struct{}{}
	return p, nil
}

func (p *fakeProducer) SendAsync(_ context.Context, m *pulsar.ProducerMessage, callback func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	s := p.server
	s.mu.Lock()
	p.mustBeOpen()
	s.mu.Unlock()
	runtime.Gosched() // a Close may begin
	s.mu.Lock()
	p.mustBeOpen()
	size := len(m.Payload)
	for k, v := range m.Properties {
		size += len(k) + len(v)
	}
	if size > s.maximum {
		s.mu.Unlock()
		callback(nil, m, pulsar.ErrMessageTooLarge)
		return
	}
	p.turn++
	topic := p.topics[p.turn%len(p.topics)]
	if m.Key != "" {
		topic = p.topics[int(hash(m.Key))%len(p.topics)]
	}
	p.pending = append(p.pending, &fakeSend{message: m, topic: topic, key: p.batch(topic, m), callback: callback, written: !s.unwritten})
	s.mu.Unlock()
	if p.options.DisableBatching || !m.DeliverAt.IsZero() {
		p.write()
	} else {
		time.AfterFunc(10*time.Millisecond, p.write)
	}
}

// write writes the batch.
func (p *fakeProducer) write() {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range p.pending {
		if f.at.IsZero() {
			f.at = time.Now().Add(s.response)
		}
	}
	clear(p.batches)
	time.AfterFunc(s.response, p.respond)
}

// FlushWithCtx writes the batch and waits for the response to it.
func (p *fakeProducer) FlushWithCtx(ctx context.Context) error {
	s := p.server
	s.mu.Lock()
	p.mustBeOpen()
	s.mu.Unlock()
	runtime.Gosched() // a Close may begin
	s.mu.Lock()
	p.mustBeOpen()
	var done chan struct{}
	if n := len(p.pending); n > 0 {
		done = make(chan struct{})
		p.pending[n-1].flushed = append(p.pending[n-1].flushed, done)
	}
	s.mu.Unlock()
	p.write()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// batch returns the key of the batch of a message. The client gathers the sends of 10 ms, and a batch
// of all keys has the key of its first message (internal/batch_builder.go, Add).
func (p *fakeProducer) batch(t *fakeTopic, m *pulsar.ProducerMessage) string {
	if p.options.DisableBatching || p.options.BatcherBuilderType == pulsar.KeyBasedBatchBuilder || !m.DeliverAt.IsZero() {
		return keyOf(m)
	}
	b := p.batches[t]
	if time.Since(b.begun) >= 10*time.Millisecond {
		b = fakeBatch{keyOf(m), time.Now()}
		p.batches[t] = b
	}
	return b.key
}

func (p *fakeProducer) mustBeOpen() {
	if p.closing {
		p.server.mu.Unlock()
		panic("send on closed channel")
	}
}

// respond stores the messages whose time has come, in the order of the sends.
func (p *fakeProducer) respond() {
	s := p.server
	var replies []func()
	s.mu.Lock()
	for !p.closing && !p.lost && !s.away && !s.stalled && len(p.pending) > 0 {
		first := p.pending[0]
		if !first.written || first.at.IsZero() || time.Now().Before(first.at) {
			break
		}
		p.pending = p.pending[1:]
		id := s.store(first.topic, first.message, first.key)
		replies = append(replies, func() {
			first.callback(id, first.message, nil)
			for _, done := range first.flushed {
				close(done)
			}
		})
	}
	s.mu.Unlock()
	for _, reply := range replies {
		reply()
	}
}

// lose ends the connection of the producer. s.mu is held.
func (p *fakeProducer) lose() {
	if p.lost || p.closing {
		return
	}
	p.lost = true
	if p.server.unread > 0 {
		for i, f := range p.pending {
			id := p.server.store(f.topic, f.message, f.key)
			time.AfterFunc(time.Duration(i)*p.server.unread, func() { p.passOn(id) })
		}
	}
	go func() {
		p.options.BackOffPolicyFunc()
		if p.options.MaxReconnectToBroker != nil && *p.options.MaxReconnectToBroker == 0 {
			return
		}
		for !p.connected() {
			select {
			case <-time.After(p.server.reconnect):
			case <-p.done:
				return
			}
		}
		p.respond()
	}()
}

// passOn passes a response on that the client had read before the connection was lost.
func (p *fakeProducer) passOn(id *fakeID) {
	s := p.server
	s.mu.Lock()
	if p.closing {
		s.mu.Unlock()
		s.t.Error("Close of a producer while the client passes on responses: it panics")
		return
	}
	first := p.pending[0]
	p.pending = p.pending[1:]
	s.mu.Unlock()
	first.callback(id, first.message, nil)
}

// connected tries to connect again. At a reached quota it fails the pending messages.
func (p *fakeProducer) connected() bool {
	s := p.server
	s.mu.Lock()
	if s.away || s.stalled || p.closing {
		s.mu.Unlock()
		return false
	}
	if !slices.ContainsFunc(p.topics, s.exceeds) {
		s.t.Error("a producer has connected again, and sends the messages of attempts that have ended")
		p.lost = false
		s.mu.Unlock()
		return true
	}
	failed := p.pending
	p.pending = nil
	s.mu.Unlock()
	for _, f := range failed {
		f.callback(nil, f.message, errors.Join(pulsar.ErrProducerBlockedQuotaExceeded, errors.New("server error: "+s.policy+": Cannot create producer on topic with backlog quota exceeded")))
	}
	return false
}

func (p *fakeProducer) Close() {
	s := p.server
	s.mu.Lock()
	if p.closing {
		s.mu.Unlock()
		return
	}
	p.closing = true
	close(p.done)
	d := s.closeTime
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	failed := p.pending
	p.pending = nil
	delete(s.producers, p)
	s.mu.Unlock()
	for _, f := range failed {
		if f.written {
			f.callback(nil, f.message, pulsar.ErrProducerClosed)
		}
	}
}

// A fakeConsumer is a consumer of the client. The fields are guarded by server.mu.
type fakeConsumer struct {
	pulsar.Consumer
	client  *fakeClient
	server  *fakeServer
	options pulsar.ConsumerOptions
	created time.Time
	parts   map[string]*fakePart // by partition
	queue   []fakeQueued
	wake    chan struct{} // of one element, for forward
	ch      chan pulsar.ConsumerMessage
	closing bool
	broken  bool           // Close panics
	done    chan struct{}  // closed by Close
	wg      sync.WaitGroup // forward, discover, and the loops that Close waits for
}

// A fakePart is a consumer of one partition.
type fakePart struct {
	consumer *fakeConsumer
	sub      *fakeSub
	permits  int
	lost     bool
}

type fakeQueued struct {
	part    *fakePart
	message *fakeMessage
}

func (c *fakeClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	names := o.Topics
	if o.Topic != "" {
		names = []string{o.Topic}
	}
	for _, name := range append(slices.Clone(names), o.TopicsPattern) {
		if name == "" {
			continue
		}
		if err := c.request("subscribe", name); err != nil {
			return nil, err
		}
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if err := s.refused(name); err != nil {
			return nil, err
		}
	}
	consumer := &fakeConsumer{
		client: c, server: s, options: o, created: time.Now(), parts: map[string]*fakePart{}, wake: make(chan struct{}, 1),
		ch: make(chan pulsar.ConsumerMessage, 10), done: make(chan struct{}),
	}
	if o.TopicsPattern != "" {
		names = s.matching(o.TopicsPattern)
	}
	for _, name := range names {
		if _, err := s.open(name); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		consumer.attach(name)
	}
	s.consumers[consumer] = struct{}{}
	consumer.wg.Go(consumer.forward)
	if o.TopicsPattern != "" {
		consumer.wg.Go(consumer.discover)
	} else {
		consumer.wg.Go(func() { consumer.grow(names) })
	}
	return consumer, nil
}

// refused returns the error of a subscription to one of the partitions of a topic. s.mu is held.
func (s *fakeServer) refused(name string) error {
	for _, part := range s.parts(name) {
		if part != name && s.refuse != nil {
			if err := s.refuse("subscribe", part); err != nil {
				return err
			}
		}
	}
	return nil
}

// grow looks for new partitions of topics.
func (c *fakeConsumer) grow(names []string) {
	for {
		select {
		case <-time.After(cmp.Or(c.options.AutoDiscoveryPeriod, time.Minute)):
		case <-c.done:
			return
		}
		c.server.mu.Lock()
		for _, name := range names {
			switch err := c.server.refused(name); {
			case c.closing || c.server.away:
			case err == nil:
				c.attach(name)
			default:
				c.broken = true
				for _, part := range c.parts {
					c.server.detach(part)
				}
			}
		}
		c.server.mu.Unlock()
	}
}

// attach adds the partitions of a topic. s.mu is held.
func (c *fakeConsumer) attach(name string) {
	topics, _ := c.server.open(name)
	for _, t := range topics {
		if c.parts[t.name] != nil {
			continue
		}
		sub := t.sub(c.options.SubscriptionName)
		sub.shared = c.options.Type
		part := &fakePart{consumer: c, sub: sub, permits: c.options.ReceiverQueueSize}
		c.parts[t.name] = part
		sub.parts = append(sub.parts, part)
		c.server.pump(sub)
	}
}

// discover looks for new topics of a pattern.
func (c *fakeConsumer) discover() {
	for {
		select {
		case <-time.After(c.options.AutoDiscoveryPeriod):
		case <-c.done:
			return
		}
		c.server.mu.Lock()
		if !c.closing && !c.server.away {
			for _, name := range c.server.matching(c.options.TopicsPattern) {
				c.attach(name)
			}
		}
		c.server.mu.Unlock()
	}
}

// deliver queues a message. server.mu is held.
func (c *fakeConsumer) deliver(part *fakePart, m *fakeMessage) {
	c.queue = append(c.queue, fakeQueued{part, m})
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// forward passes the queue to the channel of the program. A message that leaves the queue makes
// place for another one.
func (c *fakeConsumer) forward() {
	for {
		c.server.mu.Lock()
		var next []fakeQueued
		if len(c.queue) > 0 {
			next, c.queue = c.queue[:1], c.queue[1:]
		}
		c.server.mu.Unlock()
		if next == nil {
			select {
			case <-c.wake:
			case <-c.done:
				return
			}
			continue
		}
		select {
		case c.ch <- pulsar.ConsumerMessage{Consumer: c, Message: next[0].message}:
		case <-c.done:
			return
		}
		c.server.mu.Lock()
		next[0].part.permits++
		c.server.pump(next[0].part.sub)
		c.server.mu.Unlock()
	}
}

func (c *fakeConsumer) Chan() <-chan pulsar.ConsumerMessage { return c.ch }

// lose ends the connection of a partition. server.mu is held.
func (c *fakeConsumer) lose(part *fakePart) {
	if part.lost || c.closing {
		return
	}
	part.lost = true
	c.queue = slices.DeleteFunc(c.queue, func(q fakeQueued) bool { return q.part == part })
	c.server.detach(part)
	if c.options.BackOffPolicyFunc == nil {
		return // the client connects again, but the consumer is closed soon
	}
	c.wg.Go(func() {
		c.options.BackOffPolicyFunc()
		if n := c.options.MaxReconnectToBroker; n != nil && *n == 0 {
			return
		}
		for !c.reattach(part) {
			select {
			case <-time.After(c.server.reconnect):
			case <-c.done:
				return
			}
		}
	})
}

func (c *fakeConsumer) reattach(part *fakePart) bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.server.away || c.closing {
		return false
	}
	part.lost, part.permits = false, c.options.ReceiverQueueSize
	part.sub.parts = append(part.sub.parts, part)
	c.server.pump(part.sub)
	return true
}

// AckIDList removes messages from the subscription, and returns an AckError for the others.
func (c *fakeConsumer) AckIDList(ids []pulsar.MessageID) error {
	s := c.server
	if c.begunToClose() {
		s.t.Error("an acknowledgement after Close of the consumer")
		select {}
	}
	s.mu.Lock()
	s.acks++
	d := s.ackTime
	s.mu.Unlock()
	time.Sleep(min(d, c.client.timeout))
	if c.begunToClose() {
		s.t.Error("Close of a consumer with an acknowledgement under way")
		select {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := pulsar.AckError{}
	for _, id := range ids {
		own := id.(*fakeID)
		err := error(nil)
		if s.refusal != nil {
			err = s.refusal(own)
		}
		if own.part.lost || s.away {
			err = errors.New("connection closed")
		}
		if d > c.client.timeout {
			err = errors.New("request timed out")
		}
		if err != nil {
			failed[id] = err
			continue
		}
		s.acknowledge(own)
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

func (c *fakeConsumer) begunToClose() bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.closing
}

// NackID asks for a message again. The client looks for the delayed ones at a third of the delay.
func (c *fakeConsumer) NackID(id pulsar.MessageID) {
	own, delay := id.(*fakeID), c.options.NackRedeliveryDelay
	if late := (time.Since(c.created) + delay) % (delay / 3); late > 0 {
		delay += delay/3 - late
	}
	time.AfterFunc(delay, func() {
		if !c.begunToClose() {
			c.server.redeliver(own)
		}
	})
}

func (c *fakeConsumer) Close() {
	s := c.server
	s.mu.Lock()
	if c.closing {
		s.mu.Unlock()
		return
	}
	c.closing = true
	if c.broken {
		s.t.Error("Close of a consumer that lacks a partition: it panics")
	}
	close(c.done)
	s.mu.Unlock()
	c.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.consumers, c)
	for _, name := range slices.Sorted(maps.Keys(c.parts)) {
		s.detach(c.parts[name])
	}
}

// A fakeReader is a reader of one partition.
type fakeReader struct {
	pulsar.Reader
	client *fakeClient
	topic  *fakeTopic
	next   int // index of the message to read
}

func (c *fakeClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	if err := c.request("reader", o.Topic); err != nil {
		return nil, err
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	topics, err := s.open(o.Topic)
	if err != nil {
		return nil, err
	}
	r := &fakeReader{client: c, topic: topics[0]}
	begin := o.StartMessageID.EntryID()
	if !o.StartMessageIDInclusive {
		begin++
	}
	for r.next < len(r.topic.items) && r.topic.items[r.next].id.entry < begin {
		r.next++
	}
	s.readers++
	return r, nil
}

// GetLastMessageID returns an entry -1 if there is no message, as the client.
func (r *fakeReader) GetLastMessageID() (pulsar.MessageID, error) {
	if err := r.client.request("last", r.topic.name); err != nil {
		return nil, err
	}
	s := r.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(r.topic.items); n > 0 {
		return r.topic.items[n-1].id, nil
	}
	return &fakeID{entry: -1}, nil
}

func (r *fakeReader) SeekByTime(at time.Time) error {
	s := r.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for r.next = 0; r.next < len(r.topic.items) && r.topic.items[r.next].published.Before(at); r.next++ {
	}
	return nil
}

func (r *fakeReader) Next(ctx context.Context) (pulsar.Message, error) {
	s := r.client.server
	for {
		s.mu.Lock()
		if r.next < len(r.topic.items) && !s.away && !s.stalled {
			item := r.topic.items[r.next]
			r.next++
			s.mu.Unlock()
			return &fakeMessage{topic: r.topic.name, id: item.id, message: item.message, published: item.published}, nil
		}
		s.mu.Unlock()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *fakeReader) Close() {
	s := r.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers--
}

// A fakeMessage is a message of a consumer.
type fakeMessage struct {
	pulsar.Message
	topic       string
	id          *fakeID
	message     *pulsar.ProducerMessage
	published   time.Time
	stored      *time.Time
	redelivered uint32
}

func (m *fakeMessage) Topic() string                 { return m.topic }
func (m *fakeMessage) ID() pulsar.MessageID          { return m.id }
func (m *fakeMessage) Payload() []byte               { return slices.Clone(m.message.Payload) }
func (m *fakeMessage) Properties() map[string]string { return maps.Clone(m.message.Properties) }
func (m *fakeMessage) Key() string                   { return m.message.Key }
func (m *fakeMessage) OrderingKey() string           { return m.message.OrderingKey }
func (m *fakeMessage) PublishTime() time.Time        { return m.published }
func (m *fakeMessage) RedeliveryCount() uint32       { return m.redelivered }
func (m *fakeMessage) BrokerPublishTime() *time.Time { return m.stored }

func (m *fakeMessage) GetEncryptionContext() *pulsar.EncryptionContext { return nil }

// EventTime is 1970 if there is none, as the client's.
func (m *fakeMessage) EventTime() time.Time {
	if m.message.EventTime.IsZero() {
		return time.UnixMilli(0)
	}
	return time.UnixMilli(m.message.EventTime.UnixMilli())
}
