package broker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A fact is the begin of an operation, or its response, in a recorded run.
type fact struct {
	kind    string
	answer  bool // or else it was begun
	group   string
	topic   string
	ids     []string
	attempt int
	at      time.Time // of a response
	until   time.Time // a message may not come before
	fifo    string    // the message group
	receipt tidegate.Receipt
	max     int // attempts
}

// A recorder runs a broker on a file system that will crash, and records its promises.
type recorder struct {
	t   *testing.T
	rnd *rand.Rand
	fs  vfs.FS
	b   *broker.Broker
	n   int
	gen int // of the topic x
	ds  []*tidegate.Delivery

	mu    sync.Mutex
	facts []fact // guarded by mu
}

// sofar returns the promises so far.
func (r *recorder) sofar() []fact {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.facts)
}

// tell records the begin of an operation, calls do, and records the response.
func (r *recorder) tell(f fact, do func(*fact) error) {
	r.note(f)
	f.answer = true
	if err := do(&f); err != nil {
		r.t.Errorf("%s of %v: %v", f.kind, f.ids, err)
		return
	}
	r.note(f)
}

func (r *recorder) note(f fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.at = time.Now()
	r.facts = append(r.facts, f)
}

func (r *recorder) open() {
	b, err := broker.Open(crashOptions(r.fs))
	if err != nil {
		r.t.Fatal(err)
	}
	r.b = b
}

// crashOptions are of a broker whose log is rotated and flushed often.
func crashOptions(fs vfs.FS) broker.Options {
	return broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs).MemTable(64 << 10)
}

// run makes steps random operations, in time, with a restart now and then.
func (r *recorder) run(steps int) {
	r.open()
	r.putTopic("n", settings.Topic{Queues: 2})
	r.putTopic("f", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
	r.putTopic("d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
	r.putTopic("x", settings.Topic{Queues: 1})
	r.putGroup("g", settings.Group{MaxAttempts: 3})
	r.putGroup("h", settings.Group{MaxAttempts: -1})
	r.putGroup("o", settings.Group{MaxAttempts: 3, FIFO: true})
	for range steps {
		switch n := r.rnd.IntN(40); {
		case n < 10:
			r.send()
		case n < 20:
			r.receive()
		case n < 33:
			r.settle()
		case n < 36:
			<-time.After(time.Duration(r.rnd.IntN(20)) * time.Second)
		case n == 36:
			r.putGroup("g", settings.Group{MaxAttempts: 2 + r.rnd.IntN(3)})
		case n == 37:
			r.deleteTopic()
		case n == 38:
			r.deleteGroup()
		default:
			if err := r.b.Close(); err != nil {
				r.t.Error(err)
			}
			r.open()
		}
	}
	if err := r.b.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *recorder) putTopic(name string, c settings.Topic) {
	r.tell(fact{kind: "put topic", topic: name}, func(*fact) error {
		_, err := r.b.PutTopic(r.t.Context(), name, c)
		return err
	})
}

func (r *recorder) putGroup(name string, c settings.Group) {
	c.Retry = []time.Duration{5 * time.Second, 10 * time.Second}
	c.FIFORetryInterval = settings.Duration(3 * time.Second)
	r.tell(fact{kind: "put group", group: name, max: c.MaxAttempts}, func(*fact) error {
		_, err := r.b.PutGroup(r.t.Context(), name, c)
		return err
	})
}

func (r *recorder) send() {
	topic := string("nnfdx"[r.rnd.IntN(5)])
	f := fact{kind: "send", topic: topic}
	var msgs []*tidegate.Message
	for range 1 + r.rnd.IntN(4) {
		r.n++
		m := &tidegate.Message{ID: fmt.Sprintf("%s%04d", topic, r.n), Topic: topic}
		if topic == "x" {
			m.ID += fmt.Sprint(".", r.gen)
		}
		m.Body = []byte(strings.Repeat(m.ID, 1+r.rnd.IntN(300)))
		switch topic {
		case "f":
			f.fifo = fmt.Sprint("mg", r.rnd.IntN(2))
			m.MessageGroup = f.fifo
		case "d":
			f.until = time.Now().Add(time.Duration(1+r.rnd.IntN(40)) * time.Second)
			m.DeliverAt = f.until
		}
		msgs, f.ids = append(msgs, m), append(f.ids, m.ID)
		if topic == "f" || topic == "d" {
			break // one message group, one time
		}
	}
	r.tell(f, func(f *fact) error {
		results := r.b.Send(r.t.Context(), msgs)
		for _, res := range results {
			if res.Err != nil {
				return res.Err
			}
		}
		f.receipt = results[len(results)-1].Receipt
		return nil
	})
	if f.receipt.RecallHandle != "" && r.rnd.IntN(3) == 0 {
		r.tell(fact{kind: "recall", ids: f.ids}, func(*fact) error {
			_, err := r.b.Recall(r.t.Context(), topic, f.receipt.RecallHandle)
			return err
		})
	}
}

func (r *recorder) receive() {
	group, topic := string("gh"[r.rnd.IntN(2)]), string("ndx"[r.rnd.IntN(3)])
	if r.rnd.IntN(4) == 0 {
		group, topic = "o", "f"
	}
	f := fact{kind: "receive", group: group}
	r.note(f)
	ds := receive(r.t, r.b, transport.ReceiveRequest{
		Group: group, Topic: topic, Max: 1 + r.rnd.IntN(6), Push: r.rnd.IntN(2) == 0,
		InvisibleDuration: time.Duration(1+r.rnd.IntN(30)) * time.Second,
	})
	for _, d := range ds {
		f.answer, f.ids, f.attempt = true, []string{d.ID}, d.Attempt
		r.note(f)
	}
	r.ds = append(r.ds, ds...)
}

// settle settles one delivery, or acknowledges all at the same time, each in its own request.
// Invalid ones get an error, which promises nothing.
func (r *recorder) settle() {
	if len(r.ds) == 0 {
		return
	}
	if r.rnd.IntN(8) == 0 {
		var wg sync.WaitGroup
		for _, d := range r.ds {
			wg.Go(func() { r.answer(d, 0, 0) })
		}
		wg.Wait()
		r.ds = nil
		return
	}
	i := r.rnd.IntN(len(r.ds))
	d := r.ds[i]
	r.ds = append(r.ds[:i], r.ds[i+1:]...)
	r.answer(d, r.rnd.IntN(7), time.Duration(r.rnd.IntN(20))*time.Second)
}

func (r *recorder) answer(d *tidegate.Delivery, how int, dur time.Duration) {
	ctx := r.t.Context()
	f := fact{group: d.ConsumerGroup, ids: []string{d.ID}, attempt: d.Attempt}
	var err error
	switch how {
	default:
		f.kind = "ack"
		r.note(f)
		err = r.b.Ack(ctx, []*tidegate.Delivery{d})[0]
	case 3:
		f.kind = "retry"
		r.note(f)
		f.until = time.Now().Add(dur)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: dur})
	case 4:
		f.kind = "change"
		r.note(f)
		dur += time.Second
		f.until = time.Now().Add(dur)
		c := *d
		if c.Handle, err = r.b.Extend(ctx, d, dur, false); err == nil {
			r.ds = append(r.ds, &c)
		}
	case 6:
		f.kind = "snooze"
		r.note(f)
		f.until = time.Now().Add(dur)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: dur})
	case 5:
		if d.ConsumerGroup == "h" {
			f.kind = "release"
			r.note(f)
			serve(r.b).Return(ctx, []*tidegate.Delivery{d})
			break
		}
		f.kind = "dead letter"
		r.note(f)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "crash"})
	}
	if err == nil {
		f.answer = true
		r.note(f)
	}
}

func (r *recorder) deleteTopic() {
	r.tell(fact{kind: "delete topic", topic: "x"}, func(*fact) error { return r.b.DeleteTopic(r.t.Context(), "x") })
	r.gen++
	r.putTopic("x", settings.Topic{Queues: 1})
}

func (r *recorder) deleteGroup() {
	r.tell(fact{kind: "delete group", group: "h"}, func(*fact) error { return r.b.DeleteGroup(r.t.Context(), "h") })
	r.putGroup("h", settings.Group{MaxAttempts: -1})
}
