package limits

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// CountCold counts messages that a group has read from the store, if the group is far behind and
// such reads have a limit.
func (l *Limits) CountCold(c *topic.Consumption, ms []store.Message) {
	c.CountCold(ms, coldLimit(l.storage.limits.Load()))
}

func coldLimit(p *settings.Pressure) throttle.ColdLimit {
	l := throttle.ColdLimit{PerSecond: p.MaxColdReads, Distance: p.ColdDistance}
	if l.Distance == 0 {
		l.Distance = settings.DefaultColdDistance
	}
	return l
}

// checkCold returns the throttle of cold reads if they reject sends to the topic, or nil. If the
// limit was removed while it rejected sends, checkCold ends the throttle.
func (l *Limits) checkCold(t *topic.Topic, subs []topic.Subscription, now time.Time) *status.Throttle {
	limit := coldLimit(l.storage.limits.Load())
	if limit.PerSecond <= 0 && !t.Throttling.ColdOn.Load() {
		return nil
	}
	if s := updateCold(t, limit, subs, now); s.On {
		th := at(coldThrottle(t), s)
		return &th
	}
	return nil
}

// updateCold compares the cold reads of all groups with their limit.
func updateCold(t *topic.Topic, limit throttle.ColdLimit, subs []topic.Subscription, now time.Time) throttle.State {
	var reads throttle.ColdReads
	for _, s := range subs {
		c := s.Consumed()
		if behind := c.Behind(); limit.Far(behind) {
			_, rate := c.Cold.Rate(now)
			reads.Add(limit, behind, rate)
		}
	}
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	s := t.Throttling.Cold.Update(limit, reads, now)
	t.Throttling.ColdOn.Store(s.On)
	return s
}

func coldThrottle(t *topic.Topic) status.Throttle {
	return status.Throttle{Limit: ColdReads, Subject: t.Name(), Unit: unitBytesPerSecond}
}
