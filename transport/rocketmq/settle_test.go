package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func delivery(handle, endpoint string) *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{ID: "m-" + handle, Topic: "t"}, ConsumerGroup: "g", Attempt: 3, Handle: handle, Endpoint: endpoint}
}

func TestManyAcksAreDivided(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return &rmqpb.AckMessageResponse{Status: ok} }
		var ds []*tidegate.Delivery
		for i := range 1025 {
			ds = append(ds, delivery(fmt.Sprint(i), testAddr))
		}
		for i, err := range c.Ack(t.Context(), ds) {
			assert.Must(t, err, "delivery %d", i)
		}
		for i, want := range []int{512, 512, 1} {
			r, _ := s.of("AckMessage")[i].req.(*rmqpb.AckMessageRequest)
			assert.That(t, len(r.GetEntries()) == want, "request %d has %d entries, want %d", i, len(r.GetEntries()), want)
		}
		for i := range ds {
			ds[i].Handle += strings.Repeat("h", 2<<10) // a server's handles are its own affair
		}
		c.Ack(t.Context(), ds[:600])
		entries := 0
		for i, g := range s.of("AckMessage")[3:] {
			entries += len(g.req.(*rmqpb.AckMessageRequest).GetEntries())
			n := proto.Size(g.req)
			assert.That(t, n <= 1<<20, "long request %d has %d bytes", i, n)
		}
		assert.Equal(t, "entries", entries, 600)
	})
}

func TestAck(t *testing.T) {
	st := func(c rmqpb.Code) *rmqpb.Status { return &rmqpb.Status{Code: c} }
	entry := func(h string, c rmqpb.Code) *rmqpb.AckMessageResultEntry {
		return &rmqpb.AckMessageResultEntry{ReceiptHandle: h, Status: st(c)}
	}
	for name, tt := range map[string]struct {
		res  *rmqpb.AckMessageResponse
		want [2]tidegate.Code
	}{
		"all":     {&rmqpb.AckMessageResponse{Status: ok, Entries: []*rmqpb.AckMessageResultEntry{entry("1", 20000), entry("2", 20000)}}, [2]tidegate.Code{}},
		"silent":  {&rmqpb.AckMessageResponse{Status: ok}, [2]tidegate.Code{}},
		"mixed":   {&rmqpb.AckMessageResponse{Status: st(30000), Entries: []*rmqpb.AckMessageResultEntry{entry("1", 40013), entry("2", 20000)}}, [2]tidegate.Code{40013, 0}},
		"partial": {&rmqpb.AckMessageResponse{Status: st(30000), Entries: []*rmqpb.AckMessageResultEntry{entry("2", 20000)}}, [2]tidegate.Code{50001, 0}},
		"refused": {&rmqpb.AckMessageResponse{Status: st(42900)}, [2]tidegate.Code{42900, 42900}},
		"expired": {&rmqpb.AckMessageResponse{Status: st(40013), Entries: []*rmqpb.AckMessageResultEntry{entry("1", 40013), entry("2", 40013)}}, [2]tidegate.Code{40013, 40013}},
		"nothing": {&rmqpb.AckMessageResponse{}, [2]tidegate.Code{50001, 50001}},
	} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return tt.res }
			for i, err := range c.Ack(t.Context(), []*tidegate.Delivery{delivery("1", testAddr), delivery("2", testAddr)}) {
				var code tidegate.Code
				if e, isErr := errors.AsType[*tidegate.Error](err); isErr {
					code = e.Code
				}
				if code != tt.want[i] {
					t.Errorf("delivery %d: %v, want code %d", i, err, tt.want[i])
				}
			}
			r := s.of("AckMessage")[0].req.(*rmqpb.AckMessageRequest)
			if r.GetGroup().GetName() != "g" || r.GetTopic().GetName() != "t" || len(r.GetEntries()) != 2 ||
				r.GetEntries()[1].GetMessageId() != "m-2" || r.GetEntries()[1].GetReceiptHandle() != "2" {
				t.Errorf("request %v", r)
			}
		})
	}
}

// A settlement reports MaybeStored exactly if the response leaves open whether it worked.
func TestSettlementsThatMayHaveWorked(t *testing.T) {
	st := func(c rmqpb.Code) *rmqpb.Status { return &rmqpb.Status{Code: c} }
	entry := func(h string, c rmqpb.Code) *rmqpb.AckMessageResultEntry {
		return &rmqpb.AckMessageResultEntry{ReceiptHandle: h, Status: st(c)}
	}
	for name, tt := range map[string]struct {
		ack    *rmqpb.AckMessageResponse
		change rmqpb.Code
		want   bool
	}{
		"timed out behind the proxy": {&rmqpb.AckMessageResponse{Status: st(50400)}, 50400, true},
		"failed":                     {&rmqpb.AckMessageResponse{Status: st(50001)}, 50001, true},
		"not supported":              {&rmqpb.AckMessageResponse{Status: st(50100)}, 50100, false},
		"refused":                    {&rmqpb.AckMessageResponse{Status: st(42900)}, 42900, false},
		"one of several":             {&rmqpb.AckMessageResponse{Status: st(30000), Entries: []*rmqpb.AckMessageResultEntry{entry("1", 50400)}}, 50400, true},
		"not a word":                 {&rmqpb.AckMessageResponse{Status: st(30000), Entries: []*rmqpb.AckMessageResultEntry{entry("2", 20000), entry("3", 20000)}}, 50400, true},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return tt.ack }
			s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
				return &rmqpb.ChangeInvisibleDurationResponse{Status: st(tt.change)}
			}
			d := delivery("1", testAddr)
			for op, err := range map[string]error{"Ack": c.Ack(t.Context(), []*tidegate.Delivery{d})[0], "Retry": second(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}))} {
				e, isErr := errors.AsType[*tidegate.Error](err)
				assert.That(t, isErr && e.MaybeStored == tt.want, "%s: %s: %+v, want MaybeStored %t", name, op, err, tt.want)
			}
		})
	}
}

// Deliveries go back to where they came from, and nowhere else.
func TestSettleElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
		a.route = routed(append(queues(testAddr, "a", 1), queues(otherAddr, "b", 1)...))
		all := func(r *rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: ok}
		}
		a.ack, b.ack = all, all
		c := newClient(t, n, nil)
		assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), "t")))
		errs := c.Ack(t.Context(), []*tidegate.Delivery{
			delivery("1", testAddr), delivery("2", otherAddr), delivery("3", "10.0.0.1:1"), delivery("4", ""), delivery("5", otherAddr)})
		for i, want := range []bool{true, true, false, false, true} {
			if (errs[i] == nil) != want || !want && !errors.Is(errs[i], tidegate.ErrInvalid) {
				t.Errorf("delivery %d: %v", i, errs[i])
			}
		}
		if x, y := len(a.of("AckMessage")), len(b.of("AckMessage")); x != 1 || y != 1 {
			t.Errorf("%d and %d requests, want one each", x, y)
		}
		_, err := c.Settle(t.Context(), delivery("1", "10.0.0.1:1"), transport.Verdict{Kind: transport.Retry})
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v", err)
		if errs := c.Ack(t.Context(), nil); len(errs) != 0 {
			t.Error(errs)
		}
	})
}

func TestChangeRetryDeadLetter(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		code := rmqpb.Code_OK
		s.change = func(r *rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
			return &rmqpb.ChangeInvisibleDurationResponse{Status: &rmqpb.Status{Code: code}, ReceiptHandle: "new"}
		}
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.ClientID = "me" })
		d := delivery("h", testAddr)
		h, err := c.Extend(t.Context(), d, time.Minute, false)
		assert.That(t, h == "new" && err == nil && d.Handle == "h", "%q, %v, %+v", h, err, d)
		assert.NoError(t, assert.Err(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Hour})))
		code = rmqpb.Code_INVALID_RECEIPT_HANDLE
		h, err = c.Extend(t.Context(), d, time.Minute, false)
		assert.That(t, h == "" && errors.Is(err, tidegate.ErrInvalidHandle), "%q, %v", h, err)
		assert.NoError(t, assert.Err(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such order: 7"})))
		_, err = c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Release})
		assert.That(t, errors.Is(err, tidegate.ErrInvalidHandle), "%v", err)
		code = rmqpb.Code_OK
		assert.NoError(t, assert.Err(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Release})))
		assert.NoError(t, assert.Err(c.Extend(t.Context(), d, time.Minute, true)))
		calls := s.of("ChangeInvisibleDuration")
		for i, want := range []struct {
			suspend bool
			dur     time.Duration
		}{{false, time.Minute}, {false, time.Hour}, {false, time.Minute}, {true, 0}, {true, 0}, {false, time.Minute}} {
			r := calls[i].req.(*rmqpb.ChangeInvisibleDurationRequest)
			if r.Suspend == nil || r.GetSuspend() != want.suspend || r.GetInvisibleDuration().AsDuration() != want.dur ||
				r.GetReceiptHandle() != "h" || r.GetMessageId() != "m-h" || r.GetGroup().GetName() != "g" || r.GetTopic().GetName() != "t" {
				t.Errorf("call %d: %v", i, r)
			}
		}
		f := s.of("ForwardMessageToDeadLetterQueue")[0]
		r := f.req.(*rmqpb.ForwardMessageToDeadLetterQueueRequest)
		got := f.md.Get(wire.HeaderReason)
		assert.That(t, len(got) == 1 && got[0] == "no%20such%20order:%207", "reason %q", got)
		if r.GetDeliveryAttempt() != 3 || r.GetReceiptHandle() != "h" || r.GetMessageId() != "m-h" || f.md.Get("x-mq-client-id")[0] != "me@g" {
			t.Errorf("%v %v", r, f.md)
		}
	})
}

// RocketMQ 5.5 honours the flag suspend on all topics, without an announcement: an attempt whose
// last change had the flag does not count. Extended leases and the changes of simple consumers
// count, so that a message whose handler ends the process becomes a dead letter. Only the release
// of a delivery that no handler has seen does not. A tidegate broker gets the flag always: without
// it the change of a push consumer is a failure.
func TestSuspend(t *testing.T) {
	for _, tt := range []struct {
		name     string
		features string
		push     bool
		change   func(context.Context, *rocketmq.Client, *tidegate.Delivery) error
		suspend  bool
	}{
		{"an extension on RocketMQ", "", true, change(time.Minute), false},
		{"a change by a simple consumer on RocketMQ", "", false, change(time.Minute), false},
		{"a change to now by a simple consumer on RocketMQ", "", false, change(0), false},
		{"a release on RocketMQ", "", true, release, true},
		{"a release of a simple consumer's delivery on RocketMQ", "", false, release, true},
		{"an extension on a broker without suspend", "batch, retry", true, change(time.Minute), false},
		{"an extension on a tidegate broker", "batch, suspend", true, change(time.Minute), true},
		{"a change by a simple consumer on a tidegate broker", "batch, suspend", false, change(time.Minute), true},
		{"a release on a tidegate broker", "batch, suspend", true, release, true},
	} {
		servedAs(t, tt.name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.features = tt.features
			const retries = 2
			attempt, suspended, dead := int32(0), false, false
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				if !suspended {
					attempt++
				}
				suspended = false
				if dead = attempt > retries+1; dead {
					sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
					return nil
				}
				sendStatus(st, rmqpb.Code_OK)
				sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.DeliveryAttempt = new(attempt) })
				return nil
			}
			s.change = func(r *rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
				suspended = r.GetSuspend()
				return &rmqpb.ChangeInvisibleDurationResponse{Status: ok, ReceiptHandle: "new"}
			}
			var attempts []int
			for range retries + 2 { // the message is redelivered each time, as after the end of the process
				r := request1
				r.Push = tt.push
				ds := assert.Value(c.Receive(t.Context(), r))(t)
				for _, d := range ds {
					attempts = append(attempts, d.Attempt)
					assert.Must(t, tt.change(t.Context(), c, d))
				}
			}
			want := []int{1, 2, 3}
			if tt.suspend {
				want = []int{1, 1, 1, 1}
			}
			assert.That(t, slices.Equal(attempts, want) && dead != tt.suspend,
				"attempts %v, dead letter %t; want %v", attempts, dead, want)
		})
	}
}

func release(ctx context.Context, c *rocketmq.Client, d *tidegate.Delivery) error {
	return second(c.Settle(ctx, d, transport.Verdict{Kind: transport.Release}))
}

func change(dur time.Duration) func(context.Context, *rocketmq.Client, *tidegate.Delivery) error {
	return func(ctx context.Context, c *rocketmq.Client, d *tidegate.Delivery) error {
		_, err := c.Extend(ctx, d, dur, false)
		return err
	}
}

// Retry sends its reason, and takes its result from the trailer.
func TestRetryResult(t *testing.T) {
	for _, tt := range []struct {
		trailer []string
		want    transport.RetryResult
	}{
		{nil, transport.RetryResult{}},
		{[]string{"7", "parked"}, transport.RetryResult{Fate: transport.FateParked}},
	} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.changeTrailer = metadata.MD{wire.TrailerRetry: tt.trailer}
			got, err := newClient(t, s.net, nil).Settle(t.Context(), delivery("h", testAddr), transport.Verdict{Kind: transport.Retry, Delay: time.Second, Reason: "out of stock: Müller"})
			assert.That(t, err == nil && got == tt.want, "%q: %+v, %v; want %+v", tt.trailer, got, err, tt.want)
			r := s.of("ChangeInvisibleDuration")[0].md.Get(wire.HeaderReason)
			assert.That(t, len(r) == 1 && r[0] == "out%20of%20stock:%20M%C3%BCller", "reason %q", r)
		})
	}
}

// A header announces that the server's own schedule applies. A server that ignores the header gets
// a harmless duration: the interval that it announced last.
func TestRetryBySchedule(t *testing.T) {
	for after, want := range map[time.Duration]struct {
		header []string
		dur    time.Duration
	}{
		transport.BySchedule: {[]string{"true"}, 10 * time.Second}, // the third step of the server's schedule, for attempt 3
		-time.Second:         {nil, 0},
		time.Minute:          {nil, time.Minute},
	} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.features = "suspend, retry"
			_, err := newClient(t, s.net, nil).Settle(t.Context(), delivery("h", testAddr), transport.Verdict{Kind: transport.Retry, Delay: after})
			assert.MustThat(t, err == nil, "%v", err)
			r := s.of("ChangeInvisibleDuration")[0]
			dur := r.req.(*rmqpb.ChangeInvisibleDurationRequest).GetInvisibleDuration().AsDuration()
			if got := r.md.Get(wire.HeaderLadder); !slices.Equal(got, want.header) || dur != want.dur {
				t.Errorf("after %v: header %q and %v, want %q and %v", after, got, dur, want.header, want.dur)
			}
		})
	}
}

// A tidegate broker counts a Retry as a failed attempt only in the session of a push consumer. The
// client of a simple consumer opens such a session first.
func TestRetryOfSimpleConsumer(t *testing.T) {
	for _, features := range []string{"", "suspend"} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.features = features
			s.receive = empty
			c := newClient(t, s.net, func(o *rocketmq.Options) { o.ClientID = "me" })
			r := request1
			r.Push = false
			assert.Must(t, assert.Err(c.Receive(t.Context(), r)))
			assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
			assert.Must(t, assert.Err(c.Settle(t.Context(), delivery("h", testAddr), transport.Verdict{Kind: transport.Retry})))
			var kinds []rmqpb.ClientType
			for _, g := range s.of("settings") {
				kinds = append(kinds, g.req.(*rmqpb.TelemetryCommand).GetSettings().GetClientType())
			}
			want := []rmqpb.ClientType{rmqpb.ClientType_SIMPLE_CONSUMER}
			if features != "" {
				want = append(want, rmqpb.ClientType_PUSH_CONSUMER)
			}
			assert.That(t, slices.Equal(kinds, want), "features %q: sessions %v, want %v", features, kinds, want)
			assert.Must(t, assert.Err(c.Extend(t.Context(), delivery("h", testAddr), 0, false)))
			receiver := s.of("ReceiveMessage")[0].md.Get("x-mq-client-id")[0]
			assert.Equal(t, "received as", receiver, "me@g@simple")
			// RocketMQ fails for a client without a session, so only this client ID may settle.
			speaker := "me@g"
			if features == "" {
				speaker = receiver
			}
			for _, g := range s.of("ChangeInvisibleDuration") {
				got := g.md.Get("x-mq-client-id")[0]
				assert.That(t, got == speaker, "features %q: settled as %s, want %s", features, got, speaker)
			}
		})
	}
}

// Each mode is a change of the invisible duration with a header. A server that does not announce it
// is not asked: it would extend the lease, or count the attempt.
func TestReconsumeRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		mode     transport.Verdict
		header   string
		duration time.Duration
		bad      bool
	}{
		"delay":                        {mode: transport.Verdict{Kind: transport.RetryTopic, Delay: 90 * time.Second}, header: "delay", duration: 90 * time.Second},
		"level":                        {mode: transport.Verdict{Kind: transport.RetryTopic, Level: 18}, header: "level=18"},
		"next level":                   {mode: transport.Verdict{Kind: transport.RetryTopic}, header: "next"},
		"negative":                     {mode: transport.Verdict{Kind: transport.NegativeAck}, header: "negative"},
		"negative with a delay":        {mode: transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, header: "negative", duration: time.Hour},
		"snooze":                       {mode: transport.Verdict{Kind: transport.Snooze, Delay: time.Minute}, header: "true", duration: time.Minute},
		"level and delay":              {mode: transport.Verdict{Kind: transport.RetryTopic, Level: 1, Delay: time.Second}, bad: true},
		"negative acknowledgement too": {mode: transport.Verdict{Kind: transport.NegativeAck, Level: 1}, bad: true},
	} {
		for _, announced := range []bool{false, true} {
			served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
				feature, key := ", reconsume", wire.HeaderReconsume
				s.features = "suspend, snooze"
				if tt.mode.Kind == transport.Snooze {
					s.features, feature, key = "suspend, reconsume", ", snooze", wire.HeaderSnooze
				}
				if announced {
					s.features += feature
				}
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error { sendMessage(st, nil); return nil }
				s.changeTrailer = metadata.Pairs(wire.TrailerRetry, "1500")
				ds, err := c.Receive(t.Context(), request1)
				assert.Must(t, err)
				got, err := c.Settle(t.Context(), ds[0], tt.mode)
				sent := s.of("ChangeInvisibleDuration")
				want := tidegate.CodeNotImplemented
				if announced {
					want = tidegate.CodeBadRequest
				}
				if !announced || tt.bad {
					if e, _ := errors.AsType[*tidegate.Error](err); e == nil || e.Code != want || len(sent) != 0 {
						t.Errorf("%s, announced %t: %v and %d requests; want %d and none", name, announced, err, len(sent), want)
					}
					return
				}
				assert.MustThat(t, err == nil && got == (transport.RetryResult{Fate: transport.FateAgain, Delay: 1500 * time.Millisecond}) && len(sent) == 1,
					"%s: %+v, %v, %d requests", name, got, err, len(sent))
				r, header := sent[0].req.(*rmqpb.ChangeInvisibleDurationRequest), sent[0].md.Get(key)
				assert.That(t, r.GetInvisibleDuration().AsDuration() == tt.duration && r.GetReceiptHandle() == "h" && slices.Equal(header, []string{tt.header}),
					"%s: request %v, header %q", name, r, header)
			})
		}
	}
}
