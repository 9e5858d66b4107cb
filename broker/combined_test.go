package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
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
		if code := codeOf(err); code != tidegate.CodeTopicNotFound && code != tidegate.CodeConsumerGroupNotFound {
			c.t.Errorf("receive: %v", err)
		}
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
