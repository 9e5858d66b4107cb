package pulsar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/crypto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/held"
)

const opReceive = "ReceiveMessage"

const (
	// nackDelay is the delay of the client's negative acknowledgements. A third of it is the
	// interval of a timer that each consumer of a partition has, so it is not the shortest possible.
	nackDelay = 150 * time.Millisecond

	// maxEarly is the time for which a message waits here that a server delivers before its time:
	// brokers do so for up to their delayedDeliveryTickTimeMillis, by default 1 s.
	maxEarly = 2 * time.Second

	// discovery is the interval of the search for new topics of dead letters.
	discovery = 10 * time.Second

	// recount is the interval at which a link looks for new partitions of its topics. The client has
	// to leave that alone: if it cannot subscribe to a new partition, it ends the consumers of all
	// partitions, reports nothing, and panics at Close.
	recount = time.Minute
	never   = math.MaxInt64 * time.Nanosecond
)

// A system opens the links of a client's receives.
type system struct{ c *Client }

// Open subscribes to a topic and, unless the group is FIFO, to its retry topic, after it has made
// sure that dead letters are kept.
func (s system) Open(ctx context.Context, f *held.Feed) (held.Link, error) {
	l, err := s.open(ctx, f)
	if err != nil {
		return nil, s.c.named(err, opReceive, f.Topic)
	}
	return l, nil
}

func (s system) open(ctx context.Context, f *held.Feed) (*link, *tidegate.Error) {
	c := s.c
	if f.Filter.SQL {
		return nil, &tidegate.Error{Code: tidegate.CodeNotImplemented,
			Message: "a subscription of Pulsar keeps the messages that a SQL filter does not select; filter by tags"}
	}
	from := c.place(f.Topic)
	l := &link{
		client: c, feed: f, from: from, wake: make(chan struct{}, 1), acks: make(chan *acks, 64),
		closed: make(chan struct{}), over: make(chan struct{}), gone: make(chan struct{}),
	}
	o := pulsar.ConsumerOptions{
		SubscriptionName: f.Group, Type: pulsar.Shared, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		ReceiverQueueSize: c.options.Prefetch, AckWithResponse: true, NackRedeliveryDelay: nackDelay, NackPrecisionBit: new(int64),
		// As in sender.live: a lost connection ends the link.
		BackOffPolicyFunc: func() backoff.Policy {
			l.lost("the consumer has lost its connection")
			return backoff.NewDefaultBackoff()
		},
		MaxReconnectToBroker: new(uint),
		// The client would ask for an encrypted message again and again, and for one message less each
		// time. It has no keys, so it passes it on as it is, see link.take.
		Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume},
	}
	if f.FIFO {
		o.Type = pulsar.KeyShared
	}
	var parts map[string]int // of the topics; 0: not counted yet
	switch {
	case from.pattern:
		o.TopicsPattern, o.AutoDiscoveryPeriod, o.SubscriptionName = from.topic, discovery, c.options.DeadLetterSubscription
	case from.group != "":
		o.Topic, o.SubscriptionName = from.topic, c.options.DeadLetterSubscription
	default:
		n, err := c.partitions(ctx, from)
		if err != nil {
			return nil, err
		}
		parts = map[string]int{from.topic: n}
		o.AutoDiscoveryPeriod = never
		retry, letters := c.options.Naming.Topics(f.Topic, f.Group)
		retry = c.options.full(retry)
		if err := c.share(retry, f); err != nil {
			return nil, err
		}
		if err := c.keepLetters(ctx, c.options.full(letters), never); err != nil {
			return nil, err
		}
		if o.Topic = from.topic; !f.FIFO {
			l.retry, parts[retry] = retry, 0
			o.Topic, o.Topics = "", []string{from.topic, retry}
		}
	}
	consumer, err := c.subscribe(ctx, o)
	if err != nil {
		if o.Topics != nil && strings.Contains(err.Error(), l.retry) && tidegate.Classify(err) == tidegate.ClassPermanent {
			missing(err, "the group cannot have retries: create the topic "+l.retry+", or permit the client to do so")
		}
		return nil, err
	}
	l.consumer = consumer
	l.work.Go(l.receive)
	l.work.Go(l.acknowledge)
	l.mu.Lock()
	l.opened = true
	l.mu.Unlock()
	c.background(func() { l.count(parts) })
	return l, nil
}

// share checks that no other topic of a group uses its retry topic.
func (c *Client) share(retry string, f *held.Feed) *tidegate.Error {
	if !c.options.Naming.shares() || f.FIFO {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if topic, ok := c.shared[retry]; ok && topic != f.Topic {
		return &tidegate.Error{Code: tidegate.CodeBadRequest,
			Message: "the group receives from the topic " + topic + ", and both topics would have the retry topic " + retry + "; use another group, or Options.Naming ByTopic"}
	}
	c.shared[retry] = f.Topic
	return nil
}

func (c *Client) subscribe(ctx context.Context, o pulsar.ConsumerOptions) (pulsar.Consumer, *tidegate.Error) {
	return call(ctx, c, func() (pulsar.Consumer, error) { return c.native.Subscribe(o) }, pulsar.Consumer.Close)
}

// A letters is the creation of a dead letter topic with its subscription.
type letters struct {
	begun time.Time
	done  chan struct{} // closed at its end
	err   *tidegate.Error
}

// keepLetters creates a dead letter topic with a subscription, because Pulsar deletes the messages
// of a topic without one. It does so again after the given time, because both can be deleted.
func (c *Client) keepLetters(ctx context.Context, topic string, again time.Duration) *tidegate.Error {
	c.mu.Lock()
	l := c.letters[topic]
	first := l == nil || time.Since(l.begun) >= again
	if first {
		l = &letters{begun: time.Now(), done: make(chan struct{})}
		c.letters[topic] = l
	}
	c.mu.Unlock()
	if first && !c.background(func() {
		defer close(l.done)
		l.err = c.createLetters(topic)
	}) {
		return &tidegate.Error{Err: tidegate.ErrClosed}
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return &tidegate.Error{Err: context.Cause(ctx)}
	case <-c.ctx.Done():
		return &tidegate.Error{Err: tidegate.ErrClosed}
	}
	if l.err == nil {
		return nil
	}
	c.mu.Lock()
	if c.letters[topic] == l {
		delete(c.letters, topic) // the next call tries again
	}
	c.mu.Unlock()
	e := *l.err
	return &e
}

func (c *Client) createLetters(topic string) *tidegate.Error {
	consumer, err := c.subscribe(c.ctx, pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: c.options.DeadLetterSubscription, Type: pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: 1,
	})
	switch {
	case err == nil:
		c.background(consumer.Close)
	case strings.Contains(err.Error(), "ConsumerBusy:"):
		return nil // the subscription exists, and has a consumer of another type
	case tidegate.Classify(err) == tidegate.ClassPermanent:
		missing(err, "the dead letters of the group cannot be kept: create the topic "+topic+" with the subscription "+
			c.options.DeadLetterSubscription+", or permit the client to do so")
	}
	return err
}

// missing describes the error of a topic that belongs to a group.
func missing(e *tidegate.Error, remedy string) {
	if e.Code == tidegate.CodeTopicNotFound { // it is not the topic of the receive
		e.Code, e.Message = tidegate.CodeNotFound, "it does not exist"
	}
	if e.Message != "" {
		remedy += "; " + e.Message
	}
	e.Message = remedy
}

// A link is the consumer of one group and topic.
//
// Wake-ups: receive waits for credit, which Grant signals, for messages of the consumer, and for
// returned ones, which give signals. acknowledge waits for acks. Both end with closed.
type link struct {
	client   *Client
	feed     *held.Feed
	from     place
	retry    string // full name of the retry topic; empty for none
	consumer pulsar.Consumer
	wake     chan struct{} // of one element, for receive
	acks     chan *acks
	ending   sync.Once
	closed   chan struct{} // closed at the begin of the end
	over     chan struct{} // closed after the last acknowledgement
	gone     chan struct{} // closed after the end
	work     sync.WaitGroup

	mu       sync.Mutex
	opened   bool // until then the Table closes a link that is lost
	credit   int
	returned []*native // released by the Table, the last first
}

// A native is a message of a link.
type native struct {
	pulsar.ConsumerMessage      // Consumer is that of the topic, one of those that link.consumer has
	copied                 bool // to the retry topic or the dead letter topic; the goroutine that settles it uses it
}

// Grant implements held.Link.
func (l *link) Grant(n int) {
	l.mu.Lock()
	l.credit += n
	l.mu.Unlock()
	l.signal()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// receive passes messages to the feed until the link ends.
func (l *link) receive() {
	for {
		n, credit := l.next()
		var messages <-chan pulsar.ConsumerMessage
		if n != nil {
			l.pass(n)
			continue
		}
		if credit {
			messages = l.consumer.Chan()
		}
		select {
		case m := <-messages:
			l.mu.Lock()
			l.credit--
			l.mu.Unlock()
			l.take(&native{ConsumerMessage: m})
		case <-l.wake:
		case <-l.closed:
			return
		}
	}
}

// next takes a returned message. Without one it reports whether there is credit.
func (l *link) next() (n *native, credit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.returned) - 1; last >= 0 && l.credit > 0 {
		n = l.returned[last]
		l.returned = l.returned[:last]
		l.credit--
	}
	return n, l.credit > 0
}

// give keeps a message that the Table does not need yet: the server would count a returned one as a
// failed attempt. Other consumers get it when the link closes, as they get prefetched ones.
func (l *link) give(n *native) {
	l.mu.Lock()
	l.returned = append(l.returned, n)
	l.mu.Unlock()
	l.signal()
}

// read returns the content of a message.
func (l *link) read(n *native) received {
	if l.from.group != "" {
		return fromLetter(l.feed.Topic, l.from.group, l.client.options.full(""), n)
	}
	return fromPulsar(l.feed.Topic, n)
}

// take passes a message of the consumer on once it is due.
func (l *link) take(n *native) {
	if n.GetEncryptionContext() != nil {
		l.client.options.Logger.Warn("an encrypted message waits until the consumer ends: this transport has no keys",
			"topic", n.Topic(), "group", l.feed.Group, "message", originID(n))
		l.Grant(1)
		return
	}
	r := l.read(n)
	foreign := l.client.options.Naming.shares() && l.from.group == "" && r.topic != "" && r.topic != l.from.topic
	if foreign || l.from.pattern && r.Properties[deadLetterGroup] != "" && r.Properties[deadLetterGroup] != l.from.group {
		// Of another topic with the same retry topic, or of a group whose name ends like this one.
		// It returns when the link closes.
		l.client.options.Logger.Warn("a message of another topic or group waits until the consumer ends",
			"topic", n.Topic(), "group", l.feed.Group, "message", r.ID)
		l.Grant(1)
		return
	}
	if early := min(time.Until(r.due), maxEarly); early > 0 && !r.due.IsZero() {
		time.AfterFunc(early, func() { l.pass(n) })
		return
	}
	l.pass(n)
}

// pass passes a message to the feed.
func (l *link) pass(n *native) {
	r := l.read(n)
	l.feed.Deliver(&tidegate.Delivery{
		Message: r.Message, Attempt: r.failed + 1, Endpoint: l.client.endpoint, Queue: r.queue, Offset: -1,
		BornAt: r.bornAt, BornHost: r.bornHost, StoredAt: r.storedAt,
	}, n)
}

// count ends a link when a topic has another number of partitions than the consumer. Receives then
// open the next link.
func (l *link) count(parts map[string]int) {
	for {
		for topic, before := range parts {
			now, err := l.client.partitions(l.client.ctx, place{topic: topic})
			switch {
			case err != nil: // the connection tells if it is lost
			case before != 0 && now != before:
				l.lost(fmt.Sprintf("the number of partitions of %s is %d, no longer %d", topic, now, before))
				return
			default:
				parts[topic] = now
			}
		}
		select {
		case <-time.After(recount):
		case <-l.closed:
			return
		}
	}
}

// lost ends a link whose consumer is of no more use. The client calls it when the connection is
// lost.
func (l *link) lost(reason string) {
	l.feed.Lost(l.client.named(&tidegate.Error{Err: unavailable{errors.New(reason)}, NotConnected: true}, opReceive, l.feed.Topic))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened && !l.client.background(l.Close) { // Close waits for the goroutine of the client that calls lost
		if l.end() { // the end of the client closes the consumer
			close(l.gone)
		}
	}
}

// Close ends the consumer: the server gets all messages back that are not settled. A second call
// waits for the first.
func (l *link) Close() {
	if !l.end() {
		<-l.gone
		return
	}
	l.work.Wait() // the client forgets acknowledgements that come after its Close
	l.consumer.Close()
	close(l.gone)
}

// end begins the end of the link. It reports whether it is the first call.
func (l *link) end() (first bool) {
	l.ending.Do(func() {
		close(l.closed)
		first = true
	})
	return first
}
