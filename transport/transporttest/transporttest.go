// Package transporttest holds the suite that every implementation of the
// transport contract passes: what is promised in package transport, each
// promise a test of its own.
//
//	func TestTransport(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) transporttest.Fixture { … }, transporttest.Options{Virtual: true})
//	}
//
// Differences that the contract allows are those of Capabilities: the zero
// value, a real RocketMQ 5.2, is held to less. [Options] say which there are to
// be, and one case compares. What is promised only with more of them is logged as
// no case of the run: a case that runs tests something.
package transporttest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A TopicType is what kind of messages a topic takes, by RocketMQ's names.
type TopicType string

// The types that the suite needs.
const (
	// Normal topics take messages without a message group.
	Normal TopicType = "NORMAL"
	// FIFO topics take messages with a message group, and no others.
	FIFO TopicType = "FIFO"
	// Delay topics take messages with a delivery time; for a transport.Recaller.
	Delay TopicType = "DELAY"
	// Transaction topics take half messages; for a transport.Transactor.
	Transaction TopicType = "TRANSACTION"
)

// A GroupConfig is how a consumer group is to be made.
type GroupConfig struct {
	FIFO        bool            // messages of one message group one at a time, in order
	MaxAttempts int             // deliveries of a message, the first included
	Retry       []time.Duration // the ladder; a FIFO group's has one step
}

// A Fixture is a transport to a server that has nothing in it.
type Fixture struct {
	Transport transport.Transport

	// CreateTopic makes a topic, with several queues if the server has queues.
	CreateTopic func(ctx context.Context, name string, t TopicType) error

	// CreateGroup makes a consumer group, which begins with the oldest message.
	CreateGroup func(ctx context.Context, name string, c GroupConfig) error
}

// Options are how the suite is run. The zero value is real time, and a server
// that can do no more than a real RocketMQ 5.2.
type Options struct {
	// Capabilities are those that the transport has after its first answer, and
	// no others. They decide which cases there are.
	Capabilities transport.Capabilities

	// Virtual runs each case, fixture included, in a testing/synctest bubble:
	// times are then checked to 10 ms, and goroutines that are left fail the
	// case. It needs a server within the process.
	Virtual bool

	// Unit is the time that the cases count in: invisible durations are one to
	// four units, no case waits longer than ten. 0 for 10 s with virtual
	// time, which is what servers demand at least, and for 500 ms in real time,
	// for which the server's minima have to be lowered.
	Unit time.Duration

	only func(testCase) bool // of the suite's own tests; nil: every case
}

// Run runs the suite. newFixture is called once for each case, with the
// case's own t, and closes what it opened by t.Cleanup. It must tolerate that
// the case has closed the transport.
func Run(t *testing.T, newFixture func(t *testing.T) Fixture, opts Options) {
	t.Helper()
	if opts.Unit == 0 {
		opts.Unit = 500 * time.Millisecond
		if opts.Virtual {
			opts.Unit = 10 * time.Second
		}
	}
	apply, left := applicable(opts.Capabilities)
	for _, c := range left {
		t.Logf("no case of this run: %s, which needs more than the capabilities %+v", c.name, opts.Capabilities)
	}
	for _, c := range apply {
		if opts.only != nil && !opts.only(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			run := func(t *testing.T) {
				e := &env{T: t, Fixture: newFixture(t), can: opts.Capabilities, unit: opts.Unit, slack: opts.Unit / 2}
				if opts.Virtual {
					e.slack = 10 * time.Millisecond
				}
				e.Cleanup(func() {
					if err := e.Transport.Close(); err != nil {
						e.Errorf("Close: %v", err)
					}
				})
				c.run(e)
			}
			if opts.Virtual {
				synctest.Test(t, run)
				return
			}
			t.Parallel() // most of the time they wait
			run(t)
		})
	}
}

// A testCase is one promise. One that is only made by servers with some
// capability says so in needs, and does not look for itself.
type testCase struct {
	name  string
	run   func(*env)
	needs func(transport.Capabilities) bool // nil: nothing
}

// cases is filled where the cases are written.
var cases = concat(capabilityCases, sendCases, receiveCases, settleCases, retryCases, fifoCases, endCases, optionalCases)

var capabilityCases = []testCase{
	{name: "Capabilities", run: func(e *env) {
		e.setup(Normal)
		// Any answer tells, as far as there is anything to tell.
		if _, err := e.Transport.ProducerSettings(e.Context(), topic); err != nil {
			e.Fatal(err)
		}
		if got := e.Transport.Capabilities(); got != e.can {
			e.Errorf("the transport has the capabilities %+v, the options say %+v", got, e.can)
		}
	}},
}

// applicable returns the cases for a transport with these capabilities, and those left out.
func applicable(can transport.Capabilities) (apply, left []testCase) {
	for _, c := range cases {
		if c.needs == nil || c.needs(can) {
			apply = append(apply, c)
		} else {
			left = append(left, c)
		}
	}
	return apply, left
}

// beyond reports whether the server can do more than a real RocketMQ 5.2.
func beyond(can transport.Capabilities) bool { return can != (transport.Capabilities{}) }

func suspends(can transport.Capabilities) bool { return can.Suspend }

func snoozes(can transport.Capabilities) bool { return can.Snooze }

func repeats(can transport.Capabilities) bool { return can.RepeatReceive && can.Suspend }

func concat(lists ...[]testCase) []testCase {
	var all []testCase
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// An env is what a case works with.
type env struct {
	*testing.T
	Fixture
	can   transport.Capabilities // that the transport is to have
	unit  time.Duration
	slack time.Duration // how late something may be
}

const (
	topic = "orders"
	group = "billing"
)

// ladder is the ladder of the groups that the cases make.
func (e *env) ladder() []time.Duration { return []time.Duration{e.unit, 2 * e.unit} }

// setup makes the topic and the group that most cases need.
func (e *env) setup(t TopicType) {
	e.Helper()
	e.createTopic(topic, t)
	c := GroupConfig{FIFO: t == FIFO, MaxAttempts: 3, Retry: e.ladder()}
	if c.FIFO {
		c.Retry = c.Retry[:1]
	}
	e.createGroup(group, c)
}

func (e *env) createTopic(name string, t TopicType) {
	e.Helper()
	if err := e.CreateTopic(e.Context(), name, t); err != nil {
		e.Fatalf("create topic %q: %v", name, err)
	}
}

func (e *env) createGroup(name string, c GroupConfig) {
	e.Helper()
	if err := e.CreateGroup(e.Context(), name, c); err != nil {
		e.Fatalf("create group %q: %v", name, err)
	}
}

func newMessage(body string) *tidegate.Message {
	return &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: []byte(body)}
}

// send sends messages that have to be accepted.
func (e *env) send(msgs ...*tidegate.Message) []tidegate.Receipt {
	e.Helper()
	results := e.Transport.Send(e.Context(), msgs)
	if len(results) != len(msgs) {
		e.Fatalf("Send returned %d results for %d messages", len(results), len(msgs))
	}
	receipts := make([]tidegate.Receipt, len(results))
	for i, r := range results {
		if r.Err != nil {
			e.Fatalf("Send, message %d of %d: %v", i+1, len(msgs), r.Err)
		}
		receipts[i] = r.Receipt
	}
	return receipts
}

// request is a receive of one message, kept for two units, waited for one.
func (e *env) request() transport.ReceiveRequest {
	return transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 2 * e.unit, Wait: e.unit,
	}
}

func (e *env) receive(r transport.ReceiveRequest) []*tidegate.Delivery {
	e.Helper()
	ds, err := e.Transport.Receive(e.Context(), r)
	if err != nil {
		e.Fatalf("Receive: %v", err)
	}
	return ds
}

// one receives exactly one message.
func (e *env) one() *tidegate.Delivery {
	e.Helper()
	return e.oneOf(e.request())
}

func (e *env) oneOf(r transport.ReceiveRequest) *tidegate.Delivery {
	e.Helper()
	ds := e.receive(r)
	if len(ds) != 1 {
		e.Fatalf("Receive returned %d deliveries, want 1", len(ds))
	}
	return ds[0]
}

// none finds that nothing can be received now.
func (e *env) none(r transport.ReceiveRequest) {
	e.Helper()
	r.Wait = 0
	r.AttemptID = ""
	if ds := e.receive(r); len(ds) != 0 {
		e.Fatalf("received %s, want nothing", describe(ds))
	}
}

// drain receives and acknowledges until nothing comes within a unit.
func (e *env) drain(r transport.ReceiveRequest) []*tidegate.Delivery {
	e.Helper()
	var all []*tidegate.Delivery
	for {
		ds := e.receive(r)
		if len(ds) == 0 {
			return all
		}
		for i, err := range e.Transport.Ack(e.Context(), ds) {
			if err != nil {
				e.Fatalf("Ack of %s: %v", describe(ds[i:i+1]), err)
			}
		}
		all = append(all, ds...)
	}
}

func (e *env) ack(d *tidegate.Delivery) error {
	e.Helper()
	errs := e.Transport.Ack(e.Context(), []*tidegate.Delivery{d})
	if len(errs) != 1 {
		e.Fatalf("Ack returned %d errors for 1 delivery", len(errs))
	}
	return errs[0]
}

func (e *env) mustAck(d *tidegate.Delivery) {
	e.Helper()
	if err := e.ack(d); err != nil {
		e.Fatalf("Ack: %v", err)
	}
}

// after checks that what happened now happened d after start: never before,
// and soon.
func (e *env) after(start time.Time, d time.Duration, what string) {
	e.Helper()
	// A clock that counts milliseconds may be one short.
	if got := time.Since(start); got < d-2*time.Millisecond || got > d+e.slack {
		e.Errorf("%s after %v, want %v and at most %v later", what, got, d, e.slack)
	}
}

func (e *env) sleep(d time.Duration) {
	e.Helper()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.Context().Done():
	}
}

// later runs f in a goroutine of its own and returns a wait for its end.
func later(f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() { <-done }
}

func describe(ds []*tidegate.Delivery) string {
	var s strings.Builder
	for _, d := range ds {
		fmt.Fprintf(&s, "[%q attempt %d]", d.Body, d.Attempt)
	}
	return s.String()
}

func (e *env) beyond() bool { return beyond(e.can) }
