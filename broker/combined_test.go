package broker_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A combinedMessage is a message that the broker has confirmed.
type combinedMessage struct {
	id, topic, tag, body string
	in                   uint32 // the topic's number
	step                 int    // in which it was sent, or its transaction committed
	due                  time.Time
	half                 tidegate.Receipt
	handle               string // to recall it
	gone                 bool   // recalled, rolled back or not committed: no group may receive it again
	goneIn               int    // the step of that response
}

// A copyOf is a group's copy of a message: its number and the place.
type copyOf struct {
	group uint32
	place store.Place
}

// A combinedCopy has the responses that a group got about its copy.
type combinedCopy struct {
	acked            int // the step of its response, 0 without one
	attempt, earlier int // the highest attempt, and the highest before step
	step             int
	how              string
}

// A taken is a delivery without a settlement.
type taken struct {
	*tidegate.Delivery
	key   copyOf
	boot  int
	owned bool
}

// A combined run does all operations that change stored data, on the same topics and groups.
type combined struct {
	t    *testing.T
	rnd  *rand.Rand
	fs   *vfs.MemFS
	b    *broker.Broker
	boot int
	anew atomic.Int64 // the step in which a group was last deleted and created again

	mu           sync.Mutex // of all below
	step, n      int
	messages     map[string]*combinedMessage
	halfMessages []*combinedMessage
	delayed      []*combinedMessage
	held         []taken
	copies       map[copyOf]*combinedCopy
	done         map[string]bool        // group number + message: consumed
	dead         map[string]bool        // group + message: found among dead letters or expired messages
	places       map[string]store.Place // topic number + message: where it is
	order        map[string]int64       // group and topic number, message group: the highest offset delivered
	began        map[[2]uint32]int      // group and topic number: the step of the first receive
	purged       map[uint32]int         // topic number: the last purge's step
	lossy        map[string]bool        // topics whose settings may have removed messages without a trace
	lost         int                    // the step of the last power loss
}

var combinedTopics = map[string]settings.Topic{
	"n": {Queues: 2}, "f": {Type: settings.TopicFIFO, Queues: 2}, "d": {Type: settings.TopicDelay, Queues: 1}, "x": {Type: settings.TopicTransaction, Queues: 1},
}

// Groups and their filters: g's is by tag, s's by SQL.
var combinedFilters = map[string]tidegate.Filter{
	"g": {Expression: "a || b"}, "s": {SQL: true, Expression: "TAGS <> 'c'"}, "r": {}, "o": {},
}

func (c *combined) group(rnd *rand.Rand) string { return string("gsro"[rnd.IntN(4)]) }
func (c *combined) topic(rnd *rand.Rand) string { return string("nfdx"[rnd.IntN(4)]) }

// number returns a topic's number, 0 if it is not there.
func (c *combined) number(topic string) uint32 {
	return c.numbers("", topic)[1]
}

// numbers returns those of a group and a topic, 0 for each that is not there.
func (c *combined) numbers(group, topic string) (n [2]uint32) {
	catalog := c.b.Engine().Parts().Catalog
	if g := catalog.FindGroup(group); g != nil {
		n[0] = g.ID()
	}
	if t := catalog.FindTopic(topic); t != nil {
		n[1] = t.ID()
	}
	return n
}

func doneKey(group uint32, id string) string  { return fmt.Sprint(group, " ", id) }
func placeKey(topic uint32, id string) string { return fmt.Sprint(topic, " ", id) }
func orderKey(h consume.Handle, messageGroup string) string {
	return fmt.Sprint(h.Group, " ", h.Place.Topic, " ", messageGroup)
}

func (c *combined) send(rnd *rand.Rand) {
	topic := c.topic(rnd)
	in := c.number(topic)
	var ms []*combinedMessage
	var out []engine.Incoming
	for range 1 + rnd.IntN(5) {
		c.mu.Lock()
		c.n++
		m := &combinedMessage{id: fmt.Sprintf("%s%05d", topic, c.n), topic: topic, in: in, tag: string("abc"[rnd.IntN(3)])}
		c.mu.Unlock()
		m.body = strings.Repeat(m.id, 1+rnd.IntN(40))
		msg := &tidegate.Message{ID: m.id, Topic: topic, Tag: m.tag, Body: []byte(m.body), Properties: map[string]string{"k": m.id}}
		switch topic {
		case "f":
			msg.MessageGroup = fmt.Sprint("mg", rnd.IntN(3))
		case "d":
			m.due = time.Now().Add(time.Duration(rnd.IntN(90)) * time.Second)
			msg.DeliverAt = m.due
		}
		ms, out = append(ms, m), append(out, engine.Incoming{Message: msg, Half: topic == "x"})
	}
	results := serve(c.b).Append(c.t.Context(), out)
	if rnd.IntN(5) == 0 && !c.wasDeleted(in) { // the response was lost: the same request again
		again := serve(c.b).Append(c.t.Context(), out)
		for i := range results {
			if results[i].Err != nil {
				results[i] = again[i]
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range results {
		m := ms[i]
		if r.Err != nil {
			if code := codeOf(r.Err); code != tidegate.CodeTopicNotFound && !errors.Is(r.Err, tidegate.ErrThrottled) {
				c.t.Errorf("send of %s: %v", m.id, r.Err)
			}
			continue
		}
		m.step = c.step
		c.messages[m.id] = m
		switch {
		case r.Receipt.TransactionID != "":
			m.half, m.gone, m.goneIn = r.Receipt, true, c.step
			c.halfMessages = append(c.halfMessages, m)
		case r.Receipt.RecallHandle != "":
			m.handle = r.Receipt.RecallHandle
			c.delayed = append(c.delayed, m)
		}
	}
}

// wasDeleted reports whether the topic of that number no longer exists.
func (c *combined) wasDeleted(in uint32) bool {
	return c.b.Engine().Parts().Catalog.TopicsByID()[in] == nil
}

func (c *combined) endTransaction(rnd *rand.Rand) {
	c.mu.Lock()
	if len(c.halfMessages) == 0 {
		c.mu.Unlock()
		return
	}
	i := rnd.IntN(len(c.halfMessages))
	m := c.halfMessages[i]
	c.halfMessages = append(c.halfMessages[:i:i], c.halfMessages[i+1:]...)
	c.mu.Unlock()
	how := transport.Commit
	if rnd.IntN(4) == 0 {
		how = transport.Rollback
	}
	c.mu.Lock()
	m.gone = m.gone && how != transport.Commit
	c.mu.Unlock()
	err := serve(c.b).EndTransaction(c.t.Context(), engine.TransactionEnd{Topic: m.topic, TransactionID: m.half.TransactionID, MessageID: m.id, Resolution: how})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		m.step, m.goneIn = c.step, c.step
	default: // deleted with its topic, or abandoned
		delete(c.messages, m.id)
	}
}

func (c *combined) recall(rnd *rand.Rand) {
	c.mu.Lock()
	if len(c.delayed) == 0 {
		c.mu.Unlock()
		return
	}
	i := rnd.IntN(len(c.delayed))
	m := c.delayed[i]
	c.delayed = append(c.delayed[:i:i], c.delayed[i+1:]...)
	c.mu.Unlock()
	_, err := c.b.Recall(c.t.Context(), m.topic, m.handle)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		m.gone, m.goneIn = true, c.step
	}
}

func (c *combined) receive(rnd *rand.Rand, group, topic string, limit int) int {
	c.mu.Lock()
	step := c.step
	c.mu.Unlock()
	p := engine.Request{ReceiveRequest: transport.ReceiveRequest{
		Group: group, Topic: topic, Max: limit, Queue: transport.AnyQueue, Filter: combinedFilters[group], Push: rnd.IntN(2) == 0,
		InvisibleDuration: time.Duration(1+rnd.IntN(60)) * time.Second,
	}}
	if rnd.IntN(8) == 0 {
		p.Owner = "client"
	}
	if group == "o" && rnd.IntN(3) == 0 {
		p.AttemptID = fmt.Sprint("attempt", rnd.IntN(3))
	}
	before := c.numbers(group, topic)
	ds, err := serve(c.b).Poll(c.t.Context(), p)
	after := c.numbers(group, topic)
	if err != nil {
		code := codeOf(err)
		assert.That(c.t, code == tidegate.CodeTopicNotFound || code == protocol.CodeConsumerGroupNotFound, "receive: %v", err)
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before == after && c.began[after] == 0 {
		c.began[after] = step
	}
	for _, d := range ds {
		c.delivered(d, step, p.Owner != "")
	}
	return len(ds)
}

var (
	combinedSeed      = flag.Uint64("combined.seed", 0, "run one sequence of the combined test, the one with this seed")
	combinedSequences = flag.Int("combined.sequences", 1, "how many sequences the combined test runs")
)

// Random operations of all kinds run at the same time on the same topics and groups, with restarts
// and power failures. Acknowledged results hold, no message is lost unless it was removed, and all
// counters match the content.
func TestCombined(t *testing.T) {
	t.Parallel()
	runSequences(t, "combined", *combinedSeed, *combinedSequences, runCombined)
}

func runCombined(t *testing.T, seed uint64) {
	c := &combined{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewCrashableMem(), step: 1, messages: map[string]*combinedMessage{},
		copies: map[copyOf]*combinedCopy{}, done: map[string]bool{}, dead: map[string]bool{}, places: map[string]store.Place{},
		order: map[string]int64{}, began: map[[2]uint32]int{}, purged: map[uint32]int{}, lossy: map[string]bool{},
	}
	c.open()
	defer func() { c.b.Close() }()
	for name, config := range combinedTopics {
		putTopic(t, c.b, name, config)
	}
	for name := range combinedFilters {
		putGroup(t, c.b, name, combinedGroup(c.rnd, name))
	}
	tame := c.rnd.IntN(2) == 0 // nothing is removed without a trace
	for range 60 {
		c.step++
		switch n := c.rnd.IntN(24); {
		case n == 0:
			c.restart(false)
		case n == 1:
			c.restart(true)
		case n < 6:
			time.Sleep(time.Duration(c.rnd.IntN(60_000)) * time.Millisecond)
		case n == 6:
			time.Sleep(time.Duration(c.rnd.IntN(10)) * time.Minute)
		default:
			var wg sync.WaitGroup
			for range 1 + c.rnd.IntN(3) {
				rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 0))
				wg.Go(func() { c.do(rnd, tame) })
			}
			wg.Wait()
		}
		c.audit()
		if t.Failed() {
			return
		}
	}
	c.runDry()
}

func (c *combined) open() {
	b := assert.Value(broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(c.fs).MemTable(128 << 10)))(c.t)
	c.b = b
	c.boot++
}

// restart closes the broker and opens it again, in some runs on the content after a power failure.
func (c *combined) restart(powerLoss bool) {
	synctest.Wait()
	fs := c.fs
	if powerLoss {
		fs = c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.rnd.IntN(3) * 50, RNG: c.rnd})
		c.lost = c.step
		c.order = map[string]int64{} // first deliveries may have been taken back
		for _, copied := range c.copies {
			if copied.attempt == 1 {
				copied.attempt = 0
			}
		}
	}
	assert.NoError(c.t, c.b.Close())
	c.fs = fs
	c.open()
}

func combinedGroup(rnd *rand.Rand, name string) settings.Group {
	c := settings.Group{
		FIFO: name == "o", MaxAttempts: 1 + rnd.IntN(4), Retry: []time.Duration{time.Second, 10 * time.Second},
		FIFORetryInterval: settings.Duration(3 * time.Second), NegativeAck: settings.NegativeAck{MaxRedeliveries: rnd.IntN(3)},
	}
	if name == "r" {
		c.RetryTopic = settings.RetryTopic{Enabled: true, MaxRetries: 1 + rnd.IntN(3), Levels: []time.Duration{time.Second, 20 * time.Second}}
	}
	return c
}

// do does one thing. In a tame run the end of each message is certain.
func (c *combined) do(rnd *rand.Rand, tame bool) {
	ctx := c.t.Context()
	topic, group := c.topic(rnd), c.group(rnd)
	switch n := rnd.IntN(64); {
	case n < 14:
		c.send(rnd)
	case n < 18:
		c.endTransaction(rnd)
	case n < 20:
		c.recall(rnd)
	case n < 36:
		c.receive(rnd, group, topic, 1+rnd.IntN(16))
	case n < 50:
		c.settle(rnd)
	case n < 53:
		c.putAddress(rnd, tame)
	case n == 53:
		_ = c.b.DeleteAddressSettings(ctx, combinedPatterns[rnd.IntN(len(combinedPatterns))])
	case n < 56:
		_, err := c.b.PutGroup(ctx, group, combinedGroup(rnd, group))
		assert.That(c.t, err == nil || c.anew.Load() == int64(c.step), "%+v", err)
	case n < 59:
		c.putTopic(rnd, topic, tame)
	case n == 59:
		c.purge(topic)
	case n == 60 && !tame:
		_ = c.b.DeleteTopic(ctx, topic)
		_, _ = c.b.PutTopic(ctx, topic, combinedTopics[topic])
	case n == 61:
		// A receive beside it can make the group before it is put, without FIFO, which then cannot
		// change.
		c.anew.Store(int64(c.step))
		for tries := 1; ; tries++ {
			_ = c.b.DeleteGroup(ctx, group)
			if _, err := c.b.PutGroup(ctx, group, combinedGroup(rnd, group)); err == nil {
				break
			} else if tries == 10 {
				c.t.Error(err)
				break
			}
		}
	default:
		var others []string
		for _, t := range c.b.Topics() {
			if _, ours := combinedTopics[t.Name]; !ours && !strings.HasSuffix(t.Name, "-RETRY") {
				others = append(others, t.Name)
			}
		}
		if len(others) > 0 {
			c.receive(rnd, "w", others[rnd.IntN(len(others))], 32)
		}
	}
}

var combinedPatterns = []string{"#", "n", "f", "*", "DLQ.#"}

func (c *combined) putAddress(rnd *rand.Rand, tame bool) {
	match := combinedPatterns[rnd.IntN(len(combinedPatterns))]
	delay, attempts, dead, auto, expiry, expired := settings.Milliseconds(rnd.IntN(5000)), 1+rnd.IntN(3), "DLA", rnd.IntN(2) == 0, settings.Milliseconds(60_000), "EXP"
	s := settings.Address{RedeliveryDelay: &delay, MaxDeliveryAttempts: &attempts, DeadLetterAddress: &dead, AutoCreateDeadLetterResources: &auto}
	if rnd.IntN(3) == 0 {
		s = settings.Address{AutoDeleteQueues: &auto, PersistDeliveryCountBeforeDelivery: &auto}
	}
	if rnd.IntN(4) == 0 {
		s.ExpiryDelay, s.ExpiryAddress = &expiry, &expired
	}
	if !tame && rnd.IntN(3) == 0 {
		c.mu.Lock()
		for name := range combinedTopics {
			c.lossy[name] = true
		}
		c.mu.Unlock()
		s.DeadLetterAddress, s.ExpiryAddress = nil, nil
	}
	if match != "n" && match != "f" { // or the messages in EXP expire there
		s.ExpiryDelay, s.ExpiryAddress = nil, nil
	}
	assert.NoError(c.t, assert.Err(c.b.PutAddressSettings(c.t.Context(), match, s)))
}

func (c *combined) putTopic(rnd *rand.Rand, topic string, tame bool) {
	config := combinedTopics[topic]
	config.Retention = settings.Retention{Time: -1, Consumed: rnd.IntN(2) == 0}
	config.DuplicateWindow = settings.Duration([]time.Duration{0, 0, time.Second, time.Minute}[rnd.IntN(4)])
	if !tame && rnd.IntN(2) == 0 {
		c.mu.Lock()
		c.lossy[topic] = true
		c.mu.Unlock()
		config.Retention.Time = settings.Duration([]time.Duration{-1, time.Minute}[rnd.IntN(2)])
		config.Retention.Bytes = []int64{0, 3000}[rnd.IntN(2)]
	}
	config.MaxBacklog.Messages = int64(rnd.IntN(3) * 100)
	config.MaxBacklog.Age = settings.Duration(rnd.IntN(2)) * settings.Duration(time.Hour)
	if t, err := c.b.Topic(topic); err == nil && topic != "f" {
		config.Queues = min(t.Queues+rnd.IntN(2), 4)
	}
	if _, err := c.b.PutTopic(c.t.Context(), topic, config); err != nil && codeOf(err) != tidegate.CodeBadRequest { // queues may have grown meanwhile
		c.t.Error(err)
	}
}

func (c *combined) purge(topic string) {
	in := c.number(topic)
	c.mu.Lock()
	step := c.step
	c.mu.Unlock()
	if _, err := c.b.PurgeTopic(c.t.Context(), topic); err == nil && in == c.number(topic) {
		c.mu.Lock()
		c.purged[in] = max(c.purged[in], step)
		c.mu.Unlock()
	}
}

// audit compares the counters of the broker with its content in memory and on disk.
func (c *combined) audit() {
	synctest.Wait()
	b := c.b
	release := holdRetention(c.t, b)
	inLog(b, func(*store.Batch) { c.auditAll(b.Engine().Parts()) })
	release()
	for _, s := range serve(b).Stats().Topics {
		d := assert.Value(b.Topic(s.Name))(c.t)
		assert.That(c.t, s.Stored == (status.Backlog{Messages: d.StoredMessages, Bytes: d.StoredBytes}),
			"%s has %+v in the statistics, and %d messages, %d bytes", s.Name, s.Stored, d.StoredMessages, d.StoredBytes)
	}
}

func (c *combined) auditAll(p engine.Parts) {
	var ahead int64
	leases, cursors, subs := map[copyOf]store.Lease{}, map[copyOf]store.Cursor{}, map[[2]uint32]bool{}
	halfMessages := map[uint32]int64{}
	for _, err := range []error{
		p.Store.Leases(func(group uint32, p store.Place, l store.Lease) error { leases[copyOf{group, p}] = l; return nil }),
		p.Store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
			cursors[copyOf{group, store.Place{Topic: topic, Queue: queue}}] = at
			return nil
		}),
		p.Store.Subscriptions(func(group, topic uint32) error { subs[[2]uint32{group, topic}] = true; return nil }),
		p.Store.HalfMessages(func(id store.HalfID, _ store.HalfState) error { halfMessages[id.Topic]++; return nil }),
	} {
		assert.Must(c.t, err)
	}
	topics, all := p.Catalog.All()
	for _, t := range topics {
		c.auditTopic(p.Store, t)
		if t.Counters().Half.Load() != halfMessages[t.ID()] {
			c.t.Errorf("%s counts %d half messages; there are %d", t.Name(), t.Counters().Half.Load(), halfMessages[t.ID()])
		}
		for _, of := range t.Subscriptions() {
			s := of.(*engine.Subscription)
			if p.Catalog.Find(s.Group().ID(), t.ID()) != s || p.Catalog.FindGroup(s.Group().Name()) != s.Group() {
				c.t.Errorf("%s has the subscription of %s, which is not there", t.Name(), s.Group().Name())
			}
		}
	}
	for _, s := range all {
		k := [2]uint32{s.Group().ID(), s.Topic().ID()}
		if !slices.Contains(s.Topic().Subscriptions(), engine.TopicSubscription(s)) || p.Catalog.FindTopic(s.Topic().Name()) != s.Topic() {
			c.t.Errorf("the subscription of %s to %s is not its topic's", s.Group().Name(), s.Topic().Name())
		}
		if !subs[k] {
			c.t.Errorf("the subscription of %s to %s is not on disk", s.Group().Name(), s.Topic().Name())
		}
		delete(subs, k)
		ahead += c.auditSubscription(p.Store, s, leases, cursors)
	}
	assert.That(c.t, len(leases) == 0 && len(cursors) == 0 && len(subs) == 0,
		"left on disk: leases %v, cursors %v, subscriptions %v", leases, cursors, subs)
	assert.Equal(c.t, "bytes are counted as read ahead are", p.Env.Reads.Ahead(), ahead)
}

// auditTopic reads every queue of a topic.
func (c *combined) auditTopic(st *store.Store, t *engine.Topic) {
	var all, low, leftovers status.Backlog
	for _, q := range t.Queues() {
		at := q.Low()
		disk := assert.Value(st.Queue(t.ID(), q.Number()))(c.t)
		if disk.First != at || disk.End.Offset != q.End() || disk.End.Offset != q.Next().Offset || disk.End.Bytes != q.Next().Bytes {
			c.t.Errorf("%s/%d: on disk from %+v to %+v, in memory from %+v to %d (%d bytes)", t.Name(), q.Number(), disk.First, disk.End, at, q.Next().Offset, q.Next().Bytes)
		}
		if len(disk.Leftovers) != len(q.Retention.Leftovers) {
			c.t.Errorf("%s/%d: %d are kept on disk, %d in memory", t.Name(), q.Number(), len(disk.Leftovers), len(q.Retention.Leftovers))
		}
		for o, m := range disk.Leftovers {
			leftovers.Messages++
			leftovers.Bytes += m.Size
			needed := false
			for _, of := range t.Subscriptions() {
				s := of.(*engine.Subscription)
				s.Look(func(p *consume.Progress) {
					needed = needed || int(q.Number()) < p.Queues() && p.Lease(int(q.Number()), o) != nil
				})
			}
			if !needed && !t.RoundIsSet() {
				c.t.Errorf("%s/%d: offset %d is kept without a reader, and no round will remove it", t.Name(), q.Number(), o)
			}
		}
		for o := at.Offset; o < q.Next().Offset; o++ {
			if _, ok, err := st.Get(store.Place{Topic: t.ID(), Queue: q.Number(), Offset: o}); !ok || err != nil {
				c.t.Errorf("%s/%d: offset %d of %d to %d is not there: %v", t.Name(), q.Number(), o, at.Offset, q.Next().Offset, err)
			}
		}
		all.Messages, all.Bytes = all.Messages+q.Next().Offset, all.Bytes+q.Next().Bytes
		low.Messages, low.Bytes = low.Messages+at.Offset, low.Bytes+at.Bytes
	}
	if got := (status.Backlog{Messages: t.Written().Messages, Bytes: t.Written().Bytes}); got != all {
		c.t.Errorf("%s counts %+v in all; it is %+v", t.Name(), got, all)
	}
	var delayed status.Backlog
	waiting := assert.Value(st.DelayedOf(t.ID(), store.StoredDelayed{}, 1<<20))(c.t)
	for _, m := range waiting {
		delayed.Messages, delayed.Bytes = delayed.Messages+1, delayed.Bytes+m.Size
	}
	if got := status.Backlog(t.Delayed()); got != delayed {
		c.t.Errorf("%s counts %+v delayed; it is %+v", t.Name(), got, delayed)
	}
	if got := (status.Backlog{Messages: t.Before().Messages, Bytes: t.Before().Bytes}); got != low {
		c.t.Errorf("%s counts %+v removed; it is %+v", t.Name(), got, low)
	}
	if got := (status.Backlog{Messages: t.Leftovers().Messages, Bytes: t.Leftovers().Bytes}); got != leftovers {
		c.t.Errorf("%s counts %+v kept; it is %+v", t.Name(), got, leftovers)
	}
}

// auditSubscription removes the records that it finds from those on disk, and returns the bytes
// that are read ahead.
func (c *combined) auditSubscription(st *store.Store, s *engine.Subscription, leases map[copyOf]store.Lease, cursors map[copyOf]store.Cursor) (ahead int64) {
	who := s.Group().Name() + " in " + s.Topic().Name()
	var want status.Backlog
	var leased int64
	s.Look(func(p *consume.Progress) { want, leased = c.auditProgress(st, s, p, leases, cursors) })
	want.Bytes += leased
	got := status.Backlog(s.Backlog())
	assert.That(c.t, got == want, "%s counts a backlog of %+v; it is %+v", who, got, want)
	if s.LeasedBytes() != leased {
		c.t.Errorf("%s counts %d bytes; it is %d", who, s.LeasedBytes(), leased)
	}
	a, err := s.Audit()
	assert.That(c.t, err == nil, "%s: %v", who, err)
	return a.Ahead
}

// auditProgress is the part of auditSubscription under the lock. It returns the messages after the
// cursors and under leases, without the bytes of the latter, and these bytes.
func (c *combined) auditProgress(st *store.Store, s *engine.Subscription, p *consume.Progress, leases map[copyOf]store.Lease, cursors map[copyOf]store.Cursor) (want status.Backlog, leased int64) {
	who := s.Group().Name() + " in " + s.Topic().Name()
	for i, q := range s.Topic().Queues()[:p.Queues()] {
		cur := p.Cursor(i)
		if low := q.Low(); cur.Next < low.Offset || cur.Next > q.Next().Offset || p.Claimed(i) {
			c.t.Errorf("%s is at %d, from %d to %d; claimed %v", who, cur.Next, low.Offset, q.Next().Offset, p.Claimed(i))
		}
		want.Messages += q.Next().Offset - cur.Next
		want.Bytes += q.Next().Bytes - cur.Bytes
		at := copyOf{s.Group().ID(), store.Place{Topic: s.Topic().ID(), Queue: q.Number()}}
		if on, ok := cursors[at]; ok && (on.Next > cur.Next || on.Next == cur.Next && on.Bytes != cur.Bytes) || ok && on.Next < cur.Next && cur.Next != q.Low().Offset {
			c.t.Errorf("%s: the cursor of queue %d is %d, %d bytes, and %+v on disk", who, q.Number(), cur.Next, cur.Bytes, on)
		}
		delete(cursors, at)
		oldest := int64(0)
		for o, l := range p.Leases(i) {
			at.place.Offset = o
			leased += l.Size
			want.Messages++
			oldest = throttle.Lesser(oldest, l.Stored/throttle.AgeTick)
			switch l.State() {
			case consume.Inflight, consume.WaitingRetry, consume.Ready, consume.Held:
			default:
				c.t.Errorf("%s: offset %d is %v, and nothing is under way", who, o, l.State())
			}
			m, there, err := st.FirstIn(store.Range{Topic: at.place.Topic, Queue: at.place.Queue, From: o, To: o + 1})
			if err != nil || !there || m.Size != l.Size || m.At.UnixNano() != l.Stored || o >= cur.Next {
				c.t.Errorf("%s has a lease of offset %d of queue %d, %+v (next is %d): %+v, %v", who, o, q.Number(), l.Lease, cur.Next, m, err)
			}
			if on, ok := leases[at]; !ok || on.Attempt != l.Attempt || on.Serial != l.Serial {
				c.t.Errorf("%s: the lease of offset %d of queue %d is %+v, on disk %+v", who, o, q.Number(), l.Lease, on)
			}
			delete(leases, at)
		}
		if got := p.Oldest(i) / throttle.AgeTick; got != oldest {
			c.t.Errorf("%s: its oldest lease is of %d, and of %d", who, got, oldest)
		}
	}
	return want, leased
}

// ownerOf returns the names of the groups that a dead letter or an expired message is of.
func ownerOf(d *tidegate.Delivery) []string {
	return []string{d.Properties[protocol.PropertyDeadLetterGroup], d.Properties[protocol.PropertyOriginalQueue]}
}

// delivered checks a delivery of a receive that began in a step. mu is held.
func (c *combined) delivered(d *tidegate.Delivery, began int, owned bool) {
	id := d.Properties["k"]
	assert.That(c.t, len(d.Body) != 0 && string(d.Body) == strings.Repeat(id, len(d.Body)/max(1, len(id))),
		"%s has the body %.50q", id, d.Body)
	h := assert.Value(consume.ParseHandle(d.Handle))(c.t)
	key := copyOf{h.Group, h.Place}
	for _, g := range ownerOf(d) {
		if g != "" {
			c.dead[g+" "+id] = true
		}
	}
	if _, ours := combinedTopics[d.Topic]; !ours {
		c.held = append(c.held, taken{d, key, c.boot, owned})
		return
	}
	m, copied := c.messages[id], c.copies[key]
	if copied == nil {
		copied = &combinedCopy{}
		c.copies[key] = copied
	}
	original := d.Properties[protocol.PropertyRealTopic] == ""
	switch {
	case m == nil:
	case m.gone && m.goneIn < began:
		c.t.Errorf("%s was recalled, rolled back or never committed, and %s got it", id, d.ConsumerGroup)
	case string(d.Body) != m.body || d.Tag != m.tag || d.ID != id && original:
		c.t.Errorf("%s has another body, tag or ID: %+v", id, d.Message)
	case time.Now().Before(m.due):
		c.t.Errorf("%s came at %v and is due at %v", id, time.Now(), m.due)
	case original && m.step < c.purged[h.Place.Topic] && c.purged[h.Place.Topic] < began:
		c.t.Errorf("%s was sent in step %d, purged in %d, and delivered", id, m.step, c.purged[h.Place.Topic])
	case d.ConsumerGroup == "g" && d.Tag == "c", d.ConsumerGroup == "s" && d.Tag == "c":
		c.t.Errorf("%s does not match the filter of %s", id, d.ConsumerGroup)
	}
	if original {
		where := placeKey(h.Place.Topic, id)
		if p, ok := c.places[where]; ok && p != h.Place {
			c.t.Errorf("%s is stored twice: at %+v and %+v", id, p, h.Place)
		}
		c.places[where] = h.Place
	}
	if copied.acked != 0 && copied.acked < began {
		c.t.Errorf("%s was acknowledged by %s in step %d (power lost in %d) and delivered again in attempt %d: %s", id, d.ConsumerGroup, copied.acked, c.lost, d.Attempt, copied.how)
	}
	if copied.step < c.step {
		copied.earlier, copied.step = copied.attempt, c.step
	}
	assert.That(c.t, d.Attempt >= copied.earlier,
		"%s was delivered to %s in attempt %d after %d", id, d.ConsumerGroup, d.Attempt, copied.earlier)
	copied.attempt = max(copied.attempt, d.Attempt)
	if d.ConsumerGroup == "o" && d.MessageGroup != "" && original {
		at := orderKey(h, d.MessageGroup)
		if d.Offset < c.order[at]-1 {
			c.t.Errorf("%s at offset %d of message group %s comes after that at %d", id, d.Offset, d.MessageGroup, c.order[at]-1)
		}
		c.order[at] = max(c.order[at], d.Offset+1)
	}
	c.held = append(c.held, taken{d, key, c.boot, owned})
}

// settle settles one delivery, or acknowledges several.
func (c *combined) settle(rnd *rand.Rand) {
	c.mu.Lock()
	var held []taken
	for range 1 + rnd.IntN(8) {
		if len(c.held) > 0 {
			i := rnd.IntN(len(c.held))
			held = append(held, c.held[i])
			c.held = append(c.held[:i:i], c.held[i+1:]...)
		}
	}
	c.mu.Unlock()
	if len(held) == 0 {
		return
	}
	if rnd.IntN(2) == 0 {
		c.ack(held)
		return
	}
	ctx := c.t.Context()
	for _, h := range held {
		dur := time.Duration(rnd.IntN(40)) * time.Second
		var err error
		switch rnd.IntN(8) {
		case 0:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.Retry, Delay: dur})
		case 7:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.Snooze, Delay: dur})
		case 1:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.NegativeAck, Delay: dur})
		case 2:
			var r engine.Reconsumed
			mode := transport.Verdict{Kind: transport.RetryTopic}
			if rnd.IntN(4) == 0 {
				mode.Delay = time.Duration(1+rnd.IntN(864_000)) * time.Second
			}
			if r, err = serve(c.b).ReconsumeLater(ctx, h.Delivery, mode); err == nil && r.MessageID != "" {
				c.acked(h, "reconsumed")
			}
		case 3:
			var handle string
			if rnd.IntN(2) == 0 {
				dur = 0
			}
			if handle, err = c.b.Extend(ctx, h.Delivery, dur, false); err == nil && dur > 0 {
				changed := *h.Delivery
				changed.Handle, changed.InvisibleUntil = handle, time.Now().Add(dur)
				c.mu.Lock()
				c.held = append(c.held, taken{&changed, h.key, c.boot, false})
				c.mu.Unlock()
			}
		case 4:
			if _, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.DeadLetter, Reason: "combined"}); err == nil {
				c.acked(h, "dead letter")
			}
		case 5:
			serve(c.b).Return(ctx, []*tidegate.Delivery{h.Delivery})
		default:
			c.ack([]taken{h})
		}
		c.wrong(h, err)
	}
}

func (c *combined) ack(held []taken) {
	ds := make([]*tidegate.Delivery, len(held))
	for i := range held {
		ds[i] = held[i].Delivery
	}
	for i, err := range c.b.Ack(c.t.Context(), ds) {
		if err == nil {
			c.acked(held[i], "consumed")
		}
		c.wrong(held[i], err)
	}
}

// acked notes that a group is done with its copy, permanently if it has consumed it.
func (c *combined) acked(h taken, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if copied := c.copies[h.key]; copied != nil && copied.acked == 0 {
		copied.acked, copied.how = c.step, how
	}
	if how == "consumed" {
		c.done[doneKey(h.key.group, h.Properties["k"])] = true
	}
}

// wrong reports an error that nothing explains.
func (c *combined) wrong(h taken, err error) {
	switch code := codeOf(err); {
	case err == nil, code == tidegate.CodeBadRequest && h.ConsumerGroup != "r":
	case code != tidegate.CodeInvalidReceiptHandle && code != tidegate.CodeTopicNotFound && code != protocol.CodeConsumerGroupNotFound:
		c.t.Errorf("%s of %s: %v", h.Properties["k"], h.ConsumerGroup, err)
	}
}

// runDry consumes all that is left, and looks where each message went.
func (c *combined) runDry() {
	ctx := c.t.Context()
	for _, s := range c.b.AllAddressSettings() {
		_ = c.b.DeleteAddressSettings(ctx, s.Match)
	}
	for _, t := range c.b.Topics() {
		t.Retention = settings.Retention{Time: -1}
		putTopic(c.t, c.b, t.Name, t.Topic)
	}
	for name := range combinedFilters {
		g, _ := c.b.Group(name)
		g.MaxAttempts = -1
		putGroup(c.t, c.b, name, g.Group)
	}
	putGroup(c.t, c.b, "w", settings.Group{MaxAttempts: -1})
	assert.NoError(c.t, c.b.Close())
	time.Sleep(11 * 24 * time.Hour) // all delays are over
	c.open()
	elapse(15 * time.Minute) // and all transactions
	c.step++
	for quiet := 0; quiet < 3; quiet++ {
		c.step++
		for _, t := range c.b.Topics() {
			groups := slices.Collect(maps.Keys(combinedFilters))
			if _, ours := combinedTopics[t.Name]; !ours {
				groups = append(slices.Clone(t.Groups), "w")
			}
			for _, g := range groups {
				if r, _ := c.b.Group("r"); g == "w" && mustOriginal(r.RetryTopic, t.Name) {
					continue
				}
				for c.receive(c.rnd, g, t.Name, 32) > 0 {
					quiet = 0
					c.ack(c.held)
					c.held = nil
				}
			}
		}
		elapse(3 * time.Minute)
		c.audit()
	}
	c.account()
	c.empty()
}

func mustOriginal(rt settings.RetryTopic, topic string) bool {
	_, is := rt.Original(topic, "r")
	return is
}

// account finds every confirmed message.
func (c *combined) account() {
	for _, m := range c.messages {
		if in := c.number(m.topic); in == 0 || in != m.in || m.gone || m.step <= c.purged[m.in] || c.lossy[m.topic] {
			continue
		}
		for name := range combinedFilters {
			of := c.numbers(name, m.topic)
			if m.tag == "c" && (name == "g" || name == "s") {
				continue
			}
			if began := c.began[of]; began == 0 || began > m.step {
				continue // it may have come when others had consumed the message
			}
			if !c.done[doneKey(of[0], m.id)] && !c.dead[name+" "+m.id] {
				c.t.Errorf("%s, confirmed in step %d, was never delivered to %s (%d, since %d)", m.id, m.step, name, of[0], c.began[of])
			}
		}
	}
}

// empty checks that nothing is left once everything is consumed.
func (c *combined) empty() {
	for _, s := range serve(c.b).Stats().Groups {
		if s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 || s.OldestMS != 0 || s.UndeliveredMS != 0 {
			c.t.Errorf("%s is left with %+v", s.Group, s)
		}
	}
	for _, s := range subscriptions(c.b) {
		c.quiet(s)
	}
	for _, t := range c.b.Topics() {
		t.Retention.Consumed = true
		putTopic(c.t, c.b, t.Name, t.Topic)
	}
	elapse(10 * time.Minute)
	c.audit()
	for _, t := range c.b.Topics() {
		assert.That(c.t, (len(t.Groups) == 0 || t.StoredMessages == 0 && t.StoredBytes == 0) && t.HalfMessages == 0,
			"%s is left with %d messages, %d bytes, %d half messages", t.Name, t.StoredMessages, t.StoredBytes, t.HalfMessages)
	}
}

// quiet checks that a subscription keeps nothing in memory.
func (c *combined) quiet(s *engine.Subscription) {
	waiting := s.Status().Waiting
	s.Look(func(p *consume.Progress) {
		if _, due := p.NextDue(); due || p.Counts() != (consume.Counts{}) || p.MessageGroups() > 0 || waiting > 0 {
			c.t.Errorf("%s in %s keeps %v, %d message groups, %d receives", s.Group().Name(), s.Topic().Name(), p.Counts(), p.MessageGroups(), waiting)
		}
	})
}
