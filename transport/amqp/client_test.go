package amqp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// clientOf returns a client of a peer that is closed with the test.
func clientOf(t *testing.T, p *amqppeer.Peer) *Client {
	t.Helper()
	c := assert.Value(New("orders.example:5672", Options{Dialer: p.Dial}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// connected returns the connection of a client.
func connected(t *testing.T, c *Client) *connection {
	t.Helper()
	live, fail := c.supervisor.Get(t.Context(), true)
	assert.MustThat(t, fail == nil, "%v", fail)
	return live
}

// oneOrder receives one message.
var oneOrder = transport.ReceiveRequest{
	Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute, Wait: time.Second,
}

// delivered creates a queue, sends a message and returns its delivery.
func delivered(t *testing.T, c *Client) []*tidegate.Delivery {
	t.Helper()
	assert.Must(t, assert.Err(c.Receive(t.Context(), oneOrder)))
	assert.Must(t, c.Send(t.Context(), []*tidegate.Message{{Topic: "orders", ID: "1", Body: []byte("x")}})[0].Err)
	ds := assert.Value(c.Receive(t.Context(), oneOrder))(t)
	assert.MustEqual(t, "received messages", len(ds), 1)
	return ds
}

func TestParse(t *testing.T) {
	for address, want := range map[string]struct {
		endpoint string
		secure   bool
	}{
		"localhost":               {"localhost:5672", false},
		"localhost:61616":         {"localhost:61616", false},
		"amqp://mq":               {"mq:5672", false},
		"amqps://mq":              {"mq:5671", true},
		"amqps://[::1]:5000/":     {"[::1]:5000", true},
		"":                        {},
		"http://mq":               {},
		"amqp://":                 {},
		"amqp://user:secret@mq":   {},
		"amqp://mq/queue":         {},
		"amqp://mq?heartbeat=10s": {},
		"amqp://mq:port":          {},
	} {
		endpoint, secure, err := parse(address)
		assert.That(t, endpoint == want.endpoint && secure == want.secure && (err == nil) == (want.endpoint != ""),
			"%q: %q, %v, %v; want %q, %v", address, endpoint, secure, err, want.endpoint, want.secure)
		assert.That(t, err == nil || errors.Is(err, tidegate.ErrInvalid) && !strings.Contains(err.Error(), "secret"),
			"%q: %v, want ErrInvalid without the password", address, err)
	}
}

func TestInvalidOptions(t *testing.T) {
	for field, o := range map[string]Options{
		"Options.RequestTimeout": {RequestTimeout: -1},
		"Options.IdleTimeout":    {IdleTimeout: -1},
		"Options.MaxBodySize":    {MaxBodySize: -1},
		"Options.Credentials":    {Credentials: tidegate.Credentials{AccessKey: "a"}},
		"Options.TLS":            {TLS: &tls.Config{MinVersion: tls.VersionTLS12}},
	} {
		_, err := New("amqp://mq", o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), field), "%s: %v", field, err)
	}
	_, err := New("amqps://mq", Options{External: true, Credentials: tidegate.Credentials{AccessKey: "a", SecretKey: "b"}})
	assert.That(t, err != nil, "SASL EXTERNAL with a password was accepted")
}

func TestNames(t *testing.T) {
	c := assert.Value(New("mq", Options{}))(t)
	defer c.Close()
	for topic, want := range map[string]place{
		"orders":       {address: "orders"},
		"%DLQ%billing": {address: "billing.DLQ", anycast: true},
	} {
		got := c.place(topic)
		assert.That(t, got == want, "%s: %+v, want %+v", topic, got, want)
	}
	for topic, want := range map[string]place{
		"orders":       {address: "orders::orders.billing"},
		"%DLQ%billing": {address: "billing.DLQ", anycast: true},
	} {
		got := c.queue(topic, "billing")
		assert.That(t, got == want, "%s: %+v, want %+v", topic, got, want)
	}
}

// A program with this transport, producers and consumers links no gRPC.
func TestLinksNoGRPC(t *testing.T) {
	const module = "github.com/tidegate/tidegate"
	out := assert.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", ".", module+"/producer", module+"/consumer").Output())(t)
	assert.That(t, !bytes.Contains(out, []byte("google.golang.org/")), "linked:\n%s", out)
	assert.That(t, bytes.Contains(out, []byte("github.com/Azure/go-amqp\n")),
		"go list does not name go-amqp: this test sees nothing")
}

// A function of the program that panics fails the call that needs it, with an error that names the
// option. Each option that is a function has a case here.
func TestFunctionsOfTheProgramPanic(t *testing.T) {
	const text = "panicked: by the test"
	receive := func(t *testing.T, c *Client) error {
		_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
		return err
	}
	cases := map[string]struct {
		set  func(*Options)
		call func(*testing.T, *Client) error
	}{
		"Groups": {
			func(o *Options) {
				o.Groups = func(string, string) transport.ConsumerSettings { panic("by the test") }
			}, func(t *testing.T, c *Client) error {
				if err := receive(t, c); err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("Receive: %v, want an error with %q", err, text)
				}
				_, err := c.ConsumerSettings(t.Context(), "billing", "orders")
				return err
			},
		},
		"Queue": {func(o *Options) { o.Queue = func(string, string) string { panic("by the test") } }, receive},
		"Dialer": {
			func(o *Options) { o.Dialer = func(context.Context, string) (net.Conn, error) { panic("by the test") } },
			func(t *testing.T, c *Client) error {
				return c.Send(t.Context(), []*tidegate.Message{{Topic: "orders", ID: "1", Body: []byte("x")}})[0].Err
			},
		},
	}
	for f := range reflect.TypeFor[Options]().Fields() {
		_, ok := cases[f.Name]
		assert.That(t, f.Type.Kind() != reflect.Func || ok, "Options.%s is a function of the program without a case", f.Name)
	}
	for name, tt := range cases {
		assert.Bubble(t, name, func(t *testing.T) {
			p := &amqppeer.Peer{}
			o := Options{Dialer: p.Dial}
			tt.set(&o)
			c := assert.Value(New("orders.example:5672", o))(t)
			defer c.Close()
			if err := tt.call(t, c); err == nil || !strings.Contains(err.Error(), "Options."+name+" "+text) {
				t.Errorf("%v, want an error with %q", err, "Options."+name+" "+text)
			}
		})
	}
}

// Callers that need one session, to which the server responds late, wait for their own time each,
// and not for that of the first one. The last of them gets the session.
func TestCallersOfASessionWaitForTheirOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
			if frame == amqppeer.Begin {
				time.Sleep(6 * time.Second)
			}
			return amqppeer.Responds
		}}
		c := clientOf(t, p)
		live := connected(t, c)
		type key struct{}
		var wg sync.WaitGroup
		for _, d := range []time.Duration{5 * time.Second, time.Second, 8 * time.Second} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				start := time.Now()
				s, err := live.Session(ctx, key{})
				switch took := time.Since(start); {
				case d < 6*time.Second && (!errors.Is(err, context.DeadlineExceeded) || took != d):
					t.Errorf("a caller with %v got %v after %v, want the end of its ctx", d, err, took)
				case d > 6*time.Second && (err != nil || s == nil || took != 6*time.Second):
					t.Errorf("a caller with %v got %v after %v, want the session after 6 s", d, err, took)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}

// A session that could not be opened is forgotten: a later caller tries again.
func TestFailedSessionIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begins atomic.Int64
		p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
			if frame == amqppeer.Begin {
				begins.Add(1)
				return amqppeer.Ignores
			}
			return amqppeer.Responds
		}}
		c := clientOf(t, p)
		live := connected(t, c)
		type key struct{}
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := live.Session(ctx, key{})
			assert.That(t, err != nil && ctx.Err() == nil, "got %v, want the error of the opening", err)
			cancel()
			if live.Ended() { // go-amqp ends the connection with some failures
				return
			}
		}
		assert.Equal(t, "sessions were begun", begins.Load(), 2)
	})
}

// A message is accepted only after the server has accepted its copy: if the copy fails, the message
// stays in flight, and neither a retry nor a dead letter loses it.
func TestMessageWhoseCopyFailedIsNotAccepted(t *testing.T) {
	for name, settle := range map[string]func(context.Context, *Client, *tidegate.Delivery) error{
		"retry": func(ctx context.Context, c *Client, d *tidegate.Delivery) error {
			_, err := c.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: time.Second, Reason: "failed"})
			return err
		},
		"dead letter": func(ctx context.Context, c *Client, d *tidegate.Delivery) error {
			_, err := c.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "failed"})
			return err
		},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			var full atomic.Bool
			var copies, outcomes atomic.Int64
			p := &amqppeer.Peer{
				Reject: func(string) *amqppeer.Fault {
					if full.Load() {
						copies.Add(1)
						return &amqppeer.Fault{Condition: "amqp:resource-limit-exceeded", Description: "the address is full"}
					}
					return nil
				},
				Script: func(_ int, frame byte) amqppeer.Reaction {
					if frame == amqppeer.Disposition {
						outcomes.Add(1)
					}
					return amqppeer.Responds
				},
			}
			c, err := New("orders.example:5672", Options{Dialer: p.Dial, CopyRetries: true})
			assert.Must(t, err)
			defer c.Close()
			ds := delivered(t, c)
			full.Store(true)
			assert.That(t, settle(t.Context(), c, ds[0]) != nil, "it succeeded without its copy")
			assert.That(t, copies.Load() == 1 && outcomes.Load() == 0,
				"%d copies were sent and %d outcomes, want the copy alone", copies.Load(), outcomes.Load())
			full.Store(false)
			if err := c.Ack(t.Context(), ds)[0]; err != nil || outcomes.Load() != 1 {
				t.Errorf("the delivery cannot be settled again: %v, %d outcomes", err, outcomes.Load())
			}
		})
	}
}

// An acknowledgement that was not written had no effect: its error has NotConnected, and not
// MaybeStored.
func TestUnwrittenAcknowledgementIsNotConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{}
		c := clientOf(t, p)
		live := connected(t, c)
		l := &link{client: c, live: live}
		l.life, l.stop = context.WithCancel(t.Context())
		l.stop() // the link has ended, its connection has not
		e := l.accept([]*sessionDelivery{{ID: 1}})
		assert.That(t, e != nil && e.NotConnected && !e.MaybeStored, "%#v, want NotConnected without MaybeStored", e)
		e = l.accept(nil)
		assert.That(t, e == nil, "nothing to accept: %v", e)
	})
}

// A settlement that a goroutine of a lost link has begun to write may be stored. One that none has
// begun is not, and none begins it later.
func TestSettlementOfALostLink(t *testing.T) {
	for name, c := range map[string]struct {
		begun, lost         bool
		stored, unconnected bool
	}{
		"written, link lost":   {begun: true, lost: true, stored: true},
		"waiting, link lost":   {lost: true, unconnected: true},
		"written, caller gone": {begun: true, stored: true},
		"waiting, caller gone": {},
	} {
		t.Run(name, func(t *testing.T) {
			client := assert.Value(New("orders.example:5672", Options{}))(t)
			defer client.Close()
			l := &link{client: client, feed: &held.Feed{Topic: "orders"}}
			l.life, l.stop = context.WithCancel(t.Context())
			defer l.stop()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if gone := errors.New("the caller has enough"); c.lost {
				l.stop()
			} else {
				cancel(gone)
			}
			j := &job{list: make([]held.Settlement, 2), reply: make(chan []error, 1)}
			j.taken.Store(c.begun)
			errs := l.await(ctx, j)
			assert.MustEqual(t, "errors for 2 messages", len(errs), 2)
			for _, err := range errs {
				if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.MaybeStored != c.stored || e.NotConnected != c.unconnected {
					t.Errorf("got %#v, want MaybeStored %t and NotConnected %t", err, c.stored, c.unconnected)
				}
			}
			assert.That(t, j.taken.Load(), "a goroutine can still begin to write it")
		})
	}
}

// A property whose name has a meaning for Artemis or for the transport is rejected before it is
// sent: the server, or the consumer, would take it for its own.
func TestReservedPropertiesAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen atomic.Int64
		p := &amqppeer.Peer{Reject: func(string) *amqppeer.Fault { seen.Add(1); return nil }}
		c := clientOf(t, p)
		for _, name := range []string{"__TIDEGATE_TRACEPARENT", "__TIDEGATE_x", "_AMQ_DUPL_ID", "_AMQ_SCHED_DELIVERY", "DLQ_ORIGIN_TOPIC", "TAGS", "KEYS"} {
			m := &tidegate.Message{Topic: "orders", ID: "1", Body: []byte("x"), Properties: map[string]string{name: "1"}}
			err := c.Send(t.Context(), []*tidegate.Message{m})[0].Err
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == 40007, "%s: got %v, want 40007 (ILLEGAL_MESSAGE_PROPERTY_KEY)", name, err)
		}
		assert.Equal(t, "the server saw of the messages", seen.Load(), 0)
	})
}

// After a failure that a repetition may cure, no later message of the message group is sent: it
// could pass the one that failed. A message that the server rejects permanently stops none, and
// other message groups go on.
func TestNoMessageOfAGroupPassesAFailedOne(t *testing.T) {
	for name, c := range map[string]struct {
		fault amqppeer.Fault
		sent  int64 // messages that the server saw
		errs  string
	}{
		"transient": {amqppeer.Fault{Condition: "amqp:resource-limit-exceeded", Description: "full"}, 3, "failed/not sent/not sent/ok/ok"},
		"permanent": {amqppeer.Fault{Condition: "amqp:decode-error", Description: "odd"}, 5, "failed/ok/ok/ok/ok"},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			var seen atomic.Int64
			p := &amqppeer.Peer{Reject: func(string) *amqppeer.Fault {
				if seen.Add(1) == 1 {
					return &c.fault
				}
				return nil
			}}
			client := clientOf(t, p)
			var batch []*tidegate.Message
			for i, group := range []string{"a", "a", "a", "b", ""} {
				batch = append(batch, &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), MessageGroup: group, Body: []byte("x")})
			}
			var got []string
			for _, r := range client.Send(t.Context(), batch) {
				switch {
				case r.Err == nil:
					got = append(got, "ok")
				case strings.Contains(r.Err.Error(), "an earlier message of its message group failed"):
					got = append(got, "not sent")
				default:
					got = append(got, "failed")
				}
			}
			if text := strings.Join(got, "/"); text != c.errs || seen.Load() != c.sent {
				t.Errorf("%s, and the server saw %d messages; want %s and %d", text, seen.Load(), c.errs, c.sent)
			}
		})
	}
}

// A receive fails before it takes a message if the dead letters of the group have no queue: a dead
// letter would be lost. It succeeds once the queue exists.
func TestReceiveNeedsAQueueForDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var missing atomic.Bool
		missing.Store(true)
		p := &amqppeer.Peer{Refuse: func(address string, _ bool) *amqppeer.Fault {
			if address == "billing.DLQ" && missing.Load() {
				return &amqppeer.Fault{Condition: "amqp:not-found", Description: "no such queue"}
			}
			return nil
		}}
		p.Create("orders::orders.billing")
		c := clientOf(t, p)
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{{Topic: "orders", ID: "1", Body: []byte("x")}})[0].Err)
		ds, err := c.Receive(t.Context(), oneOrder)
		if len(ds) > 0 || !errors.Is(err, tidegate.ErrNotFound) || !strings.Contains(err.Error(), "create the anycast queue billing.DLQ") {
			t.Errorf("received %d messages, %v", len(ds), err)
		}
		missing.Store(false)
		time.Sleep(10 * time.Second) // on the same connection, which IdleTimeout has not ended
		if ds, err := c.Receive(t.Context(), oneOrder); err != nil || len(ds) != 1 || ds[0].Attempt != 1 {
			t.Errorf("with the queue: %d messages, %v", len(ds), err)
		}
	})
}

// A SQL filter is rejected: the queue of an Artemis group would keep what it does not select.
func TestSQLFilterIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{}
		p.Create("orders::orders.billing")
		c := clientOf(t, p)
		_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 1,
			InvisibleDuration: time.Minute, Filter: tidegate.Filter{SQL: true, Expression: "a = 1"}})
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeNotImplemented || !strings.Contains(e.Message, "filter by tags") {
			t.Errorf("got %v, want NOT_IMPLEMENTED with the remedy", err)
		}
	})
}

// A message with a priority or a lite topic is rejected before the send: Artemis would lose them.
func TestFieldsWithoutAPlaceInArtemis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientOf(t, &amqppeer.Peer{})
		for want, m := range map[string]*tidegate.Message{
			"leave it 0":     {Topic: "orders", Priority: 1, Body: []byte("x")},
			"no lite topics": {Topic: "orders", LiteTopic: "chat-1", Body: []byte("x")},
		} {
			err := c.Send(t.Context(), []*tidegate.Message{m})[0].Err
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeNotImplemented || !strings.Contains(e.Message, want) {
				t.Errorf("got %v, want NOT_IMPLEMENTED with %q", err, want)
			}
		}
	})
}

// The check of the queue of dead letters ends with the ctx of its caller, although the server does
// not respond.
func TestProbeEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
			if frame == amqppeer.Attach {
				return amqppeer.Ignores
			}
			return amqppeer.Responds
		}}
		c := clientOf(t, p)
		live := connected(t, c)
		enough, start := errors.New("the caller has enough"), time.Now()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
		defer cancel()
		if err := c.probe(ctx, live, "billing"); !errors.Is(err, enough) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v, want the cause of the ctx after 1s", time.Since(start), err)
		}
	})
}

// The transient error of a link has NotConnected if its connection is lost, so that a call waits
// for the next one; not while the connection is open.
func TestLinkOfALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{}
		c := clientOf(t, p)
		live := connected(t, c)
		ended := &goamqp.LinkError{RemoteErr: &goamqp.Error{Condition: goamqp.ErrCondDetachForced}}
		refused := &goamqp.Error{Condition: goamqp.ErrCondUnauthorizedAccess}
		for _, lost := range []bool{false, true} {
			if lost {
				_ = live.Conn.Close()
				synctest.Wait()
			}
			e := c.ofLink(live, ended)
			assert.That(t, e.NotConnected == lost && tidegate.Classify(e) == tidegate.ClassTransient, "lost %t: %#v", lost, e)
			if e := c.ofLink(live, refused); e.NotConnected || tidegate.Classify(e) != tidegate.ClassPermanent {
				t.Errorf("lost %t, a permanent error: %#v", lost, e)
			}
		}
	})
}
