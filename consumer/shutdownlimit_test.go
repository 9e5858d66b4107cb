package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A silent server does not respond to requests that settle deliveries.
type silentServer struct{ *server }

func (s silentServer) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	<-ctx.Done()
	errs := make([]error, len(ds))
	for i := range errs {
		errs[i] = context.Cause(ctx)
	}
	return errs
}

func (s silentServer) Settle(ctx context.Context, _ *tidegate.Delivery, _ transport.Verdict) (transport.RetryResult, error) {
	<-ctx.Done()
	return transport.RetryResult{}, context.Cause(ctx)
}

func (s silentServer) Extend(ctx context.Context, _ *tidegate.Delivery, _ time.Duration, _ bool) (string, error) {
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// Run ends within ShutdownTimeout if the handlers return when their contexts end, also if more
// settlements wait than there are requests at the same time and no request gets a response. A
// handler that returns later has one second for its settlement.
func TestShutdownTimeoutIsALimit(t *testing.T) {
	for name, tt := range map[string]struct {
		fail    bool          // the handlers return an error
		hurried bool          // the handlers return when their contexts end
		late    time.Duration // later than that
		want    time.Duration // the longest time until Run ends
	}{
		"failures":                  {fail: true, want: 7 * time.Second},
		"successes":                 {want: 7 * time.Second},
		"released by the shutdown":  {fail: true, hurried: true, want: 7 * time.Second},
		"successes at the last":     {hurried: true, want: 7 * time.Second},
		"successes after the limit": {hurried: true, late: 2 * time.Second, want: 6300*time.Millisecond + 3*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := silentServer{newServer(t)}
				s.caps = ours
				s.fill(1000)
				stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
					if tt.hurried {
						<-ctx.Done()
						time.Sleep(tt.late)
					}
					if tt.fail {
						return errors.New("failed")
					}
					return nil
				}, consumer.PushOptions{Concurrency: 200, ShutdownTimeout: 7 * time.Second})
				time.Sleep(time.Second)
				begin := time.Now()
				if err := stop(); err != nil || time.Since(begin) > tt.want {
					t.Errorf("Run: %v after %v, want at most %v", err, time.Since(begin), tt.want)
				}
			})
		})
	}
}
