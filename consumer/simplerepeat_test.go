package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/mock/gomock"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/mocks"
	"github.com/tidegate/tidegate/transport"
)

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
			if err != nil {
				t.Fatal(err)
			}
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
	if len(got) != len(want) {
		t.Fatalf("waits %v, want about %v", got, want)
	}
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
	if got := receives(t, rejected, nil, rejected, nil); len(got) != 5 {
		t.Errorf("All ended after %d receives, want 5", len(got))
	}
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
		if n < 90 || n > 101 {
			t.Errorf("%d receives in 10 s, want about 100", n)
		}
	})
}
