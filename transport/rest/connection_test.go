package rest_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// Only a missing connection sets NotConnected: a host name that DNS does not have needs a change of
// the configuration.
func TestNotConnected(t *testing.T) {
	blackHole := errors.New("no response")
	for name, tt := range map[string]struct {
		dial error
		want bool
	}{
		"refused":                {errors.New("connection refused"), true},
		"no response to connect": {blackHole, true},
		"no such host":           {&net.DNSError{Err: "no such host", Name: "broker.test", IsNotFound: true}, false},
		"DNS does not respond":   {&net.DNSError{Err: "server misbehaving", Name: "broker.test", IsTemporary: true}, true},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			c := assert.Value(rest.New("broker.test", rest.Options{RequestTimeout: 5 * time.Second, Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				if tt.dial == blackHole {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, tt.dial
			}}))(t)
			defer c.Close()
			short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			for what, ctx := range []context.Context{transport.AwaitConnection(short), t.Context()} {
				e, ok := errors.AsType[*tidegate.Error](c.Send(ctx, []*tidegate.Message{message("1")})[0].Err)
				if !ok || e.NotConnected != tt.want || e.MaybeStored || tidegate.Classify(e) != tidegate.ClassTransient {
					t.Errorf("%d: %#v, want a transient error with NotConnected %t", what, e, tt.want)
				}
			}
			time.AfterFunc(time.Second, func() { c.Close() })
			e, _ := errors.AsType[*tidegate.Error](c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{message("2")})[0].Err)
			assert.That(t, errors.Is(e, tidegate.ErrClosed) && !e.NotConnected, "during Close: %#v", e)
		})
	}
}

// A certificate that is not trusted, and rejected credentials, are outages at a broker that has
// accepted requests of the client, and permanent errors at any other.
func TestBrokerThatHasWorked(t *testing.T) {
	const accept, reject, distrust = 0, 1, 2
	for name, steps := range map[string][]int{
		"never worked":             {reject, distrust},
		"worked, then rejects":     {accept, reject, accept},
		"worked, then untrusted":   {accept, distrust, accept},
		"rejected before it works": {reject, accept, reject},
	} {
		t.Run(name, func(t *testing.T) {
			var step atomic.Int64
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if step.Load() == reject {
					problem(w, 401, 40100)
					return
				}
				io.WriteString(w, `{"results":[{"id":"1"}]}`)
			}))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			defer srv.Close()
			trusted := x509.NewCertPool()
			trusted.AddCert(srv.Certificate())
			c := assert.Value(rest.New(srv.URL, rest.Options{TLS: &tls.Config{RootCAs: trusted, VerifyConnection: func(tls.ConnectionState) error {
				if step.Load() == distrust {
					return &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
				}
				return nil
			}}}))(t)
			defer c.Close()
			worked := false
			for i, what := range steps {
				step.Store(int64(what))
				srv.CloseClientConnections()
				var e *tidegate.Error
				for { // a connection that the server has just closed may still be in use
					e, _ = errors.AsType[*tidegate.Error](c.Send(t.Context(), []*tidegate.Message{message("1")})[0].Err)
					if e == nil || !errors.Is(e, io.EOF) && !strings.Contains(e.Error(), "reset") && !strings.Contains(e.Error(), "closed") {
						break
					}
				}
				ok := e == nil
				switch {
				case what == accept:
				case !worked:
					ok = !ok && tidegate.Classify(e) == tidegate.ClassPermanent && !e.Lapsed && !e.NotConnected
				case what == reject:
					ok = !ok && e.Lapsed && e.Code == tidegate.CodeUnauthorized && tidegate.Classify(e) == tidegate.ClassTransient
				default:
					ok = !ok && e.NotConnected && e.Code == 0 && tidegate.Classify(e) == tidegate.ClassTransient && strings.Contains(e.Error(), "expired")
				}
				assert.That(t, ok && (e == nil || !e.MaybeStored), "step %d: %#v", i, e)
				worked = worked || what == accept
			}
		})
	}
}

// A client knows the capabilities of its own broker, by its name or without one, after the broker's
// first response. The response of a proxy shows nothing about the broker behind it. The client has
// none for another endpoint.
func TestCapabilitiesOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transport.Capabilities{
			Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
		}
		up := false
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			if up {
				problem(w, 404, 40402)
				return
			}
			http.Error(w, "<html>no backend</html>", http.StatusBadGateway)
		})
		for _, tt := range []struct {
			endpoint      string
			responded, up bool
			want          transport.Capabilities
		}{
			{"", false, false, transport.Capabilities{}},
			{"broker.test:80", true, false, transport.Capabilities{}},
			{"", true, true, all},
			{"broker.test:80", true, true, all},
			{"other.test:80", true, true, transport.Capabilities{}},
		} {
			if up = tt.up; tt.responded {
				assert.MustThat(t, assert.Err(c.ProducerSettings(t.Context(), "orders")) != nil, "no error")
			}
			if got := c.Capabilities(tt.endpoint); got != tt.want {
				t.Errorf("endpoint %q, after a response: %t, of the broker: %t; %+v, want %+v", tt.endpoint, tt.responded, tt.up, got, tt.want)
			}
		}
	})
}

// A delivery over HTTP ends in the ways of Apache Pulsar as over gRPC: through the retry topic
// after a delay, a level or the next level, up to the group's maximum, or by a negative
// acknowledgement. The result has the fate of the message.
func TestReconsume(t *testing.T) {
	retries := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 2}}
	again := func(d time.Duration) transport.RetryResult {
		return transport.RetryResult{Fate: transport.FateAgain, Delay: d}
	}
	dead := transport.RetryResult{Fate: transport.FateDeadLetter}
	type mode = transport.Verdict
	const later, negative = transport.RetryTopic, transport.NegativeAck
	for name, tt := range map[string]struct {
		group settings.Group
		modes []mode
		want  []transport.RetryResult
	}{
		"next level":  {retries, []mode{{Kind: later}, {Kind: later}, {Kind: later}}, []transport.RetryResult{again(time.Second), again(5 * time.Second), dead}},
		"a level":     {retries, []mode{{Kind: later, Level: 3}}, []transport.RetryResult{again(10 * time.Second)}},
		"a delay":     {retries, []mode{{Kind: later, Delay: time.Hour}}, []transport.RetryResult{again(time.Hour)}},
		"negative":    {retries, []mode{{Kind: negative}}, []transport.RetryResult{again(time.Minute)}},
		"its own":     {retries, []mode{{Kind: negative, Delay: 7 * time.Second}}, []transport.RetryResult{again(7 * time.Second)}},
		"its maximum": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}}, []mode{{Kind: negative}, {Kind: negative}}, []transport.RetryResult{again(time.Minute), dead}},
	} {
		t.Run(name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{})
				b.CreateGroup("billing", tt.group)
				b.Send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
				c := over(t, b, rest.Options{})
				for i, mode := range tt.modes {
					d := receiveOne(t, c)
					got, err := c.Settle(t.Context(), d, mode)
					got.Delay = got.Delay.Round(time.Millisecond)
					if err != nil || got != tt.want[i] {
						t.Fatalf("failure %d: %+v, %v; want %+v", i+1, got, err, tt.want[i])
					}
					if _, err := c.Settle(t.Context(), d, mode); !errors.Is(err, tidegate.ErrInvalidHandle) {
						t.Errorf("failure %d, again: %v, want ErrInvalidHandle", i+1, err)
					}
					if got.Fate == transport.FateAgain {
						time.Sleep(got.Delay)
					}
				}
			})
		})
	}
}

// In the last attempt of a FIFO group, the group's settings decide the fate of a message whose
// consumer requests a dead letter. The result has that fate.
func TestDeadLetterResult(t *testing.T) {
	for policy, want := range map[settings.OnExhausted]transport.RetryResult{
		settings.OnExhaustedDeadLetter: {Fate: transport.FateDeadLetter},
		settings.OnExhaustedPark:       {Fate: transport.FateParked},
		settings.OnExhaustedBlock:      {Fate: transport.FateAgain, Delay: time.Minute},
	} {
		t.Run(string(policy), func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
				b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: 1, FIFORetryInterval: settings.Duration(time.Minute), OnExhausted: policy})
				b.Send(&tidegate.Message{Topic: "orders", MessageGroup: "customer 7", Body: []byte("x")})
				c := over(t, b, rest.Options{})
				got, err := c.Settle(t.Context(), receiveOne(t, c), transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"})
				assert.That(t, err == nil && got == want, "%+v, %v; want %+v", got, err, want)
			})
		})
	}
}

// A consumer of lite topics sets, adds and removes some, receives their messages alone, and learns
// which ones it loses.
func TestLiteTopics(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("sessions", settings.Topic{Type: settings.TopicLite})
		b.CreateGroup("agents", settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: "sessions", Exclusive: true}})
		c := over(t, b, rest.Options{})
		of := transport.LiteConsumer{Group: "agents", Topic: "sessions", ID: "one"}
		sync := func(action transport.LiteAction, at transport.LiteStart, topics ...string) error {
			return c.SyncLite(t.Context(), transport.LiteSync{LiteConsumer: of, Action: action, Topics: topics, Start: at})
		}
		none := transport.LiteStart{}
		take := func(want string) {
			t.Helper()
			var got string
			for {
				ds, err := c.Receive(t.Context(), transport.ReceiveRequest{
					Group: "agents", Topic: "sessions", Queue: transport.AnyQueue, Push: true, Max: 32, InvisibleDuration: time.Minute, LiteConsumer: "one",
				})
				assert.MustThat(t, err == nil, "receive: %v", err)
				for _, d := range ds {
					got += d.LiteTopic + ":" + string(d.Body) + " "
					assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
				}
				if len(ds) == 0 {
					break
				}
			}
			assert.Equal(t, "received", got, want)
		}
		send := func(lite, body string) {
			t.Helper()
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "sessions", LiteTopic: lite, Body: []byte(body)}})[0].Err)
		}
		began := time.Now()
		for _, body := range []string{"1", "2", "3"} {
			send("a", body)
			time.Sleep(time.Second)
		}
		send("b", "4")
		assert.Must(t, sync(transport.LiteSet, none))
		take("")
		assert.Must(t, sync(transport.LiteAdd, none, "a"))
		take("a:1 a:2 a:3 ")
		for want, at := range map[string]transport.LiteStart{
			"": {Newest: true}, "a:1 a:2 a:3 ": {Oldest: true}, "a:2 a:3 ": {Last: 2}, "a:3 ": {Offset: 2},
		} {
			assert.Must(t, sync(transport.LiteRemove, none, "a"))
			assert.Must(t, sync(transport.LiteAdd, at, "a"))
			take(want)
		}
		assert.Must(t, sync(transport.LiteSet, none))
		assert.Must(t, sync(transport.LiteSet, transport.LiteStart{Time: began.Add(1500 * time.Millisecond)}, "a", "b"))
		take("a:3 b:4 ")
		assert.Must(t, sync(transport.LiteAdd, none))
		for code, err := range map[tidegate.Code]error{
			protocol.CodeIllegalLiteTopic: sync(transport.LiteAdd, none, strings.Repeat("x", 65)),
			tidegate.CodeBadRequest:       sync(7, none, "a"),
		} {
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == code, "%v, want code %d", err, code)
		}

		ctx, cancel := context.WithCancel(t.Context())
		names, served := make(chan string, 2), make(chan error, 1)
		go func() { served <- c.ServeLite(ctx, of, func(name string) { names <- name }) }()
		time.Sleep(5 * time.Minute)                             // the stream lives on
		assert.Must(t, sync(transport.LiteSet, none, "a", "b")) // the broker has forgotten the consumer
		other := transport.LiteConsumer{Group: "agents", Topic: "sessions", ID: "two"}
		assert.Must(t, c.SyncLite(t.Context(), transport.LiteSync{LiteConsumer: other, Topics: []string{"a"}}))
		assert.Equal(t, "taken by another consumer", <-names, "a")
		assert.Must(t, b.DeleteLiteTopic(t.Context(), "sessions", "b"))
		assert.Equal(t, "deleted", <-names, "b")
		cancel()
		assert.NoError(t, <-served, "after the end of ctx")

		// A stream that ends otherwise is an error.
		go func() { served <- c.ServeLite(t.Context(), of, func(name string) { names <- name }) }()
		synctest.Wait()
		err := c.ServeLite(t.Context(), transport.LiteConsumer{Group: "agents", Topic: "nowhere", ID: "one"}, nil)
		assert.That(t, errors.Is(err, tidegate.ErrTopicNotFound), "without the topic: %v", err)
		c.Close()
		err = <-served
		assert.That(t, errors.Is(err, tidegate.ErrClosed), "after Close: %v", err)
	})
}

// receiveOne receives the message that is ready.
func receiveOne(t *testing.T, c *rest.Client) *tidegate.Delivery {
	t.Helper()
	ds, err := c.Receive(t.Context(), transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: time.Second,
	})
	assert.MustThat(t, err == nil && len(ds) == 1, "%d deliveries, %v; want one", len(ds), err)
	return ds[0]
}

// over returns a transport to the broker over HTTP, which ends with the test.
func over(t *testing.T, b *brokertest.Broker, o rest.Options) *rest.Client {
	t.Helper()
	o.Dialer = b.DialHTTP
	c := assert.Value(rest.New(b.HTTPAddress(), o))(t)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// The suite that every transport passes, in virtual time. The package comment lists the features
// that HTTP lacks.
func TestTransport(t *testing.T) {
	s := transporttest.AllGuarantees()
	s.PushesThrottleBackoff = false
	s.Virtual, s.Capabilities = true, transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true,
		RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		b := brokertest.New(t)
		createGroup := func(ctx context.Context, name, lite string, s transport.ConsumerSettings) error {
			g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps), Lite: settings.LiteGroup{Topic: lite}}
			if s.FIFO {
				g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
			}
			_, err := b.PutGroup(ctx, name, g)
			return err
		}
		return transporttest.Fixture{
			Transport: over(t, b, rest.Options{}),
			CreateTopic: func(ctx context.Context, name string, kind settings.TopicType) error {
				_, err := b.PutTopic(ctx, name, settings.Topic{Type: kind})
				return err
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				return createGroup(ctx, name, "", s)
			},
			CreateLiteGroup: createGroup,
			Disconnect:      b.Disconnect,
		}
	}, s)
}

// A receive requests 1 to 32 messages, the bounds of the broker.
func TestReceiveRequestsAtMost32Messages(t *testing.T) {
	for _, tt := range []struct{ max, want int }{{-1, 1}, {0, 1}, {1, 1}, {32, 32}, {33, 32}, {1000, 32}} {
		synctest.Test(t, func(t *testing.T) {
			var got struct {
				Max int `json:"max"`
			}
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&got))
				io.WriteString(w, `{"messages":[]}`)
			})
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: tt.max, InvisibleDuration: time.Minute})
			assert.That(t, err == nil && got.Max == tt.want, "a receive of %d requests %d messages, %v; want %d", tt.max, got.Max, err, tt.want)
		})
	}
}

// RequestTimeout bounds a request. A send whose ctx has a deadline has that deadline instead, and a
// receive its wait in addition.
func TestTimeouts(t *testing.T) {
	receive := func(ctx context.Context, c *rest.Client) error {
		_, err := c.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Wait: 20 * time.Second, InvisibleDuration: time.Minute})
		return err
	}
	send := func(ctx context.Context, c *rest.Client) error {
		return c.Send(ctx, []*tidegate.Message{message("1")})[0].Err
	}
	settings := func(ctx context.Context, c *rest.Client) error {
		_, err := c.ProducerSettings(ctx, "orders")
		return err
	}
	for _, tt := range []struct {
		name     string
		call     func(context.Context, *rest.Client) error
		deadline time.Duration // of ctx; 0 for none
		want     time.Duration
	}{
		{"a send", send, 0, 2 * time.Second},
		{"a send with an earlier deadline", send, time.Second, time.Second},
		{"a send with a later deadline", send, 10 * time.Second, 10 * time.Second},
		{"a request with a later deadline", settings, 10 * time.Second, 2 * time.Second},
		{"a receive", receive, 0, 22 * time.Second},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			c, _ := answering(t, rest.Options{RequestTimeout: 2 * time.Second}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			ctx := t.Context()
			if tt.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			begin := time.Now()
			if err := tt.call(ctx, c); err == nil || time.Since(begin) != tt.want {
				t.Errorf("error %v after %v, want one after %v", err, time.Since(begin), tt.want)
			}
		})
	}
}

// A request has at most 256 messages and 4 MiB of bodies; a larger message has a request of its
// own.
func TestSendsAreCut(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name     string
		messages int
		body     int // bytes of each
		want     []int
	}{
		{"small messages", 600, 10, []int{256, 256, 88}},
		{"messages of 1 MiB", 9, mib, []int{4, 4, 1}},
		{"messages of 3 MiB", 2, 3 * mib, []int{1, 1}},
		{"messages of 5 MiB", 2, 5 * mib, []int{1, 1}},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			var got []int
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Messages []struct {
						ID string `json:"id"`
					} `json:"messages"`
				}
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
				got = append(got, len(body.Messages))
				json.NewEncoder(w).Encode(map[string]any{"results": body.Messages})
			})
			var msgs []*tidegate.Message
			for i := range tt.messages {
				m := message(fmt.Sprint(i))
				m.Body = make([]byte, tt.body)
				msgs = append(msgs, m)
			}
			for i, r := range c.Send(t.Context(), msgs) {
				assert.MustThat(t, r.Err == nil && r.Receipt.MessageID == msgs[i].ID, "message %d: %+v", i, r)
			}
			assert.That(t, slices.Equal(got, tt.want), "requests with %v messages, want %v", got, tt.want)
		})
	}
}

// Ack acknowledges in requests of at most 1000 deliveries. If a response has a different number of
// results, each of its deliveries may be acknowledged.
func TestAcksAreCut(t *testing.T) {
	for _, tt := range []struct {
		name  string
		short int // the response lacks so many results
		maybe bool
	}{
		{"all results", 0, false},
		{"too few results", 1, true},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			var got []int
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Handles []string `json:"handles"`
				}
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
				got = append(got, len(body.Handles))
				list := make([]map[string]string, len(body.Handles)-tt.short)
				json.NewEncoder(w).Encode(map[string]any{"results": list})
			})
			ds := make([]*tidegate.Delivery, 2500)
			for i := range ds {
				ds[i] = &tidegate.Delivery{Handle: fmt.Sprint(i), ConsumerGroup: "billing"}
			}
			for i, err := range c.Ack(t.Context(), ds) {
				e, ok := errors.AsType[*tidegate.Error](err)
				assert.MustThat(t, (!tt.maybe || ok && e.Code == protocol.CodeInternalError && e.MaybeStored) && (tt.maybe || err == nil), "delivery %d: %v", i, err)
			}
			want := []int{1000, 1000, 500}
			assert.That(t, slices.Equal(got, want), "requests with %v deliveries, want %v", got, want)
		})
	}
}

// ReceiveBatchSize is always 32, also for a group that does not exist yet.
func TestReceiveBatchSizeOfANewGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, 40400) })
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		assert.That(t, err == nil && s.ReceiveBatchSize == 32 && s.MaxAttempts == 0 && s.Retry == nil && !s.FIFO, "settings %+v, %v; want a batch size of 32 alone", s, err)
	})
}

// Settings are those of the group, or of the topic's address settings, where they hold.
func TestConsumerSettings(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		c := over(t, b, rest.Options{})
		b.CreateTopic("orders", settings.Topic{})
		if s, err := c.ConsumerSettings(t.Context(), "later", "orders"); err != nil || s.MaxAttempts != 0 || s.Retry != nil {
			t.Errorf("of a group that does not exist yet: %+v, %v, want none", s, err)
		}
		b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: -1, FIFORetryInterval: settings.Duration(4 * time.Second)})
		if s, err := c.ConsumerSettings(t.Context(), "billing", "orders"); err != nil || !s.FIFO || s.MaxAttempts != -1 || s.Retry.Delay(3) != 4*time.Second {
			t.Errorf("of a FIFO group: %+v, %v", s, err)
		}
		delay, factor, most := settings.Milliseconds(1000), 3.0, settings.Milliseconds(20_000)
		assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "orders", settings.Address{RedeliveryDelay: &delay, RedeliveryDelayMultiplier: &factor, MaxRedeliveryDelay: &most})))
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		assert.MustThat(t, err == nil && s.MaxAttempts == 10, "of address settings: %+v, %v, want 10 attempts", s, err)
		for n, want := range []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 20 * time.Second, 20 * time.Second} {
			got := s.Retry.Delay(n)
			assert.That(t, got == want, "delay %d is %v, want %v", n, got, want)
		}
	})
}

// A key with the permissions to send and to receive is enough; the permission to observe is not
// needed.
func TestRights(t *testing.T) {
	o := brokertest.Options{Access: server.AccessConfig{Keys: []server.Key{{
		Name: "clerk", Secrets: []server.Secret{server.NewSecret("open sesame")},
		Allow: []server.Rule{{Actions: []server.Action{"send", "receive"}, Topics: []string{"orders"}, Groups: []string{"billing"}}},
	}}}}
	b := brokertest.NewWith(t, o)
	b.CreateTopic("orders", settings.Topic{})
	c := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open sesame"}})
	ctx := t.Context()
	_, settings := c.ProducerSettings(ctx, "orders")
	_, group := c.ConsumerSettings(ctx, "billing", "orders")
	queues, all := c.Queues(ctx, "billing", "orders")
	err := errors.Join(c.Ping(ctx), c.Ping(ctx, "orders"), settings, group, all, c.Send(ctx, []*tidegate.Message{message("a")})[0].Err)
	assert.That(t, err == nil && len(queues) == 1 && queues[0] == transport.AnyQueue, "%v, queues %v", err, queues)
	ds, err := c.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
	assert.MustThat(t, err == nil && len(ds) == 1, "received %d, %v", len(ds), err)
	assert.NoError(t, c.Ack(ctx, ds)[0])
	wrong := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open barley"}})
	for name, err := range map[string]error{
		"Ping": wrong.Ping(ctx), "Send": wrong.Send(ctx, []*tidegate.Message{message("a")})[0].Err, "Queues": func() error { _, err := wrong.Queues(ctx, "billing", "orders"); return err }(),
	} {
		assert.That(t, errors.Is(err, tidegate.ErrUnauthorized), "%s with a wrong secret: %v, want ErrUnauthorized", name, err)
	}
	r := c.Send(ctx, []*tidegate.Message{{ID: "x", Topic: "bills", Body: []byte("x")}})[0]
	assert.That(t, errors.Is(r.Err, tidegate.ErrForbidden), "another topic: %v, want ErrForbidden", r.Err)
}

// An ended is a context that ends without a signal, as one does that ends just after the response
// was read.
type ended struct {
	context.Context
	since atomic.Bool
}

func (e *ended) Err() error {
	if e.since.Load() {
		return context.Canceled
	}
	return e.Context.Err()
}

// A receive whose ctx ends when the response is there releases the messages: another receive gets
// them at once.
func TestCancelledReceiveReleasesItsMessages(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		ctx := &ended{Context: t.Context()}
		b.Intercept(func(c context.Context, call server.Call, next func(context.Context) error) error {
			err := next(c)
			if call.Op == "ReceiveMessage" {
				ctx.since.Store(true)
			}
			return err
		})
		c := over(t, b, rest.Options{})
		if r := c.Send(t.Context(), []*tidegate.Message{message("1"), message("2"), message("3")}); r[2].Err != nil {
			t.Fatal(r[2].Err)
		}
		req := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 32, Push: true, InvisibleDuration: time.Hour}
		if ds, err := c.Receive(ctx, req); len(ds) != 0 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		ds, err := c.Receive(t.Context(), req)
		assert.MustThat(t, err == nil && len(ds) == 3, "%d deliveries after the cancelled receive, %v; want 3", len(ds), err)
		for _, d := range ds {
			assert.That(t, d.Attempt == 1, "attempt %d, want 1: the release does not count", d.Attempt)
		}
	})
}
