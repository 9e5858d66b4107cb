package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// counts is how many messages of a group are in each state.
type counts struct{ ready, inflight, waiting, commit, dead int64 }

func countsOf(t *testing.T, b *broker.Broker, group string) counts {
	t.Helper()
	synctest.Wait()
	g, err := b.Group(group)
	if err != nil || len(g.Topics) != 1 {
		t.Fatalf("%+v, %v", g, err)
	}
	s := g.Topics[0]
	if s.Backlog.Messages != s.Ready+s.Inflight+s.WaitingRetry {
		t.Errorf("the backlog is %d of %+v", s.Backlog.Messages, s)
	}
	return counts{s.Ready, s.Inflight, s.WaitingRetry, s.Acked, s.DeadLetters}
}

// RocketMQ: consumption retry: "Ready The message is waiting to be consumed on the Apache RocketMQ
// broker"
// RocketMQ: consumption retry: "Inflight The message has been obtained and is being consumed by the
// consumer. However, the consumption result has not been returned"
// RocketMQ: consumption retry: "The message fails to be consumed or a timeout error occurs when the
// broker waits for the consumer to return the consumption status. In these cases, the consumption
// retry logic is triggered. If the maximum number of retries is not reached, the message goes back
// to the Ready state after the retry interval elapses. Messages that are in the Ready state can be
// consumed again"
// RocketMQ: consumption retry: "Commit The message is consumed. After the consumer returns a
// success response, the state machine can be terminated"
// RocketMQ: consumption retry: "If the message fails to be consumed even after the maximum number
// of retries is reached, the message is no longer retried and is sent to the dead-letter queue"
// RocketMQ: consumption retry: "When a message is retried, its state changes from Ready to Inflight
// and then to WaitingRetry"
func TestStatesOfAPushConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 3})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32}
		is := func(when string, want counts) {
			t.Helper()
			if got := countsOf(t, b, "g"); got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		take := func() *tidegate.Delivery {
			t.Helper()
			ds := receive(t, b, r)
			if len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			return ds[0]
		}
		nothing := func(when string) {
			t.Helper()
			if ds := receive(t, b, r); len(ds) != 0 {
				t.Errorf("%s: attempt %d was delivered", when, ds[0].Attempt)
			}
		}
		nothing("before the first message")
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		is("sent", counts{ready: 1})
		d := take()
		is("received", counts{inflight: 1})
		nothing("in flight")
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		is("failed", counts{waiting: 1})
		time.Sleep(10*time.Second - 1)
		nothing("before the retry interval is over")
		time.Sleep(1)
		is("the interval is over", counts{ready: 1})
		take()
		is("consumed again", counts{inflight: 1})
		time.Sleep(30 * time.Second)
		is("not answered", counts{waiting: 1})
		time.Sleep(30 * time.Second) // the ladder's second step
		is("the next interval is over", counts{ready: 1})
		if _, err := b.Settle(t.Context(), take(), transport.Verdict{Kind: transport.Retry, Delay: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		is("the last retry failed", counts{dead: 1})

		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		d = take()
		if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
			t.Fatal(err)
		}
		is("consumed", counts{commit: 1, dead: 1})
		time.Sleep(24 * time.Hour)
		nothing("a day later")
		is("a day later", counts{commit: 1, dead: 1})
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); !errors.Is(err, tidegate.ErrInvalidHandle) {
			t.Errorf("a message that is consumed fails with %v", err)
		}
	})
}

// With all operations of RocketMQ's simple consumers, their messages never wait.
//
// RocketMQ: consumption retry: "This state is exclusive to push consumers"
func TestStatesOfASimpleConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 3})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 10 * time.Second}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		pass := func(seconds int, want counts) {
			t.Helper()
			for range seconds {
				if got := countsOf(t, b, "g"); got != want {
					t.Fatalf("%+v, want %+v", got, want)
				}
				time.Sleep(time.Second)
			}
		}
		receive(t, b, r)
		pass(10, counts{inflight: 1})
		pass(10, counts{ready: 1})
		d := receive(t, b, r)[0]
		pass(5, counts{inflight: 1})
		handle, err := b.Extend(t.Context(), d, 20*time.Second, false)
		if err != nil {
			t.Fatal(err)
		}
		pass(10, counts{inflight: 1})
		d.Handle = handle
		if _, err := b.Extend(t.Context(), d, 0, false); err != nil { // gives it back
			t.Fatal(err)
		}
		pass(10, counts{ready: 1})
		receive(t, b, r)
		pass(10, counts{inflight: 1})
		pass(10, counts{dead: 1})
	})
}

// RocketMQ: consumption retry: "The retry interval is fixed and pre-allocated"
// RocketMQ: consumption retry: "When a message is retried, the value of the parameter is reused.
// You do not need to configure the interval for the subsequent retries"
func TestSimpleConsumersIntervalIsFixed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 30 * time.Millisecond, Wait: time.Hour}
		start := time.Now()
		for attempt := range 17 {
			ds := receive(t, b, r)
			if len(ds) != 1 || ds[0].Attempt != attempt+1 || time.Since(start) != time.Duration(attempt)*30*time.Millisecond {
				t.Fatalf("delivery %d is %+v, after %v", attempt+1, ds, time.Since(start))
			}
		}
	})
}

// RocketMQ: consumption retry: "you can change the value to a larger value to avoid triggering the
// retry mechanism"
func TestLongerInvisibleDurationAvoidsARetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 20 * time.Millisecond})[0]
		time.Sleep(15 * time.Millisecond)
		handle, err := b.Extend(t.Context(), d, time.Minute, false)
		if err != nil {
			t.Fatal(err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 59 * time.Second}); len(ds) != 0 {
			t.Errorf("attempt %d while the first is being processed", ds[0].Attempt)
		}
		d.Handle = handle
		if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
			t.Error(err)
		}
	})
}

// A client cannot keep a message without end by heartbeats.
//
// RocketMQ: consumption retry: "The maximum consumption interval is specified by a system parameter
// on the broker and cannot be exceeded"
func TestOwnedLeaseHasAMaximum(t *testing.T) {
	t.Parallel()
	for longest, want := range map[time.Duration]time.Duration{
		0:                3 * time.Hour, // as RocketMQ's proxy
		20 * time.Minute: 20 * time.Minute,
		30 * time.Second: 30 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{MinInvisibleDuration: time.Second, MaxInvisibleDuration: longest})
			putTopic(t, b, "t", settings.Topic{})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ds, err := serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Push: true}, Owner: "c"})
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			start := time.Now()
			for time.Since(start) < want {
				if got := countsOf(t, b, "g"); got != (counts{inflight: 1}) {
					t.Fatalf("after %v: %+v", time.Since(start), got)
				}
				serve(b).Touch("c")
				time.Sleep(30 * time.Second)
			}
			if got := countsOf(t, b, "g"); got != (counts{waiting: 1}) {
				t.Errorf("after %v: %+v", want, got)
			}
			if err := b.Ack(t.Context(), ds)[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Errorf("acknowledged with %v", err)
			}
		})
	}
}
