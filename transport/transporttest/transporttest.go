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
	"errors"
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

	// CreateLiteGroup creates a group as CreateGroup does, for the lite topics of a topic. It is
	// required with Server.LiteTopics, if Transport is a [transport.LiteSubscriber].
	CreateLiteGroup func(ctx context.Context, name, topic string, s transport.ConsumerSettings) error

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
var cases = concat(capabilityCases, sendCases, receiveCases, settleCases, retryCases, fifoCases, liteCases, endCases, connectionCases, optionalCases)

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
	liteConsumer string // of the receives; empty without lite topics
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

// request is a receive of one message, kept for two units, waited for one. With lite topics it is
// that of a push consumer.
func (e *env) request() transport.ReceiveRequest {
	return transport.ReceiveRequest{
		Group: e.group, Topic: e.topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 2 * e.server.Unit, Wait: e.server.Unit,
		LiteConsumer: e.liteConsumer, Push: e.liteConsumer != "",
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

var connectionCases = []testCase{
	{name: "NotConnected", run: func(e *env) {
		if e.Disconnect == nil {
			e.Log("the fixture has no Disconnect")
			return
		}
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		e.Disconnect()
		e.sleep(e.server.Unit) // the transport notices it
		unknown := e.message("x")
		unknown.Topic = e.name("unknown")
		for _, call := range []struct {
			name string
			do   func(ctx context.Context) error
		}{
			{"Send", func(ctx context.Context) error {
				return e.Transport.Send(ctx, []*tidegate.Message{e.message("y")})[0].Err
			}},
			{"Send to a topic without a known server", func(ctx context.Context) error {
				return e.Transport.Send(ctx, []*tidegate.Message{unknown})[0].Err
			}},
			{"Receive", func(ctx context.Context) error {
				_, err := e.Transport.Receive(ctx, e.request())
				return err
			}},
			{"Ack", func(ctx context.Context) error {
				return e.Transport.Ack(ctx, []*tidegate.Delivery{d})[0]
			}},
		} {
			e.wantNotConnected(call.name, call.do(e.Context()))
		}
		start := time.Now()
		waiting, cancel := context.WithTimeoutCause(transport.AwaitConnection(e.Context()), e.server.Unit, errEnough)
		defer cancel()
		results := e.Transport.Send(waiting, []*tidegate.Message{e.message("y")})
		e.wantNotConnected("Send that waits for a connection", results[0].Err)
		if !errors.Is(results[0].Err, errEnough) {
			e.Errorf("Send that waits for a connection: %v, want the cause of the context", results[0].Err)
		}
		e.after(start, e.server.Unit, "Send that waits for a connection failed")
	}},
}

// wantNotConnected checks the error of an attempt that had no connection.
func (e *env) wantNotConnected(what string, err error) {
	e.Helper()
	te, ok := errors.AsType[*tidegate.Error](err)
	if !ok || !te.NotConnected || te.MaybeStored || tidegate.Classify(err) != tidegate.ClassTransient {
		e.Errorf("%s: %#v, want a transient error with NotConnected", what, err)
	}
}

var errEnough = errors.New("the caller has enough")

var endCases = []testCase{
	{name: "CancelledReceiveTakesNothing", run: func(e *env) {
		e.setup(settings.TopicNormal)
		ctx, cancel := context.WithCancelCause(e.Context())
		start := time.Now()
		wait := later(func() {
			e.sleep(e.server.Unit / 2)
			cancel(errEnough)
		})
		ds, err := e.Transport.Receive(ctx, e.request())
		e.after(start, e.server.Unit/2, "the cancelled receive returned")
		wait()
		if len(ds) != 0 || !errors.Is(err, errEnough) {
			e.Fatalf("got %s, %v; want the cause of the context", describe(ds), err)
		}
		e.send(e.message("x"))
		start = time.Now()
		if e.lacks(e.server.CancelledReceivesEnd, "CancelledReceivesEnd", "the message may come as attempt 2 after its invisible duration") {
			e.mustAck(e.again(e.request(), start, 0, "the message came"))
			return
		}
		if d := e.one(); d.Attempt != 1 {
			e.Errorf("attempt %d, want 1: the cancelled receive had taken it", d.Attempt)
		}
		e.after(start, 0, "the next receive returned")
	}},
	{name: "CancelledReceivesRaceSends", run: func(e *env) {
		e.setup(settings.TopicNormal)
		rounds := 20
		if e.lacks(e.server.CancelledReceivesEnd, "CancelledReceivesEnd", "each of the messages may come as attempt 2 after its invisible duration") {
			rounds = 3
		}
		for range rounds {
			ctx, cancel := context.WithCancelCause(e.Context())
			var ds []*tidegate.Delivery
			wait := later(func() {
				r := e.request()
				r.Max = 32
				ds, _ = e.Transport.Receive(ctx, r)
			})
			msg := e.message("x")
			go cancel(errEnough)
			e.send(msg)
			wait()
			if len(ds) == 0 {
				r := e.request()
				r.Wait = r.InvisibleDuration + e.server.Unit
				if e.server.RetriesWakeReceives {
					ds = e.receive(r)
				} else {
					ds = []*tidegate.Delivery{e.again(r, time.Now(), 0, "the message came")}
				}
			}
			if len(ds) != 1 || ds[0].ID != msg.ID {
				e.Fatalf("received %s, want the one message", describe(ds))
			}
			// There are two valid results. A message that was released, or never delivered, is
			// available at once. A message that was sent while the cancellation was under way is
			// available after its invisible duration. Neither side of a network can distinguish the
			// two cases. The delivery may count as an attempt.
			e.mustAck(ds[0])
		}
	}},
	// The caller knows when nothing of a cancelled receive is left.
	{name: "CancelledReceiveIsRepeated", needs: needRepeat, run: func(e *env) {
		e.setup(settings.TopicNormal)
		for i := range 20 {
			ctx, cancel := context.WithCancelCause(e.Context())
			r := e.request()
			r.Push, r.Max, r.AttemptID = true, 32, fmt.Sprint(i)
			var ds, parts []*tidegate.Delivery
			arrived := 0
			receive := e.Transport.Receive
			if s, ok := e.Transport.(transport.Streamer); ok && i%2 == 0 {
				receive = func(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
					return s.ReceiveParts(ctx, r, func(part []*tidegate.Delivery, _ time.Time) {
						arrived++
						parts = append(parts, part...)
					})
				}
			}
			wait := later(func() { ds, _ = receive(ctx, r) })
			msg := e.message("x")
			go cancel(errEnough)
			e.send(msg)
			wait()
			if len(ds) == 0 {
				r.Repeat, r.Arrived = true, arrived
				ds = e.receive(r)
			}
			if ds = append(ds, parts...); len(ds) > 1 {
				e.Errorf("%d deliveries of one message", len(ds))
			}
			for _, d := range ds {
				if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Release}); err != nil {
					e.Fatal(err)
				}
			}
			r = e.request()
			if r.Push = true; e.fullReceives() {
				r.Wait = 0
			}
			d := e.oneOf(r)
			if d.ID != msg.ID || d.Attempt != 1 {
				e.Fatalf("received %s, want the one message as attempt 1", describe([]*tidegate.Delivery{d}))
			}
			e.mustAck(d)
		}
	}},
	{name: "DeadContext", run: func(e *env) {
		e.setup(settings.TopicNormal)
		ctx, cancel := context.WithCancelCause(e.Context())
		cancel(errEnough)
		for range 4 {
			e.send(e.message("to be settled"))
		}
		r := e.request()
		r.InvisibleDuration = 4 * e.server.Unit // longer than the case takes
		var ds []*tidegate.Delivery
		for range 4 {
			ds = append(ds, e.oneOf(r))
		}
		last := e.message("x")
		e.send(last)
		if ds, err := e.Transport.Receive(ctx, e.request()); len(ds) != 0 || !errors.Is(err, errEnough) {
			e.Errorf("Receive: %s, %v; want the cause of the context", describe(ds), err)
		}
		for _, r := range e.Transport.Send(ctx, []*tidegate.Message{e.message("y")}) {
			if !errors.Is(r.Err, errEnough) {
				e.Errorf("Send: %v; want the cause of the context", r.Err)
			}
		}
		_, retry := e.Transport.Settle(ctx, ds[1], transport.Verdict{Kind: transport.Retry})
		_, dead := e.Transport.Settle(ctx, ds[3], transport.Verdict{Kind: transport.DeadLetter, Reason: "no receive waits"})
		_, release := e.Transport.Settle(ctx, ds[0], transport.Verdict{Kind: transport.Release})
		handle, change := e.Transport.Extend(ctx, ds[2], 4*e.server.Unit, false)
		if handle != "" {
			e.Errorf("ChangeInvisibleDuration returned the handle %q with a dead context", handle)
		}
		for name, err := range map[string]error{
			"Ack":                     e.Transport.Ack(ctx, ds[:1])[0],
			"Release":                 release,
			"Retry":                   retry,
			"ChangeInvisibleDuration": change,
			"DeadLetter":              dead,
		} {
			if !errors.Is(err, errEnough) {
				e.Errorf("%s: %v; want the cause of the context", name, err)
			}
		}
		if d := e.oneOf(r); d.ID != last.ID || d.Attempt != 1 {
			e.Errorf("received %s, want the message that was sent with a live context", describe([]*tidegate.Delivery{d}))
		}
		for i, d := range ds { // nothing was done
			if err := e.ack(d); err != nil {
				e.Errorf("delivery %d, settled with a dead context only: Ack: %v", i+1, err)
			}
		}
		e.none(r)
	}},
	{name: "CloseEndsReceives", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		var err error
		wait := later(func() { _, err = e.Transport.Receive(e.Context(), e.request()) })
		e.sleep(e.server.Unit / 2)
		if err := e.Transport.Close(); err != nil {
			e.Errorf("Close: %v", err)
		}
		wait()
		e.after(start, e.server.Unit/2, "the receive returned")
		if !errors.Is(err, tidegate.ErrClosed) {
			e.Errorf("Receive: %v, want ErrClosed", err)
		}
	}},
	{name: "ClosedForGood", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for range 2 {
			if err := e.Transport.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
		}
		ctx := e.Context()
		_, receive := e.Transport.Receive(ctx, e.request())
		_, retry := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.Retry})
		_, release := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		_, change := e.Transport.Extend(ctx, d, e.server.Unit, false)
		_, dead := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "closed"})
		_, producer := e.Transport.ProducerSettings(ctx, e.topic)
		_, consumer := e.Transport.ConsumerSettings(ctx, e.group, e.topic)
		_, queues := e.Transport.Queues(ctx, e.group, e.topic)
		for name, err := range map[string]error{
			"Send":                    e.Transport.Send(ctx, []*tidegate.Message{e.message("y")})[0].Err,
			"Receive":                 receive,
			"Ack":                     e.ack(d),
			"Release":                 release,
			"Retry":                   retry,
			"ChangeInvisibleDuration": change,
			"DeadLetter":              dead,
			"ProducerSettings":        producer,
			"ConsumerSettings":        consumer,
			"Queues":                  queues,
		} {
			if !errors.Is(err, tidegate.ErrClosed) {
				e.Errorf("%s after Close: %v, want ErrClosed", name, err)
			}
		}
	}},
}
