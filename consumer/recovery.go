package consumer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/failure"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxUnanswered is the longest wait after a receive to which no server responded.
	maxUnanswered = 5 * time.Second

	// minUnanswered is the shortest one, although a server responds again.
	minUnanswered = time.Second
)

// receiveWait returns the wait after failures+1 failed receives, the last of them with err.
func receiveWait(p backoff.Policy, failures int, err error) time.Duration {
	wait := max(p.Delay(failures), failure.PushBack(err))
	if failure.Unanswered(err) {
		wait = min(wait, maxUnanswered)
	}
	return wait
}

// awaitRecovery waits before a receive is repeated that failed with err. If no server responded to
// the receive, the wait ends early when one responds to a ping. It returns an error if ctx ends
// first.
func awaitRecovery(ctx context.Context, t transport.Receiver, wait time.Duration, err error) error {
	pinger, ok := t.(transport.Pinger)
	if !ok || !failure.Unanswered(err) || wait <= minUnanswered {
		return backoff.Sleep(ctx, wait)
	}
	end := time.Now().Add(wait)
	if err := backoff.Sleep(ctx, minUnanswered); err != nil {
		return err
	}
	pinging, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if pinger.Ping(pinging) == nil {
		return nil
	}
	return backoff.Sleep(ctx, time.Until(end))
}
