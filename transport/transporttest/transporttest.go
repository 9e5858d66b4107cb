// Package transporttest has a [Fake] for the tests of programs that send and receive messages, and
// the conformance suite for implementations of [transport.Transport]. The cases of the suite check
// the promises in the comments of package transport.
//
//	func TestTransport(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) transporttest.Fixture { … }, transporttest.Server{Virtual: true})
//	}
//
// Servers differ in their [transport.Capabilities], which they announce, and in promises that they
// keep or do not keep without announcing it. [Server] has both; its zero value describes Apache
// RocketMQ 5.2. The suite leaves out the cases that the server cannot pass, and logs their names.
package transporttest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A Fixture is a transport to a server. The server may have other topics and groups: the suite
// creates its own, with names that are unique to the run and the case.
type Fixture struct {
	Transport transport.Transport

	// CreateTopic creates a topic, with several queues if the server has queues. It does nothing if
	// topics are created by their first use (Server.LacksMissingTopics). The types are RocketMQ's;
	// TopicDelay is needed to test a [transport.Recaller], TopicTransaction a
	// [transport.Transactor].
	CreateTopic func(ctx context.Context, name string, t settings.TopicType) error

	// CreateGroup creates a consumer group that starts at the oldest message of a topic. It sets
	// FIFO, MaxAttempts and Retry, which is a backoff.Steps; for a FIFO group the first step is the
	// delay of all retries. If the server has no settings of groups, CreateGroup passes them to the
	// Transport, for example through a map that the transport's options read. Several goroutines
	// may call it at the same time.
	CreateGroup func(ctx context.Context, name string, s transport.ConsumerSettings) error

	// Disconnect breaks the connections of Transport to the server. New ones fail until the end of
	// the case. Nil means that the fixture cannot do it, for example because the server runs in the
	// same process; the case NotConnected then checks nothing.
	Disconnect func()
}

// Run runs the suite. It calls newFixture once for each case, with the t of the case, and closes
// the transport at the end of the case. newFixture registers the release of other resources with
// t.Cleanup. These functions run after the transport was closed.
func Run(t *testing.T, newFixture func(t *testing.T) Fixture, server Server) {
	t.Helper()
	server = server.withDefaults()
	apply, left := applicable(server)
	for _, c := range left {
		t.Logf("case %s is left out: the server lacks %s", c.name, c.needs.name)
	}
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	for _, c := range apply {
		if server.only != nil && !server.only(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			run := func(t *testing.T) {
				e := &env{T: t, Fixture: newFixture(t), suffix: c.name + "-" + id, server: server, logged: map[string]bool{}}
				e.topic, e.group = e.name("orders"), e.name("billing")
				e.Cleanup(func() {
					if err := e.Transport.Close(); err != nil {
						e.Errorf("Close: %v", err)
					}
				})
				c.run(e)
			}
			if server.Virtual {
				synctest.Test(t, run)
				return
			}
			t.Parallel() // the cases wait most of the time
			run(t)
		})
	}
}

// A testCase tests one promise, on the servers that can pass it.
type testCase struct {
	name  string
	run   func(*env)
	needs need // zero: nothing
}

// cases are all cases of the suite.
var cases = concat(capabilityCases, sendCases, receiveCases, settleCases, retryCases, fifoCases, endCases, connectionCases, optionalCases)

var capabilityCases = []testCase{
	{name: "Capabilities", run: func(e *env) {
		e.setup(settings.TopicNormal)
		// Every response announces the capabilities.
		if _, err := e.Transport.ProducerSettings(e.Context(), e.topic); err != nil {
			e.Fatal(err)
		}
		if got := e.Transport.Capabilities(""); got != e.server.Capabilities {
			e.Errorf("the transport has the capabilities %+v, the Server has %+v", got, e.server.Capabilities)
		}
	}},
}

// applicable returns the cases for a server, and those left out.
func applicable(server Server) (apply, left []testCase) {
	for _, c := range cases {
		if c.needs.has == nil || c.needs.has(server) {
			apply = append(apply, c)
		} else {
			left = append(left, c)
		}
	}
	return apply, left
}

func concat(lists ...[]testCase) []testCase {
	var all []testCase
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// An env is the environment of one case.
type env struct {
	*testing.T
	Fixture
	suffix       string // of every name
	topic, group string // of setup
	server       Server
	logged       map[string]bool // the fields of Server that lacks named
}

// name returns a topic or group name that no other case and no other run uses.
func (e *env) name(base string) string { return base + "-" + e.suffix }

// ladder returns the retry schedule of the groups of the cases.
func (e *env) ladder() []time.Duration { return []time.Duration{e.server.Unit, 2 * e.server.Unit} }

// setup creates the topic and the group that most cases need.
func (e *env) setup(t settings.TopicType) {
	e.Helper()
	e.createTopic(e.topic, t)
	s := transport.ConsumerSettings{FIFO: t == settings.TopicFIFO, MaxAttempts: 3, Retry: backoff.Steps(e.ladder())}
	if s.FIFO {
		s.Retry = backoff.Steps(e.ladder()[:1])
	}
	e.createGroup(e.group, s)
}

func (e *env) createTopic(name string, t settings.TopicType) {
	e.Helper()
	if err := e.CreateTopic(e.Context(), name, t); err != nil {
		e.Fatalf("create topic %q: %v", name, err)
	}
}

func (e *env) createGroup(name string, s transport.ConsumerSettings) {
	e.Helper()
	if err := e.CreateGroup(e.Context(), name, s); err != nil {
		e.Fatalf("create group %q: %v", name, err)
	}
}

func (e *env) message(body string) *tidegate.Message {
	return &tidegate.Message{ID: tidegate.NewMessageID(), Topic: e.topic, Body: []byte(body)}
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
		Group: e.group, Topic: e.topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 2 * e.server.Unit, Wait: e.server.Unit,
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

// none checks that no message can be received now.
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

// lateness bounds waits for a redelivery on a server without Server.RetriesWakeReceives. It is late
// by up to two of RocketMQ's longest polls, 40 s, and by minutes on a busy machine. A case checks
// the number and the order of deliveries, not how late they are.
const lateness = 5 * time.Minute

// again receives the one message that is redelivered d after start, waiting for r.Wait and,
// where retries do not wake receives, with as many receives as it takes.
func (e *env) again(r transport.ReceiveRequest, start time.Time, d time.Duration, what string) *tidegate.Delivery {
	e.Helper()
	if e.server.RetriesWakeReceives {
		again := e.oneOf(r)
		e.after(start, d, what)
		return again
	}
	for {
		ds := e.receive(r)
		switch got := time.Since(start); {
		case len(ds) > 1:
			e.Fatalf("received %s, want one message", describe(ds))
		case len(ds) == 1 && got < d-2*time.Millisecond:
			e.Errorf("%s after %v, want %v at least", what, got, d)
			return ds[0]
		case len(ds) == 1:
			return ds[0]
		case got > d+lateness:
			e.Fatalf("nothing was received %v after it was due", got-d)
		}
	}
}

// retried receives the one message that Retry was called for at start, with a delay of d. It checks
// the delay unless the server chooses its own.
func (e *env) retried(r transport.ReceiveRequest, start time.Time, d time.Duration) *tidegate.Delivery {
	e.Helper()
	if !e.lacks(!e.server.LacksExactRetries, "LacksExactRetries", "a retry may have another delay") {
		return e.again(r, start, d, "the retried message was redelivered")
	}
	for time.Since(start) < d+lateness {
		if ds := e.receive(r); len(ds) > 0 {
			return ds[0]
		}
	}
	e.Fatalf("nothing was received %v after it was due", time.Since(start)-d)
	return nil
}

// after checks the time of an event that has just happened: not earlier than d after start, and at
// most slack later.
func (e *env) after(start time.Time, d time.Duration, what string) {
	e.Helper()
	early := 2 * time.Millisecond // a clock that counts milliseconds may be one short
	if !e.server.ExactWaits {
		early = 100 * time.Millisecond // RocketMQ ends a wait of 5 s up to 4 ms early
	}
	if got := time.Since(start); got < d-early || got > d+e.server.Slack {
		e.Errorf("%s after %v, want %v and at most %v later", what, got, d, e.server.Slack)
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
