package consumer_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/mock/gomock"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/mocks"
	"github.com/tidegate/tidegate/transport"
)

var sub = consumer.Subscription{Group: "billing", Topic: "orders", Filter: tidegate.Filter{Expression: "a||b"}}

func newSimple(t *testing.T, o consumer.SimpleOptions) (*consumer.Simple, *mocks.MockTransport) {
	t.Helper()
	m := mocks.NewMockTransport(gomock.NewController(t))
	m.EXPECT().Capabilities(gomock.Any()).AnyTimes()
	s := assert.Value(consumer.NewSimple(m, sub, o))(t)
	return s, m
}

func deliveries(ids ...string) []*tidegate.Delivery {
	var ds []*tidegate.Delivery
	for _, id := range ids {
		ds = append(ds, &tidegate.Delivery{Message: tidegate.Message{ID: id}, Handle: "handle of " + id, Attempt: 1})
	}
	return ds
}

func TestSimpleReceiveAndAck(t *testing.T) {
	s, m := newSimple(t, consumer.SimpleOptions{InvisibleDuration: time.Minute})
	want := deliveries("1", "2")
	m.EXPECT().Receive(gomock.Any(), transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Filter: sub.Filter, Max: 7,
		InvisibleDuration: time.Minute, Wait: 20 * time.Second,
	}).Return(want, nil)
	got, err := s.Receive(t.Context(), 7)
	assert.MustThat(t, err == nil && reflect.DeepEqual(got, want), "got %v, %v", got, err)
	stale := &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
	m.EXPECT().Ack(gomock.Any(), got[:1]).Return([]error{nil})
	m.EXPECT().Ack(gomock.Any(), got[1:]).Return([]error{stale})
	m.EXPECT().Settle(gomock.Any(), got[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "because"}).Return(transport.RetryResult{}, nil)
	assert.NoError(t, s.Ack(t.Context(), got[0]))
	assert.Is(t, "err", s.Ack(t.Context(), got[1]), tidegate.ErrInvalidHandle)
	assert.NoError(t, assert.Err(s.Settle(t.Context(), got[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "because"})))
	for _, n := range []int{0, -1, 33} {
		_, err := s.Receive(t.Context(), n)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "Receive of %d: %v", n, err)
	}
	m.EXPECT().Ack(gomock.Any(), gomock.Any()).Return(nil) // breaks the contract
	assert.That(t, s.Ack(t.Context(), got[0]) != nil, "an acknowledgement without a result is a success")
}

// The handle is replaced by a success only.
func TestSimpleChangeInvisibleDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newSimple(t, consumer.SimpleOptions{})
		d := deliveries("1")[0]
		before := *d
		m.EXPECT().Extend(gomock.Any(), d, time.Minute, true).Return("a handle that is none", errors.New("lost"))
		err := s.ChangeInvisibleDuration(t.Context(), d, time.Minute)
		assert.That(t, err != nil && reflect.DeepEqual(*d, before), "error %v, delivery %+v", err, d)
		m.EXPECT().Extend(gomock.Any(), d, time.Minute, true).Return("new", nil)
		if err := s.ChangeInvisibleDuration(t.Context(), d, time.Minute); err != nil || d.Handle != "new" ||
			!d.InvisibleUntil.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("error %v, delivery %+v", err, d)
		}
		for _, dur := range []time.Duration{-1, 13 * time.Hour} {
			err := s.ChangeInvisibleDuration(t.Context(), d, dur)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v: %v", dur, err)
		}
	})
}

// RocketMQ: consumption retry: "If the message fails to be pulled due to throttling or other
// reasons, you must re-initiate the request to obtain the message"
func TestSimpleAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newSimple(t, consumer.SimpleOptions{BatchSize: 2})
		busy := &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Minute}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gomock.InOrder(
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(deliveries("1", "2"), nil),
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(nil, nil),
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(nil, busy),
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(deliveries("3"), nil),
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).DoAndReturn(
				func(ctx context.Context, _ transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
					cancel()
					return nil, context.Cause(ctx)
				}),
		)
		begin := time.Now()
		var got []string
		for d, err := range s.All(ctx) {
			if err != nil {
				got = append(got, "error")
				continue
			}
			got = append(got, d.ID)
		}
		assert.That(t, reflect.DeepEqual(got, []string{"1", "2", "error", "3"}), "got %q", got)
		d := time.Since(begin)
		assert.That(t, d >= time.Minute && d <= time.Minute+time.Second, "took %v, want the minute that the server asked for", d)
	})
}

func TestSimpleAllEnds(t *testing.T) {
	for _, last := range []error{&tidegate.Error{Code: protocol.CodeIllegalFilterExpression}, tidegate.ErrClosed} {
		s, m := newSimple(t, consumer.SimpleOptions{})
		m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(nil, last)
		n := 0
		for _, err := range s.All(t.Context()) {
			if n++; !errors.Is(err, last) {
				t.Error(err)
			}
		}
		assert.That(t, n == 1, "%d errors, want one", n)
	}
	s, m := newSimple(t, consumer.SimpleOptions{BatchSize: 3})
	m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(deliveries("1", "2", "3"), nil)
	for range s.All(t.Context()) {
		break
	}
}

func TestNewSimpleReportsAllFaults(t *testing.T) {
	_, err := consumer.NewSimple(nil, consumer.Subscription{Group: " ", Topic: "a b", Retry: backoff.Steps{1}},
		consumer.SimpleOptions{InvisibleDuration: -1, LongPolling: -1, BatchSize: 33})
	assert.MustThat(t, err != nil, "no error")
	for _, want := range []string{"transport", "Subscription.Group", "Subscription.Topic", "Subscription.Retry", "InvisibleDuration", "LongPolling", "BatchSize", "33"} {
		assert.That(t, strings.Contains(err.Error(), want), "%q lacks %q", err, want)
	}
}

// A real RocketMQ makes a second dead letter of a repeated request: after a lost response the
// consumer makes no second attempt. It makes one on a server that announces IdempotentDeadLetter.
func TestDeadLetterIsRepeatedOnlyWhereSafe(t *testing.T) {
	for _, caps := range []transport.Capabilities{{}, {IdempotentDeadLetter: true}} {
		synctest.Test(t, func(t *testing.T) {
			m := mocks.NewMockTransport(gomock.NewController(t))
			m.EXPECT().Capabilities(gomock.Any()).Return(caps).AnyTimes()
			m.EXPECT().ConsumerSettings(gomock.Any(), "billing", "orders").Return(transport.ConsumerSettings{MaxAttempts: 1}, nil).AnyTimes()
			m.EXPECT().Queues(gomock.Any(), "billing", "orders").Return([]int{transport.AnyQueue}, nil).AnyTimes()
			first := m.EXPECT().Receive(gomock.Any(), gomock.Any()).Return(deliveries("1"), nil)
			m.EXPECT().Receive(gomock.Any(), gomock.Any()).After(first.Call).AnyTimes().DoAndReturn(
				func(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
					return nil, backoff.Sleep(ctx, r.Wait)
				})
			lost := m.EXPECT().Settle(gomock.Any(), gomock.Any(), transport.Verdict{Kind: transport.DeadLetter, Reason: "x"}).Return(transport.RetryResult{}, errors.New("the answer was lost"))
			if caps.IdempotentDeadLetter {
				m.EXPECT().Settle(gomock.Any(), gomock.Any(), transport.Verdict{Kind: transport.DeadLetter, Reason: "x"}).After(lost.Call).Return(transport.RetryResult{}, nil)
			}
			var got []consumer.Disposition
			p := assert.Value(consumer.NewPush(m, sub, func(context.Context, *tidegate.Delivery) error { return errors.New("x") },
				consumer.PushOptions{OnDelivery: func(o consumer.Outcome) { got = append(got, o.Disposition) }}))(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			assert.NoError(t, p.Run(ctx))
			want := consumer.Unsettled
			if caps.IdempotentDeadLetter {
				want = consumer.DeadLettered
			}
			assert.That(t, len(got) == 1 && got[0] == want, "%+v: %v, want %v", caps, got, want)
		})
	}
}

// Ack repeats its attempt once if the server returns another handle. Otherwise the lease has ended.
func TestSimpleAckWithAReplacedHandle(t *testing.T) {
	lost := errors.New("lost")
	for _, tt := range []struct {
		name     string
		handle   string // that RepeatChange returns
		err      error
		attempts int
		valid    bool // the second attempt succeeds
	}{
		{"another handle", "new", nil, 2, true},
		{"the same handle", "handle of 1", nil, 1, false},
		{"no handle", "", nil, 1, false},
		{"no response", "", lost, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := mocks.NewMockTransport(gomock.NewController(t))
			m.EXPECT().Capabilities(gomock.Any()).Return(transport.Capabilities{RepeatChange: true}).AnyTimes()
			m.EXPECT().Extend(gomock.Any(), gomock.Any(), 30*time.Second, true).Return(tt.handle, tt.err)
			attempts := 0
			m.EXPECT().Ack(gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(func(_ context.Context, ds []*tidegate.Delivery) []error {
				if attempts++; ds[0].Handle == "new" {
					return []error{nil}
				}
				return []error{&tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}}
			})
			s, err := consumer.NewSimple(m, sub, consumer.SimpleOptions{})
			assert.Must(t, err)
			d := deliveries("1")[0]
			before := *d
			err = s.Ack(t.Context(), d)
			switch {
			case attempts != tt.attempts:
				t.Errorf("%d attempts, want %d", attempts, tt.attempts)
			case tt.valid && (err != nil || d.Handle != "new"):
				t.Errorf("error %v, handle %q", err, d.Handle)
			case !tt.valid && (!errors.Is(err, tidegate.ErrInvalidHandle) || d.Handle != before.Handle || !d.InvisibleUntil.Equal(before.InvisibleUntil)):
				t.Errorf("error %v, delivery %+v; want ErrInvalidHandle, and the delivery unchanged", err, d)
			}
		})
	}
}

// receives calls All with responses in turn and returns the waits between the receives. All ends
// after the last response.
func receives(t *testing.T, responses ...error) (waits []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, m := newSimple(t, consumer.SimpleOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		last := time.Now()
		m.EXPECT().Receive(gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
			func(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
				waits = append(waits, time.Since(last))
				last = time.Now()
				if len(waits) > len(responses) {
					cancel()
					return nil, ctx.Err()
				}
				if err := responses[len(waits)-1]; err != nil {
					return nil, err
				}
				return deliveries("1"), nil
			})
		for d := range s.All(ctx) {
			if d != nil {
				time.Sleep(2 * time.Minute) // the program's work
				last = time.Now()
			}
		}
	})
	return waits
}

// All waits for 1 s after a failed receive, multiplied by 1.6 after each further failure. A success
// ends the series. The waits have a jitter of a fifth.
func TestSimpleAllBackoff(t *testing.T) {
	failed := &tidegate.Error{Code: protocol.CodeInternalError}
	got := receives(t, failed, failed, failed, failed, nil, failed)
	want := []time.Duration{0, time.Second, 1600 * time.Millisecond, 2560 * time.Millisecond, 4096 * time.Millisecond, 0, time.Second}
	assert.MustThat(t, len(got) == len(want), "waits %v, want about %v", got, want)
	for i, w := range want {
		if got[i] < w*8/10 || got[i] > w*12/10 {
			t.Errorf("wait %d is %v, want %v and a jitter of a fifth", i, got[i], w)
		}
	}
}

// All ends when the server has rejected the credentials for a minute. An accepted receive ends that
// minute.
func TestSimpleAllAcceptedBetweenRejections(t *testing.T) {
	rejected := &tidegate.Error{Code: tidegate.CodeUnauthorized}
	assert.Equal(t, "All ended after receives", len(receives(t, rejected, nil, rejected, nil)), 5)
}

// A server that does not wait for messages receives at most ten requests in a second.
func TestSimpleAllFromAServerThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newSimple(t, consumer.SimpleOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n := 0
		m.EXPECT().Receive(gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
			func(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
				if n++; n > 1000 {
					cancel()
				}
				return nil, nil
			})
		for _, err := range s.All(ctx) {
			t.Errorf("All yielded %v", err)
		}
		assert.That(t, n >= 90 && n <= 101, "%d receives in 10 s, want about 100", n)
	})
}
