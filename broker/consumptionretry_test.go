package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ: consumption retry: "if the maximum number of retries is three, the message can be
// delivered four times"
// RocketMQ: consumption retry: "If the message fails to be consumed even after a specified number
// of retries, the broker sends the message to the dead-letter queue"
// RocketMQ: consumption retry: "Maximum retries: the maximum number of times that a message can be
// retried for consumption"
// RocketMQ: consumption retry: "The maximum number of retries for a push consumer is specified in
// the metadata when the consumer group is created"
// RocketMQ: consumption retry: "The maximum number of retries for a simple consumer is specified in
// the metadata when the consumer group is created"
func TestThreeRetriesAreFourDeliveries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, push := range []bool{true, false} {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 1 + 3})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			for attempt := 1; attempt <= 4; attempt++ {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: push, Wait: 5 * time.Hour})
				if len(ds) != 1 || ds[0].Attempt != attempt {
					t.Fatalf("push %v: delivery %d is %+v", push, attempt, ds)
				}
			} // none is settled: they time out
			if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: push, Wait: 5 * time.Hour}); len(ds) != 0 {
				t.Errorf("push %v: a fifth delivery: %+v", push, ds[0])
			}
			if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 {
				t.Errorf("push %v: %d dead letters, want 1", push, len(ds))
			}
		}
	})
}

// RocketMQ: consumption retry: "The interval between two consumptions is the sum of the actual time
// spent on consumption and the retry interval"
// RocketMQ: consumption retry: "Retry interval: the time that elapses from when a consumption
// failure or timeout occurs to when the message is retried"
func TestIntervalIsConsumptionAndRetryInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		first := time.Now()
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true})[0]
		time.Sleep(4 * time.Second) // it is consumed, and fails
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Wait: time.Minute})
		if took := time.Since(first); took != 14*time.Second {
			t.Errorf("%v between two consumptions, want 14s", took)
		}
	})
}

// RocketMQ: consumption retry: "Ordered messages: fixed"
// RocketMQ: consumption retry: "A timeout error occurs or a message stays in a push consumer queue
// for an excessive period of time"
// RocketMQ: consumption retry: "Retry interval: the time that elapses from when a consumption
// failure or timeout occurs to when the message is retried"
func TestTimeoutOfOrderedMessageWaitsFixedInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
		putGroup(t, b, "g", settings.Group{FIFO: true, FIFORetryInterval: settings.Duration(7 * time.Second)})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), MessageGroup: "a"})
		for attempt := 1; attempt <= 5; attempt++ {
			start := time.Now()
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Wait: time.Hour})
			if len(ds) != 1 || ds[0].Attempt != attempt {
				t.Fatalf("delivery %d is %+v", attempt, ds)
			}
			if took := time.Since(start); attempt > 1 && took != 37*time.Second {
				t.Errorf("delivery %d came %v after the one before, want its 30s to consume and 7s", attempt, took)
			}
		}
	})
}

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
func TestSimpleConsumerIsRetriedWhenInvisibleDurationEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, processing := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 30 * time.Millisecond, Wait: time.Second}
			receive(t, b, r)
			time.Sleep(processing) // it fails; a simple consumer reports nothing
			failed := time.Now()
			again := receive(t, b, r)
			if len(again) != 1 || again[0].Attempt != 2 {
				t.Fatalf("delivered again: %+v", again)
			}
			if interval := time.Since(failed); interval != 30*time.Millisecond-processing {
				t.Errorf("failed after %v: the retry interval is %v, want %v", processing, interval, 30*time.Millisecond-processing)
			}
		}
	})
}

// RocketMQ: consumption retry: "that is, the InvisibleDuration value is recalculated from the point
// in time when the API is called"
// RocketMQ: consumption retry: "the change takes effect immediately"
func TestChangeCountsFromTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		for _, dur := range []time.Duration{time.Minute, time.Second} { // longer, and shorter
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 20 * time.Second})[0]
			time.Sleep(15 * time.Second)
			called := time.Now()
			if _, err := b.Extend(t.Context(), d, dur, false); err != nil {
				t.Fatal(err)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
			if !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Errorf("%s: changed with %v, want 40013", name, err)
			}
			if name == "timed out" { // out of the way of the next one
				b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))
			}
		}
	})
}

// RocketMQ: consumption retry: "The maximum consumption interval is specified by a system parameter
// on the broker and cannot be exceeded"
func TestConsumptionIntervalHasAMaximum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxInvisibleDuration: time.Hour})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{Retry: []time.Duration{time.Minute}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, InvisibleDuration: time.Hour + 1}
		if _, err := b.Receive(t.Context(), r); codeOf(err) != tidegate.CodeIllegalInvisibleTime {
			t.Errorf("received with %v, want 40011", err)
		}
		r.InvisibleDuration = time.Hour
		d := receive(t, b, r)[0]
		if _, err := b.Extend(t.Context(), d, time.Hour+1, false); codeOf(err) != tidegate.CodeIllegalInvisibleTime {
			t.Errorf("changed with %v, want 40011", err)
		}
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Hour + 1}); codeOf(err) != tidegate.CodeIllegalInvisibleTime {
			t.Errorf("retried with %v, want 40011", err)
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
				if codeOf(err) != tidegate.CodeIllegalInvisibleTime || !strings.Contains(err.Error(), "1h0m0s") || !strings.Contains(err.Error(), "10m0s are left") {
					t.Errorf("more than the rest: %v; want 40011 with the limit and the rest", err)
				}
			}
			handle, err := b.Extend(t.Context(), d, 10*time.Minute, false)
			if err != nil {
				t.Fatalf("the rest: %v", err)
			}
			time.Sleep(10*time.Minute - 1)
			d.Handle = handle
			if _, err := b.Extend(t.Context(), d, 2, false); codeOf(err) != tidegate.CodeIllegalInvisibleTime {
				t.Errorf("at the end: %v, want 40011", err)
			}
			r.Wait = 2 * time.Minute
			if d = receive(t, b, r)[0]; d.Attempt != 2 || time.Since(start) < time.Hour || time.Since(start) > time.Hour+time.Minute {
				t.Errorf("attempt %d after %v", d.Attempt, time.Since(start))
			}
			time.Sleep(10 * time.Minute) // the next delivery has its own time
			if d.Handle, err = b.Extend(t.Context(), d, 50*time.Minute, false); err != nil {
				t.Errorf("the next delivery: %v", err)
			}
			if _, err := b.Extend(t.Context(), d, 0, false); err != nil {
				t.Errorf("giving it back: %v", err)
			}
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

// A failure of one group does not redeliver the message to another group.
func TestRetriesStayInTheirGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "fails", settings.Group{MaxAttempts: 3})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "consumes", Topic: "t"}))
		for attempt := range 3 {
			d := receive(t, b, transport.ReceiveRequest{Group: "fails", Topic: "t", Push: true, Wait: time.Hour})[0]
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil {
				t.Fatal(err)
			}
			if ds := receive(t, b, transport.ReceiveRequest{Group: "consumes", Topic: "t", Wait: time.Minute}); len(ds) != 0 {
				t.Errorf("after failure %d the other group received %+v", attempt+1, ds[0])
			}
		}
		late := receive(t, b, transport.ReceiveRequest{Group: "new", Topic: "t"})
		if len(late) != 1 || late[0].Attempt != 1 {
			t.Errorf("a new group received %s", fmt.Sprint(late))
		}
	})
}
