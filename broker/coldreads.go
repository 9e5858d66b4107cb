package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

func coldLimit(p *Pressure) throttle.ColdLimit {
	l := throttle.ColdLimit{PerSecond: p.MaxColdReads, Distance: p.ColdDistance}
	if l.Distance == 0 {
		l.Distance = DefaultColdDistance
	}
	return l
}

func (s *subscription) countCold(ms []store.Message) {
	s.CountCold(ms, coldLimit(s.broker.pressure.limits.Load()))
}

// throttleCold returns the cold reads of a topic as a throttle if they refuse sends. A
// limit that was taken away while they did is forgotten.
func (b *Broker) throttleCold(t *topic.Topic, subs []topic.Subscription, now time.Time) *Throttle {
	limit := coldLimit(b.pressure.limits.Load())
	if limit.PerSecond <= 0 && !t.Throttling.ColdOn.Load() {
		return nil
	}
	if s := coldReads(t, limit, subs, now); s.On {
		th := coldThrottle(t, s)
		return &th
	}
	return nil
}

// coldReads returns the state of the limit of cold reads.
func coldReads(t *topic.Topic, limit throttle.ColdLimit, subs []topic.Subscription, now time.Time) throttle.State {
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

func coldThrottle(t *topic.Topic, s throttle.State) Throttle {
	return Throttle{Limit: limitColdReads, Subject: t.Name(), Unit: unitBytesPerSecond}.at(s)
}
