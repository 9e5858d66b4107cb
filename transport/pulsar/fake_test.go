package pulsar

import (
	"cmp"
	"errors"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// A fakeServer is a small Pulsar in memory for the fakes of its client, see fakeClient. It keeps
// messages for the subscriptions of their topic, and deletes those of a topic without one. It
// delivers delayed messages up to a second before their time, as a broker does by default.
type fakeServer struct {
	t testing.TB

	mu         sync.Mutex
	topics     map[string]*fakeTopic // by full name: the topics without partitions, and the partitions
	partitions map[string]int        // of the partitioned topics
	producers  map[*fakeProducer]struct{}
	consumers  map[*fakeConsumer]struct{}
	entries    int64
	log        []fakeStored // all messages that were ever stored
	created    int          // producers
	asked      int          // requests for a producer, refused ones included
	acks       int          // acknowledgement requests
	readers    int          // that are open

	// The settings, which tests change under mu.
	manual  bool // topics are not created automatically
	away    bool // there is no connection
	stalled bool // requests and messages have no response; only the closing of a connection ends them
	quota   int  // of messages that a topic keeps; 0 for none
	policy  string
	reject  func() string                     // connections, with a text; empty for none
	refuse  func(request, topic string) error // requests of a kind: metadata, producer, subscribe, reader or last
	refusal func(id *fakeID) error            // acknowledgements
	maximum int                               // of a message in bytes

	// Times: from a send to its storage and its response, of an acknowledgement, of opening and
	// closing a producer, and between two attempts of a client to connect again.
	response, ackTime, openTime, closeTime, reconnect time.Duration

	// unwritten leaves sends in the queue of the client, which closes producers without a response
	// to those.
	unwritten bool

	// unread is the interval at which the client passes on the responses of messages that the server
	// has stored before a connection is lost, which it has read and not passed on yet.
	unread time.Duration
}

// A fakeStored is a message that was stored, and when.
type fakeStored struct {
	topic, body string
	at          time.Time
}

// A fakeTopic is a topic or one partition of it.
type fakeTopic struct {
	name  string
	index int32 // of the partition
	subs  map[string]*fakeSub
	items []*fakeItem // all messages, for readers
}

// A fakeSub is a subscription of a topic: the messages that are not acknowledged, the oldest first.
type fakeSub struct {
	topic  *fakeTopic
	shared pulsar.SubscriptionType
	items  []*fakeItem
	parts  []*fakePart // with a connection
	turn   int
	timer  *time.Timer // for the next delayed message
}

// A fakeItem is a message of a subscription.
type fakeItem struct {
	id          *fakeID
	message     *pulsar.ProducerMessage
	key         string // of its batch, by which a subscription Key_Shared delivers it
	published   time.Time
	owner       *fakePart // that has it; nil: none
	redelivered uint32
}

func keyOf(m *pulsar.ProducerMessage) string { return cmp.Or(m.OrderingKey, m.Key) }

// A fakeID is the ID of a message. The client compares IDs by their address.
type fakeID struct {
	entry     int64
	partition int32
	part      *fakePart // that received it
}

func (*fakeID) LedgerID() int64       { return 7 }
func (i *fakeID) EntryID() int64      { return i.entry }
func (*fakeID) BatchIdx() int32       { return 0 }
func (*fakeID) BatchSize() int32      { return 1 }
func (i *fakeID) PartitionIdx() int32 { return i.partition }
func (i *fakeID) Serialize() []byte   { return []byte(i.String()) }
func (i *fakeID) String() string {
	return "7:" + strconv.FormatInt(i.entry, 10) + ":" + strconv.Itoa(int(i.partition))
}

const namespace = "persistent://public/default/"

const (
	tick = time.Second // delayedDeliveryTickTimeMillis

	// blocked is the refusal of the quota policy producer_exception; onHold is that of
	// producer_request_hold.
	blocked = "ProducerBlockedQuotaExceededException"
	onHold  = "ProducerBlockedQuotaExceededError"
)

func newFakeServer(t testing.TB) *fakeServer {
	return &fakeServer{
		t: t, topics: map[string]*fakeTopic{}, partitions: map[string]int{}, producers: map[*fakeProducer]struct{}{},
		consumers: map[*fakeConsumer]struct{}{}, policy: blocked, maximum: 5 << 20, reconnect: time.Minute,
	}
}

// with changes the settings.
func (s *fakeServer) with(change func(*fakeServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// number returns the value of a counter.
func (s *fakeServer) number(counter *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *counter
}

// create creates a topic with a number of partitions, 0 for a topic without partitions.
func (s *fakeServer) create(name string, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name = namespace + name
	if partitions > 0 {
		s.partitions[name] = partitions
	}
	for i, part := range s.parts(name) {
		s.add(part, int32(i))
	}
}

// parts returns the names of the partitions of a topic. s.mu is held.
func (s *fakeServer) parts(name string) []string {
	n := s.partitions[name]
	if n == 0 {
		return []string{name}
	}
	var all []string
	for i := range n {
		all = append(all, name+"-partition-"+strconv.Itoa(i))
	}
	return all
}

func (s *fakeServer) add(name string, index int32) *fakeTopic {
	t := s.topics[name]
	if t == nil {
		t = &fakeTopic{name: name, index: index, subs: map[string]*fakeSub{}}
		s.topics[name] = t
	}
	return t
}

// subscribe creates a subscription of a topic.
func (s *fakeServer) subscribe(topic, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, part := range s.parts(namespace + topic) {
		s.add(part, int32(i)).sub(name)
	}
}

func (t *fakeTopic) sub(name string) *fakeSub {
	sub := t.subs[name]
	if sub == nil {
		sub = &fakeSub{topic: t, shared: pulsar.Shared}
		t.subs[name] = sub
	}
	return sub
}

// open returns the partitions of a topic, which it creates if the server may. s.mu is held.
func (s *fakeServer) open(name string) ([]*fakeTopic, error) {
	var all []*fakeTopic
	for i, part := range s.parts(name) {
		if s.topics[part] == nil && s.manual {
			return nil, errors.New("server error: TopicNotFound: Topic " + name + " does not exist")
		}
		all = append(all, s.add(part, int32(i)))
	}
	return all, nil
}

// matching returns the names of the topics that match a pattern, as the client searches for them.
// s.mu is held.
func (s *fakeServer) matching(pattern string) []string {
	r := regexp.MustCompile(strings.TrimPrefix(pattern, "persistent://"))
	names := map[string]bool{}
	for name := range s.topics {
		if name, _, _ = strings.Cut(name, partition); r.MatchString(name) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// store stores a message in a partition, in a batch with a key. s.mu is held.
func (s *fakeServer) store(t *fakeTopic, m *pulsar.ProducerMessage, key string) *fakeID {
	s.entries++
	id := &fakeID{entry: s.entries, partition: t.index}
	own := *m // the client may still read the original, so it is copied only now
	own.Payload, own.Properties = slices.Clone(m.Payload), maps.Clone(m.Properties)
	s.log = append(s.log, fakeStored{t.name, string(own.Payload), time.Now()})
	t.items = append(t.items, &fakeItem{id: id, message: &own, published: time.Now()})
	for _, sub := range t.subs {
		sub.items = append(sub.items, &fakeItem{id: id, message: &own, key: key, published: time.Now()})
		s.pump(sub)
	}
	return id
}

// put stores a message of another program.
func (s *fakeServer) put(topic string, m *pulsar.ProducerMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.open(namespace + topic)
	if err != nil {
		s.t.Fatal(err)
	}
	s.store(all[0], m, keyOf(m))
}

// pump gives messages to consumers with permits. s.mu is held.
func (s *fakeServer) pump(sub *fakeSub) {
	var next time.Time
	for _, item := range sub.items {
		if item.owner != nil || s.away {
			continue
		}
		if due := item.message.DeliverAt.Add(-tick); time.Now().Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		part := sub.pick(item)
		if part == nil {
			continue
		}
		item.owner = part
		part.permits--
		own := *item.id
		own.part = part
		part.consumer.deliver(part, &fakeMessage{
			topic: sub.topic.name, id: &own, message: item.message, published: item.published, redelivered: item.redelivered,
		})
	}
	if next.IsZero() {
		return
	}
	if sub.timer != nil {
		sub.timer.Stop()
	}
	sub.timer = time.AfterFunc(time.Until(next), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pump(sub)
	})
}

// pick returns the consumer for a message. A key stays with a consumer that has a message of it.
func (sub *fakeSub) pick(item *fakeItem) *fakePart {
	n := len(sub.parts)
	if n == 0 {
		return nil
	}
	if key := item.key; sub.shared == pulsar.KeyShared && key != "" {
		part := sub.parts[int(hash(key))%n]
		for _, other := range sub.items {
			if other.owner != nil && other.owner != part && other.key == key {
				return nil
			}
		}
		if part.permits == 0 {
			return nil
		}
		return part
	}
	for range n {
		sub.turn++
		if part := sub.parts[sub.turn%n]; part.permits > 0 {
			return part
		}
	}
	return nil
}

func hash(key string) uint16 {
	h := fnv.New32()
	_, _ = h.Write([]byte(key))
	return uint16(h.Sum32())
}

// detach ends a consumer of a subscription, which gets its messages back. Their counts are
// unchanged, and 0 if no consumer is left. s.mu is held.
func (s *fakeServer) detach(part *fakePart) {
	sub := part.sub
	i := slices.Index(sub.parts, part)
	if i < 0 {
		return
	}
	sub.parts = slices.Delete(sub.parts, i, i+1)
	for _, item := range sub.items {
		if item.owner == part {
			item.owner = nil
		}
		if len(sub.parts) == 0 {
			item.redelivered = 0
		}
	}
	s.pump(sub)
}

// acknowledge removes a message from a subscription. s.mu is held.
func (s *fakeServer) acknowledge(id *fakeID) {
	sub := id.part.sub
	sub.items = slices.DeleteFunc(sub.items, func(i *fakeItem) bool { return i.id.entry == id.entry })
	s.pump(sub)
}

// redeliver counts a failed attempt of a message and gives it to a consumer again.
func (s *fakeServer) redeliver(id *fakeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range id.part.sub.items {
		if item.id.entry == id.entry && item.owner == id.part {
			item.owner = nil
			item.redelivered++
		}
	}
	s.pump(id.part.sub)
}

// kept returns the messages of a subscription that are not acknowledged.
func (s *fakeServer) kept(topic, sub string) (all []*pulsar.ProducerMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range s.parts(namespace + topic) {
		if t := s.topics[part]; t != nil && t.subs[sub] != nil {
			for _, item := range t.subs[sub].items {
				all = append(all, item.message)
			}
		}
	}
	return all
}

// clear removes all messages of a topic.
func (s *fakeServer) clear(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.topics[namespace+topic].subs {
		sub.items = nil
	}
}

// bodies returns the bodies of all messages that were ever stored in a topic.
func (s *fakeServer) bodies(topic string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.log {
		if name, _, _ := strings.Cut(m.topic, partition); name == namespace+topic {
			all = append(all, m.body)
		}
	}
	return all
}

// exceeds reports whether a topic has reached the quota. s.mu is held.
func (s *fakeServer) exceeds(t *fakeTopic) bool {
	for _, sub := range t.subs {
		if s.quota > 0 && len(sub.items) >= s.quota {
			return true
		}
	}
	return false
}

// checkQuota is the periodic check of a broker: it closes the producers of topics with too many
// messages.
func (s *fakeServer) checkQuota() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.producers {
		if slices.ContainsFunc(p.topics, s.exceeds) {
			p.lose()
		}
	}
}

// disconnect breaks all connections. With away there are no new ones until comeBack.
func (s *fakeServer) disconnect(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	for p := range s.producers {
		p.lose()
	}
	for c := range s.consumers {
		for _, part := range c.parts {
			c.lose(part)
		}
	}
}

func (s *fakeServer) comeBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.stalled = false, false
	for p := range s.producers {
		time.AfterFunc(0, p.respond)
	}
	for _, t := range s.topics {
		for _, sub := range t.subs {
			s.pump(sub)
		}
	}
}
