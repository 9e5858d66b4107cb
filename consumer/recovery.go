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

// A recovery waits for the end of one outage. Replace it after a success.
type recovery struct {
	// pinged is true after a ping succeeded. If another receive fails after that, pings do not show
	// the state of the server that fails: it may be one of several behind the transport.
	pinged bool
}

// await waits before a receive is repeated that failed with err. If no server responded to the
// receive, the wait ends early when one responds to a ping, but only once in an outage. It returns
// an error if ctx ends first.
func (r *recovery) await(ctx context.Context, t transport.Receiver, wait time.Duration, err error) error {
	pinger, ok := t.(transport.Pinger)
	if !ok || r.pinged || !failure.Unanswered(err) || wait <= minUnanswered {
		return backoff.Sleep(ctx, wait)
	}
	end := time.Now().Add(wait)
	if err := backoff.Sleep(ctx, minUnanswered); err != nil {
		return err
	}
	pinging, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if r.pinged = pinger.Ping(pinging) == nil; r.pinged {
		return nil
	}
	return backoff.Sleep(ctx, time.Until(end))
}
