package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/transport"
)

// A sentMessage has the promises of a recorded run about one message.
type sentMessage struct {
	topic, fifo   string
	batch         int
	order         int
	until         time.Time
	answered      bool
	maybeRecalled bool
	recalled      bool
	receipt       *tidegate.Receipt // of the last one of its batch
	sent          time.Time
}

// A groupPromise has the promises to a group about one message.
type groupPromise struct {
	attempt           int // of the last delivery whose response came, and counts
	acked, maybeAcked bool
	dead, maybeDead   bool
	until             time.Time // not to be delivered before
}

// An expectation follows from the facts up to some moment.
type expectation struct {
	messages map[string]*sentMessage
	order    []string
	groups   map[string]*groupPromise // by group and message ID
	unsure   map[string]bool          // groups that are being deleted
	x        map[int]string           // the known state of the topic x, by generation: "deleted", "maybe", ""
	gen      int
	settings map[string]map[int]bool // the attempts that a group may be set to
	topics   map[string]bool         // true: it must be there
}

func expect(facts []fact) *expectation {
	e := &expectation{
		messages: map[string]*sentMessage{}, groups: map[string]*groupPromise{}, unsure: map[string]bool{}, x: map[int]string{},
		settings: map[string]map[int]bool{}, topics: map[string]bool{},
	}
	for n, f := range facts {
		var p *groupPromise
		if f.group != "" && len(f.ids) > 0 {
			p = e.promise(f.group, f.ids[0])
			p.until = time.Time{} // each operation that begins may change it
		}
		switch f.kind {
		case "put topic":
			e.topics[f.topic] = f.answer || e.topics[f.topic]
		case "put group":
			if f.answer || e.settings[f.group] == nil {
				e.settings[f.group] = map[int]bool{}
			}
			e.settings[f.group][f.max] = f.answer
		case "send":
			for i, id := range f.ids {
				m := e.messages[id]
				if m == nil {
					m = &sentMessage{topic: f.topic, fifo: f.fifo, batch: n, order: len(e.order), until: f.until}
					e.messages[id] = m
					e.order = append(e.order, id)
				}
				m.answered = f.answer
				if f.answer && i == len(f.ids)-1 {
					m.receipt, m.sent = &f.receipt, f.at
				}
			}
		case "recall":
			e.messages[f.ids[0]].maybeRecalled = true
			e.messages[f.ids[0]].recalled = f.answer
		case "receive":
			if f.answer {
				p.attempt = f.attempt
			}
		case "ack":
			p.maybeAcked, p.acked = true, p.acked || f.answer
		case "retry", "change":
			if f.answer {
				p.until = f.until
			}
			p.maybeDead = p.maybeDead || f.kind == "retry"
		case "snooze":
			if p.attempt = min(p.attempt, f.attempt-1); f.answer {
				p.until = f.until
			}
		case "release":
			p.attempt = min(p.attempt, f.attempt-1)
		case "dead letter":
			p.maybeDead, p.dead = true, p.dead || f.answer
		case "delete topic":
			e.topics["x"] = false
			if e.x[e.gen] = "maybe"; f.answer {
				e.x[e.gen] = "deleted"
				e.gen++
			}
		case "delete group":
			e.unsure[f.group] = !f.answer
			e.settings[f.group] = nil
			for k := range e.groups {
				if f.answer && strings.HasPrefix(k, f.group+" ") {
					delete(e.groups, k)
				}
			}
		}
	}
	return e
}

func (e *expectation) promise(group, id string) *groupPromise {
	k := group + " " + id
	if e.groups[k] == nil {
		e.groups[k] = &groupPromise{}
	}
	return e.groups[k]
}

// presence reports whether the message must be in its topic, and whether it may.
func (e *expectation) presence(id string) (must, may bool) {
	m := e.messages[id]
	must, may = m.answered && !m.maybeRecalled, !m.recalled
	if m.topic == "x" {
		var gen int
		fmt.Sscanf(id[strings.Index(id, ".")+1:], "%d", &gen)
		must, may = must && e.x[gen] == "", e.x[gen] != "deleted"
	}
	return must, may
}

// A crash has the data after a power failure, its time, and the promises before it.
type crash struct {
	what  string
	fs    *vfs.MemFS
	at    time.Time
	facts []fact
}

// check opens the data that the crash left, at the time of the crash, and compares it with the
// promises.
func (c *crash) check(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(c.at))
		b, err := broker.Open(crashOptions(c.fs))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			return
		}
		v := &verifier{T: t, b: b, e: expect(c.facts), what: c.what, seen: map[string]int{}, last: map[string]int{}}
		v.settings()
		v.duplicates()
		synctest.Wait()
		v.drain(true)
		for range 2 {
			time.Sleep(61 * time.Second)
			synctest.Wait()
			v.drain(false)
		}
		v.contents()
		v.balance()
		for _, group := range []string{"g", "h", "o"} {
			checkClasses(t, b, group, "")
		}
		if err := b.Close(); err != nil {
			v.Errorf("closing: %v", err)
		}
	})
}

// A verifier queries the data that a broker kept.
type verifier struct {
	*testing.T
	b    *broker.Broker
	e    *expectation
	what string
	seen map[string]int // deliveries by group and message ID
	last map[string]int // the order of the last delivery by group and message group
}

func (v *verifier) Errorf(format string, args ...any) {
	v.Helper()
	v.T.Errorf("%s: "+format, append([]any{v.what}, args...)...)
}

func (v *verifier) settings() {
	for name, must := range v.e.topics {
		if _, err := v.b.Topic(name); must && err != nil {
			v.Errorf("topic %s: %v", name, err)
		}
	}
	for name, max := range v.e.settings {
		g, err := v.b.Group(name)
		for _, answered := range max {
			if answered && err != nil {
				v.Errorf("group %s: %v", name, err)
			}
		}
		if _, ok := max[g.MaxAttempts]; err == nil && len(max) > 0 && !ok {
			v.Errorf("group %s has %d attempts, want one of %v", name, g.MaxAttempts, max)
		}
	}
}

// duplicates repeats the last acknowledged sends: the broker must know them.
func (v *verifier) duplicates() {
	left := 3
	for i := len(v.e.order) - 1; i >= 0 && left > 0; i-- {
		id := v.e.order[i]
		m := v.e.messages[id]
		if must, _ := v.e.presence(id); !must || m.receipt == nil || time.Since(m.sent) >= 2*time.Minute || m.topic == "d" && !m.until.After(time.Now()) {
			continue
		}
		left--
		r := send(v.T, v.b, &tidegate.Message{ID: id, Topic: m.topic, MessageGroup: m.fifo, DeliverAt: m.until, Body: []byte("again")})[0]
		if r.Err != nil || r.Receipt.Queue != m.receipt.Queue || r.Receipt.Offset != m.receipt.Offset || r.Receipt.RecallHandle != m.receipt.RecallHandle {
			v.Errorf("%s sent again: %+v, %v; want %+v", id, r.Receipt, r.Err, *m.receipt)
		}
	}
}

// drain consumes all that the groups may have now.
func (v *verifier) drain(first bool) {
	now := time.Now()
	for _, gt := range [][2]string{{"g", "n"}, {"g", "d"}, {"g", "x"}, {"h", "n"}, {"h", "d"}, {"h", "x"}, {"o", "f"}} {
		group, topic := gt[0], gt[1]
		if _, err := v.b.Topic(topic); err != nil {
			continue
		}
		if _, err := v.b.Group(group); err != nil {
			continue // it was created again, and nothing is promised about it
		}
		for {
			ds := receive(v.T, v.b, transport.ReceiveRequest{Group: group, Topic: topic, Max: 32, InvisibleDuration: time.Hour})
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				v.delivered(d, first, now)
			}
			for _, err := range v.b.Ack(v.Context(), ds) {
				if err != nil {
					v.Errorf("acknowledging: %v", err)
				}
			}
		}
	}
}

func (v *verifier) delivered(d *tidegate.Delivery, first bool, now time.Time) {
	k := d.ConsumerGroup + " " + d.ID
	v.seen[k]++
	m := v.e.messages[d.ID]
	if m == nil {
		v.Errorf("%s was never sent", d.ID)
		return
	}
	if m.until.After(time.Now()) {
		v.Errorf("%s is not due before %v", d.ID, m.until)
	}
	if fifo := d.ConsumerGroup + " " + m.fifo; m.fifo != "" {
		if m.order < v.last[fifo] {
			v.Errorf("%s comes after %s", d.ID, v.e.order[v.last[fifo]])
		}
		v.last[fifo] = m.order
	}
	p := v.e.groups[k]
	if p == nil || v.e.unsure[d.ConsumerGroup] {
		return
	}
	if d.Attempt < p.attempt || p.attempt > 1 && d.Attempt == p.attempt {
		v.Errorf("%s is delivered to %s with attempt %d, after the failure of attempt %d was confirmed", d.ID, d.ConsumerGroup, d.Attempt, p.attempt)
	}
	if p.acked {
		v.Errorf("%s was acknowledged by %s and is redelivered", d.ID, d.ConsumerGroup)
	}
	if first && p.until.After(now) {
		v.Errorf("%s comes %v too early", d.ID, p.until.Sub(now))
	}
}

// contents reads every topic whole: no confirmed message is missing, no message is stored twice,
// and no batch is stored in part.
func (v *verifier) contents() {
	there := map[string]int{}
	for _, topic := range []string{"n", "f", "d", "x"} {
		if _, err := v.b.Topic(topic); err != nil {
			continue
		}
		for _, d := range receiveAll(v.T, v.b, topic) {
			there[d.ID]++
			if string(d.Body) != strings.Repeat(d.ID, len(d.Body)/len(d.ID)) || d.Topic != topic {
				v.Errorf("%s in %s has another body: %.20q", d.ID, d.Topic, d.Body)
			}
		}
	}
	batches := map[int]bool{}
	for _, id := range v.e.order {
		n, m := there[id], v.e.messages[id]
		must, may := v.e.presence(id)
		if n > 1 || n == 0 && must || n > 0 && !may {
			v.Errorf("%s is stored %d times; confirmed %v, recalled %v", id, n, m.answered, m.recalled)
		}
		if before, ok := batches[m.batch]; ok && before != (n > 0) {
			v.Errorf("half of the batch of %s is stored", id)
		}
		batches[m.batch] = n > 0
	}
}

// balance checks that every group has every message once: delivered before, deliverable now, or as
// a dead letter.
func (v *verifier) balance() {
	for _, group := range []string{"g", "h", "o"} {
		if _, err := v.b.Group(group); err != nil || v.e.unsure[group] {
			continue
		}
		dead := map[string]int{}
		if _, err := v.b.Topic(tidegate.DeadLetterTopic(group)); err == nil {
			for _, d := range receiveAll(v.T, v.b, tidegate.DeadLetterTopic(group)) {
				dead[d.ID]++
			}
		}
		for _, id := range v.e.order {
			must, _ := v.e.presence(id)
			if (group == "o") != (v.e.messages[id].topic == "f") || !must {
				continue
			}
			p := v.e.promise(group, id)
			n, times := v.seen[group+" "+id], dead[id]
			switch {
			case n > 1 || times > 1 || n+times > 1:
				v.Errorf("%s came to %s %d times, and is a dead letter %d times", id, group, n, times)
			case p.acked && n+times > 0:
				v.Errorf("%s was acknowledged by %s, and came %d times, and is a dead letter %d times", id, group, n, times)
			case p.dead && times == 0:
				v.Errorf("%s is no dead letter of %s", id, group)
			case n+times == 0 && !p.maybeAcked:
				v.Errorf("%s never came to %s: %+v", id, group, *p)
			}
		}
	}
}
