package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ: consumption retry: "Ordered messages: fixed"
// RocketMQ: consumption retry: "A timeout error occurs or a message stays in a push consumer queue
// for an excessive period of time"
// RocketMQ: consumption retry: "Retry interval: the time that elapses from when a consumption
// failure or timeout occurs to when the message is retried"
func TestTimeoutOfOrderedMessageWaitsFixedInterval(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
		putGroup(t, b, "g", settings.Group{FIFO: true, FIFORetryInterval: settings.Duration(7 * time.Second)})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), MessageGroup: "a"})
		for attempt := 1; attempt <= 5; attempt++ {
			start := time.Now()
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Wait: time.Hour})
			assert.MustThat(t, len(ds) == 1 && ds[0].Attempt == attempt, "delivery %d is %+v", attempt, ds)
			if took := time.Since(start); attempt > 1 && took != 37*time.Second {
				t.Errorf("delivery %d came %v after the one before, want its 30s to consume and 7s", attempt, took)
			}
		}
	})
}

// RocketMQ: consumption retry: "that is, the InvisibleDuration value is recalculated from the point
// in time when the API is called"
// RocketMQ: consumption retry: "the change takes effect immediately"
// RocketMQ: consumption retry: "you can change the value to a larger value to avoid triggering the
// retry mechanism"
func TestChangeCountsFromTheCall(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		for _, dur := range []time.Duration{time.Minute, time.Second} { // longer, and shorter
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 20 * time.Second})[0]
			time.Sleep(15 * time.Second)
			called := time.Now()
			assert.Must(t, assert.Err(b.Extend(t.Context(), d, dur, false)))
			again := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour, InvisibleDuration: time.Millisecond})
			if len(again) != 1 || time.Since(called) != dur {
				t.Errorf("changed to %v: visible again after %v", dur, time.Since(called))
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
	})
}

// RocketMQ: consumption retry: "A timeout error has not occurred on the current message"
// RocketMQ: consumption retry: "A consumption status of the current message is not returned"
func TestChangeNeedsAnOpenDelivery(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		for name, end := range map[string]func(d *tidegate.Delivery){
			"timed out":    func(*tidegate.Delivery) { time.Sleep(30 * time.Second) },
			"acknowledged": func(d *tidegate.Delivery) { b.Ack(t.Context(), []*tidegate.Delivery{d}) },
			"failed": func(d *tidegate.Delivery) {
				_, _ = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Hour})
			},
			"given up": func(d *tidegate.Delivery) {
				_ = second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}))
			},
		} {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte(name)})
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
			end(d)
			_, err := b.Extend(t.Context(), d, time.Minute, false)
			assert.That(t, errors.Is(err, tidegate.ErrInvalidHandle), "%s: changed with %v, want 40013", name, err)
			if name == "timed out" { // out of the way of the next one
				b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))
			}
		}
	})
}

// RocketMQ: consumption retry: "The maximum consumption interval is specified by a system parameter
// on the broker and cannot be exceeded"
func TestConsumptionIntervalHasAMaximum(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxInvisibleDuration: time.Hour})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{Retry: []time.Duration{time.Minute}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, InvisibleDuration: time.Hour + 1}
		assert.Equal(t, "received with", codeOf(assert.Err(b.Receive(t.Context(), r))), protocol.CodeIllegalInvisibleTime)
		r.InvisibleDuration, r.Wait = time.Hour, -1
		assert.Equal(t, "received with", codeOf(assert.Err(b.Receive(t.Context(), r))), protocol.CodeIllegalPollingTime)
		r.Wait = 0
		d := receive(t, b, r)[0]
		assert.Equal(t, "changed with", codeOf(assert.Err(b.Extend(t.Context(), d, time.Hour+1, false))), protocol.CodeIllegalInvisibleTime)
		for _, v := range []transport.Verdict{
			{Kind: transport.Retry, Delay: time.Hour + 1}, {Kind: transport.Snooze, Delay: time.Hour + 1}, {Kind: transport.Snooze, Delay: -1},
		} {
			_, err := b.Settle(t.Context(), d, v)
			assert.That(t, codeOf(err) == protocol.CodeIllegalInvisibleTime, "%v: %v, want 40011", v, err)
		}
	})
}

// The maximum bounds the total time of a delivery, from the moment of the delivery, and not a
// single request. The Chinese edition of the document has 消费耗时的最大上限, the limit of the consumption
// time.
//
// RocketMQ: consumption retry: "The maximum consumption interval is specified by a system parameter
// on the broker and cannot be exceeded"
func TestRepeatedChangesHaveAMaximum(t *testing.T) {
	t.Parallel()
	for _, push := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{MaxInvisibleDuration: time.Hour})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{Retry: []time.Duration{time.Minute}})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Push: push, InvisibleDuration: 20 * time.Minute}
			d := receive(t, b, r)[0]
			start := time.Now()
			for range 4 { // until 10, 20, 30 and 40 minutes after the delivery
				time.Sleep(10 * time.Minute)
				handle, err := b.Extend(t.Context(), d, 20*time.Minute, false)
				if err != nil {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				d.Handle = handle
			}
			time.Sleep(10 * time.Minute)
			for _, repeat := range []bool{false, true} {
				_, err := b.Extend(t.Context(), d, 10*time.Minute+1, repeat)
				if codeOf(err) != protocol.CodeIllegalInvisibleTime || !strings.Contains(err.Error(), "1h0m0s") || !strings.Contains(err.Error(), "10m0s are left") {
					t.Errorf("more than the rest: %v; want 40011 with the limit and the rest", err)
				}
			}
			handle, err := b.Extend(t.Context(), d, 10*time.Minute, false)
			assert.MustThat(t, err == nil, "the rest: %v", err)
			time.Sleep(10*time.Minute - 1)
			d.Handle = handle
			assert.Equal(t, "at the end", codeOf(assert.Err(b.Extend(t.Context(), d, 2, false))), protocol.CodeIllegalInvisibleTime)
			r.Wait = 2 * time.Minute
			if d = receive(t, b, r)[0]; d.Attempt != 2 || time.Since(start) < time.Hour || time.Since(start) > time.Hour+time.Minute {
				t.Errorf("attempt %d after %v", d.Attempt, time.Since(start))
			}
			time.Sleep(10 * time.Minute) // the next delivery has its own time
			if d.Handle, err = b.Extend(t.Context(), d, 50*time.Minute, false); err != nil {
				t.Errorf("the next delivery: %v", err)
			}
			assert.NoError(t, assert.Err(b.Extend(t.Context(), d, 0, false)), "giving it back")
		})
	}
}

func codeOf(err error) tidegate.Code {
	e, _ := errors.AsType[*tidegate.Error](err)
	if e == nil {
		return 0
	}
	return e.Code
}

// counts is how many messages of a group are in each state.
type counts struct{ ready, inflight, waiting, commit, dead int64 }

func countsOf(t *testing.T, b *broker.Broker, group string) counts {
	t.Helper()
	synctest.Wait()
	g, err := b.Group(group)
	assert.MustThat(t, err == nil && len(g.Topics) == 1, "%+v, %v", g, err)
	s := g.Topics[0]
	assert.That(t, s.Backlog.Messages == s.Ready+s.Inflight+s.WaitingRetry, "the backlog is %d of %+v", s.Backlog.Messages, s)
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
// RocketMQ: consumption retry: "The interval between two consumptions is the sum of the actual time
// spent on consumption and the retry interval"
// RocketMQ: consumption retry: "Retry interval: the time that elapses from when a consumption
// failure or timeout occurs to when the message is retried"
func TestStatesOfAPushConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 3})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32}
		is := func(when string, want counts) {
			t.Helper()
			got := countsOf(t, b, "g")
			assert.That(t, got == want, "%s: %+v, want %+v", when, got, want)
		}
		take := func() *tidegate.Delivery {
			t.Helper()
			ds := receive(t, b, r)
			assert.MustEqual(t, "deliveries", len(ds), 1)
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
		time.Sleep(4 * time.Second)
		nothing("in flight")
		settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: 10 * time.Second})
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
		settle(t, b, take(), transport.Verdict{Kind: transport.Retry, Delay: 10 * time.Second})
		is("the last retry failed", counts{dead: 1})

		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		d = take()
		assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		is("consumed", counts{commit: 1, dead: 1})
		time.Sleep(24 * time.Hour)
		nothing("a day later")
		is("a day later", counts{commit: 1, dead: 1})
		_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		assert.That(t, errors.Is(err, tidegate.ErrInvalidHandle), "a message that is consumed fails with %v", err)
	})
}

// With all operations of RocketMQ's simple consumers, their messages never wait.
//
// RocketMQ: consumption retry: "This state is exclusive to push consumers"
func TestStatesOfASimpleConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 3})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 10 * time.Second}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		pass := func(seconds int, want counts) {
			t.Helper()
			for range seconds {
				assert.MustEqual(t, "countsOf(t, b, \"g\")", countsOf(t, b, "g"), want)
				time.Sleep(time.Second)
			}
		}
		receive(t, b, r)
		pass(10, counts{inflight: 1})
		pass(10, counts{ready: 1})
		d := receive(t, b, r)[0]
		pass(5, counts{inflight: 1})
		handle := assert.Value(b.Extend(t.Context(), d, 20*time.Second, false))(t)
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
// RocketMQ: consumption retry: "It is configured in the InvisibleDuration parameter by the consumer
// when the consumer calls the API"
// RocketMQ: consumption retry: "if the InvisibleDuration value is 30 ms and a consumption failure
// is returned 10 ms after the processing starts, the time to the next retry is 20 ms"
// RocketMQ: consumption retry: "If no consumption result is returned within 30 ms, a timeout error
// occurs and a retry is triggered. Then, the retry interval is 0 ms"
// RocketMQ: consumption retry: "Specified in the InvisibleDuration parameter in the API"
// RocketMQ: consumption retry: "The consumption retry interval is therefore controlled by the
// InvisibleDuration value"
// RocketMQ: consumption retry: "Simple consumers need only to wait for a message to be retried"
func TestSimpleConsumersIntervalIsFixed(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 30 * time.Millisecond, Wait: time.Hour}
		start := time.Now()
		for attempt := range 17 {
			ds := receive(t, b, r)
			if len(ds) != 1 || ds[0].Attempt != attempt+1 || time.Since(start) != time.Duration(attempt)*30*time.Millisecond {
				t.Fatalf("delivery %d is %+v, after %v", attempt+1, ds, time.Since(start))
			}
			time.Sleep(time.Duration(attempt%4) * 10 * time.Millisecond) // it fails; a simple consumer reports nothing
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
			assert.MustThat(t, err == nil && len(ds) == 1, "%+v, %+v", ds, err)
			start := time.Now()
			for time.Since(start) < want {
				got := countsOf(t, b, "g")
				assert.MustThat(t, got == (counts{inflight: 1}), "after %v: %+v", time.Since(start), got)
				serve(b).Touch("c")
				time.Sleep(30 * time.Second)
			}
			got := countsOf(t, b, "g")
			assert.That(t, got == (counts{waiting: 1}), "after %v: %+v", want, got)
			assert.Is(t, "acknowledged with", b.Ack(t.Context(), ds)[0], tidegate.ErrInvalidHandle)
		})
	}
}

// A snoozed message is redelivered after its time with the same attempt number, any number of
// times. This also holds after a restart, and if the maximum of attempts is lower by then.
func TestSnooze(t *testing.T) {
	for _, push := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
			r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Wait: time.Hour, Push: push}
			receive := func() *tidegate.Delivery {
				t.Helper()
				ds, err := b.Receive(t.Context(), r)
				assert.MustThat(t, err == nil && len(ds) == 1, "%+v, %+v", ds, err)
				return ds[0]
			}
			settle(t, b, receive(), transport.Verdict{Kind: transport.Retry})
			d := receive() // the last attempt
			for i := range 10 {
				dur := time.Duration(i*i) * 7 * time.Second
				asked := time.Now()
				settle(t, b, d, transport.Verdict{Kind: transport.Snooze, Delay: dur})
				for name, err := range map[string]error{
					"Ack": b.Ack(t.Context(), []*tidegate.Delivery{d})[0], "Snooze": second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze})),
					"DeadLetter": second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})),
				} {
					assert.That(t, errors.Is(err, tidegate.ErrInvalidHandle), "%s of a delivery that was snoozed: %v", name, err)
				}
				switch i {
				case 4:
					b = reopen(t, b, fs)
				case 6:
					putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
				}
				if d = receive(); d.ID != "m" || d.Attempt != 2 || time.Since(asked) != dur {
					t.Fatalf("%s, attempt %d, came after %v, want attempt 2 after %v", d.ID, d.Attempt, time.Since(asked), dur)
				}
			}
			assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
			if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog.Messages != 0 || g.Topics[0].DeadLetters != 0 {
				t.Errorf("the group has %+v, %v", g.Topics, err)
			}
		})
	}
}

// bubble runs a test in a bubble, beside others.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

// subtest runs a subtest in a bubble.
func subtest(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// inMemory runs a test in a bubble with a broker in memory, beside others.
func inMemory(t *testing.T, f func(*testing.T, *broker.Broker)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, open(t, broker.Options{})) })
}

// onDisk runs a test in a bubble with a broker on a file system in memory, beside others.
func onDisk(t *testing.T, f func(*testing.T, *broker.Broker, *vfs.MemFS)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		f(t, open(t, broker.Options{Dir: "data"}.On(fs)), fs)
	})
}

// open returns a broker in memory that takes any invisible duration.
func open(tb testing.TB, o broker.Options) *broker.Broker {
	tb.Helper()
	if o.MinInvisibleDuration == 0 {
		o.MinInvisibleDuration = 1
	}
	b := assert.Value(broker.Open(o))(tb)
	tb.Cleanup(func() {
		assert.NoError(tb, b.Close(), "closing the broker")
	})
	return b
}

func putTopic(tb testing.TB, b *broker.Broker, name string, c settings.Topic) {
	tb.Helper()
	assert.Must(tb, assert.Err(b.PutTopic(tb.Context(), name, c)))
}

func putGroup(tb testing.TB, b *broker.Broker, name string, c settings.Group) {
	tb.Helper()
	assert.Must(tb, assert.Err(b.PutGroup(tb.Context(), name, c)))
}

func send(tb testing.TB, b *broker.Broker, msgs ...*tidegate.Message) []transport.SendResult {
	tb.Helper()
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = tidegate.NewMessageID()
		}
	}
	return b.Send(tb.Context(), msgs)
}

func mustSend(tb testing.TB, b *broker.Broker, msgs ...*tidegate.Message) {
	tb.Helper()
	for _, r := range send(tb, b, msgs...) {
		assert.Must(tb, r.Err)
	}
}

// settle settles a delivery, and ends the test if the broker rejects that.
func settle(tb testing.TB, b *broker.Broker, d *tidegate.Delivery, v transport.Verdict) {
	tb.Helper()
	assert.Must(tb, assert.Err(b.Settle(tb.Context(), d, v)))
}

func receive(tb testing.TB, b *broker.Broker, r transport.ReceiveRequest) []*tidegate.Delivery {
	tb.Helper()
	if r.Queue == 0 {
		r.Queue = transport.AnyQueue
	}
	if r.InvisibleDuration == 0 {
		r.InvisibleDuration = 30 * time.Second
	}
	ds := assert.Value(b.Receive(tb.Context(), r))(tb)
	return ds
}

// receiveAll reads a topic from its beginning, as a group of its own.
func receiveAll(t *testing.T, b *broker.Broker, topic string) (out []*tidegate.Delivery) {
	reader := fmt.Sprintf("reader%d", rand.Uint64())
	defer func() { _ = b.DeleteGroup(t.Context(), reader) }()
	_, longest := serve(b).InvisibleBounds()
	for {
		ds := receiveLite(t, b, transport.ReceiveRequest{Group: reader, Topic: topic, Max: 32, InvisibleDuration: min(time.Hour, longest)})
		if len(ds) == 0 {
			return out
		}
		if ds[0].LiteTopic != "" { // the next ones wait for them
			b.Ack(t.Context(), ds)
		}
		out = append(out, ds...)
	}
}

// By default 16 retries, then the dead letter.
// RocketMQ: consumption retry: "If the message fails to be consumed even after a specified number
// of retries, the broker sends the message to the dead-letter queue"
// RocketMQ: consumption retry: "If a message fails to be consumed, Apache RocketMQ redelivers the
// message based on a consumption retry policy"
// RocketMQ: consumption retry: "the Apache RocketMQ broker resends a message when the message fails
// to be consumed"
func TestWholeLadder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x"), ID: "m1", Properties: map[string]string{"k": "v"}})
		start := time.Now()
		ladder := backoff.RetryLadder()
		due := start
		for attempt := 1; attempt <= 17; attempt++ {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Push: true, Wait: 3 * time.Hour})
			assert.MustThat(t, len(ds) == 1, "attempt %d: %d deliveries", attempt, len(ds))
			now := time.Now()
			assert.MustThat(t, now.Equal(due), "attempt %d came at %v, due %v", attempt, now.Sub(start), due.Sub(start))
			assert.MustEqual(t, "attempt is", ds[0].Attempt, attempt)
			settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: ladder.Delay(attempt - 1)})
			due = time.Now().Add(ladder.Delay(attempt - 1))
		}
		assert.Equal(t, "the ladder took", time.Since(start).Round(time.Minute), 4*time.Hour+46*time.Minute)
		ds := receive(t, b, transport.ReceiveRequest{Group: "ops", Topic: "%DLQ%g"})
		assert.MustEqual(t, "dead letters at once after the last failure", len(ds), 1)
		dl, ok := ds[0].DeadLetter()
		want := tidegate.DeadLetter{Topic: "orders", MessageID: "m1", Queue: dl.Queue, Offset: 0, Group: "g", Attempts: 17, Reason: dl.Reason}
		assert.That(t, ok && dl == want, "dead letter is %+v, %v; want %+v", dl, ok, want)
		if ds[0].Properties["k"] != "v" || string(ds[0].Body) != "x" || ds[0].ID != "m1" {
			t.Errorf("dead letter lost something: %+v", ds[0])
		}
		if got := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Wait: 5 * time.Hour}); len(got) != 0 {
			t.Errorf("a dead letter was delivered again: %+v", got[0])
		}
	})
}
