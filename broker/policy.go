package broker

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A RetryPolicy is what a client of a group is told about redelivery.
type RetryPolicy struct {
	MaxAttempts int           // deliveries of one message; -1 for ever
	Ladder      backoff.Steps // the interval after the first failure, the second, ...; the last one repeats
}

// RetryInterval returns the interval, without chance, after which a message
// comes again whose delivery d failed: that after attempt d.Attempt or, if that is 0, after
// the one that the handle names. 40013 for a handle that is none, and,
// without an attempt, for one that is not valid any more.
func (b *Broker) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
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

// RetryPolicy returns what holds for the group, whose settings are c, in the
// topics: the most deliveries that one of them allows, and the ladder if they
// agree on it, else the group's own. Topics that do not exist, and none at
// all, have the group's. Whatever a client makes of it, the broker decides.
func (b *Broker) RetryPolicy(c GroupConfig, topics ...string) RetryPolicy {
	c = c.WithDefaults()
	own := topic.Policy{Group: &c, Address: &topic.AddressPolicy{}}
	out := RetryPolicy{own.MaxAttempts(), own.Ladder()}
	seen := 0
	for _, name := range topics {
		p := own
		if t := b.catalog.FindTopic(name); t != nil {
			p.Address = t.Address()
		}
		most, ladder := p.MaxAttempts(), p.Ladder()
		if seen++; seen == 1 {
			out = RetryPolicy{most, ladder}
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
