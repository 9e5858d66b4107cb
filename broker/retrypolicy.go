package broker

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/settings"
)

// RetryInterval returns the interval, without jitter, between a failure of delivery d and the
// redelivery. It is the interval after attempt d.Attempt or, if that is zero, after the attempt of
// the handle. The error is 40013 for an invalid handle. A handle that has been replaced is an error
// only if d.Attempt is zero.
func (b served) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
	s, h, err := b.locate(d)
	if err != nil {
		return 0, err
	}
	attempt := d.Attempt
	if attempt == 0 {
		if attempt, err = s.Attempt(h); err != nil {
			return 0, err
		}
	}
	return s.Policy().Ladder().Delay(attempt - 1), nil
}

// RetryPolicy returns the policy of a group with the settings c in the given topics: the largest
// maximum of attempts among the topics, and their retry schedule if it is the same in all of them,
// or else that of the group. A topic that does not exist has the policy of the group. Clients only
// show the policy; the broker applies it.
func (b served) RetryPolicy(c settings.Group, topics ...string) serving.RetryPolicy {
	c = c.WithDefaults()
	own := engine.Policy{Group: &c, Address: &engine.AddressPolicy{}}
	out := serving.RetryPolicy{MaxAttempts: own.MaxAttempts(), Ladder: own.Ladder()}
	seen := 0
	for _, name := range topics {
		p := own
		if t := b.catalog.FindTopic(name); t != nil {
			p.Address = t.Address()
		}
		most, ladder := p.MaxAttempts(), p.Ladder()
		if seen++; seen == 1 {
			out = serving.RetryPolicy{MaxAttempts: most, Ladder: ladder}
			continue
		}
		if out.MaxAttempts > 0 && (most < 0 || most > out.MaxAttempts) {
			out.MaxAttempts = most
		}
		if !slices.Equal(ladder, out.Ladder) {
			out.Ladder = own.Ladder()
		}
	}
	return out
}
