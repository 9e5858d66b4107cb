package broker

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/ratelimit"
)

// quotaIdle is how long a client's use of its quota is remembered at least.
const quotaIdle = time.Minute

// A clientQuota is a quota in use.
type clientQuota struct {
	Quota
	limiters *ratelimit.Keyed[string] // by client; nil for no bound
}

func newClientQuota(q Quota) (*clientQuota, error) {
	if q == (Quota{}) {
		return &clientQuota{}, nil
	}
	limiters, err := ratelimit.NewKeyed[string](rate.Limit(q.MessagesPerSecond), throttle.Burst(q.MessagesPerSecond, q.Burst), quotaIdle)
	if err != nil {
		return nil, err
	}
	return &clientQuota{q, limiters}, nil
}

// withinQuota takes one message from a client's quota. A message that is
// refused afterwards, for a backlog, has used it all the same.
func (b *Broker) withinQuota(client string) error {
	q := b.quotas.Load()
	if q.limiters == nil || client == "" || q.limiters.AllowN(client, 1) {
		return nil
	}
	wait, _ := q.limiters.DelayN(client, 1)
	wait = throttle.Bound(wait)
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("%d TOO_MANY_REQUESTS: client %q sends more than its quota of %g messages a second (burst %d); the next one is taken in %v",
			tidegate.ReplyTooManyRequests, client, q.MessagesPerSecond, throttle.Burst(q.MessagesPerSecond, q.Burst), wait),
	}
}
