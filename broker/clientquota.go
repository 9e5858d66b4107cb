package broker

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/ratelimit"
)

// quotaIdle is how long a client's use of its quota is remembered at least.
const quotaIdle = time.Minute

// A Quota bounds a rate of messages. Zero means no bound.
type Quota struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`

	// Burst is the number of messages that a client can send at once after a pause. Default: the
	// messages of one second, at least 1.
	Burst int `json:"burst,omitempty"`
}

func (q Quota) validate(field string) error {
	if !(q.MessagesPerSecond >= 0) || math.IsInf(q.MessagesPerSecond, 0) || q.Burst < 0 || q.MessagesPerSecond == 0 && q.Burst > 0 {
		return fmt.Errorf("%s is %g messages a second with a burst of %d: give a rate above 0 and a burst of 0 or more, or zero for no bound",
			field, q.MessagesPerSecond, q.Burst)
	}
	return nil
}

func (q Quota) burst() int { return throttle.Burst(q.MessagesPerSecond, q.Burst) }

// A clientQuota is a quota in use.
type clientQuota struct {
	Quota
	limiters *ratelimit.Keyed[string] // by client; nil for no bound
}

func newClientQuota(q Quota) (*clientQuota, error) {
	if q == (Quota{}) {
		return &clientQuota{}, nil
	}
	limiters, err := ratelimit.NewKeyed[string](rate.Limit(q.MessagesPerSecond), q.burst(), quotaIdle)
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
			tidegate.ReplyTooManyRequests, client, q.MessagesPerSecond, q.burst(), wait),
	}
}
