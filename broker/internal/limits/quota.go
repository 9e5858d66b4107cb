package limits

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
)

// quotaIdle is the minimum time for which the use of a client's quota is remembered.
const quotaIdle = time.Minute

// A quota is the quota of each client, in use.
type quota struct {
	settings.Quota
	limiters *ratelimit.Keyed[string] // by client; nil without a quota
}

func newQuota(q settings.Quota) (*quota, error) {
	if q == (settings.Quota{}) {
		return &quota{}, nil
	}
	limiters, err := ratelimit.NewKeyed[string](rate.Limit(q.MessagesPerSecond), burst(q), quotaIdle)
	if err != nil {
		return nil, err
	}
	return &quota{q, limiters}, nil
}

func burst(q settings.Quota) int { return throttle.Burst(q.MessagesPerSecond, q.Burst) }

// WithinQuota takes one message from the quota of a client, or returns the error of the rejected
// send. A message that another limit rejects later counts in the quota too.
func (l *Limits) WithinQuota(client string) error {
	q := l.quota.Load()
	if q.limiters == nil || client == "" || q.limiters.AllowN(client, 1) {
		return nil
	}
	wait, _ := q.limiters.DelayN(client, 1)
	wait = throttle.Bound(wait)
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("%d TOO_MANY_REQUESTS: client %q sends more than its quota of %g messages a second (burst %d); retry in %v",
			protocol.ReplyTooManyRequests, client, q.MessagesPerSecond, burst(q.Quota), wait),
	}
}
