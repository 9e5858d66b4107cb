package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

func coldLimit(p *Pressure) throttle.ColdLimit {
	l := throttle.ColdLimit{PerSecond: p.MaxColdReads, Distance: p.ColdDistance}
	if l.Distance == 0 {
		l.Distance = DefaultColdDistance
	}
	return l
}

// behind is how many bytes of bodies the group has not read yet.
func (s *subscription) behind() int64 { return s.backlog().Bytes - s.leasedBytes.Load() }

// countCold counts what was read from the store, if that was far from the end.
func (s *subscription) countCold(ms []store.Message) {
	limit := coldLimit(s.broker.pressure.limits.Load())
	if limit.PerSecond <= 0 || !limit.Far(s.behind()) {
		return
	}
	var n int64
	for i := range ms {
		n += int64(len(ms[i].Body))
	}
	s.cold.Add(int64(len(ms)), n, time.Now())
}

// throttleCold returns the cold reads of a topic as a throttle if they refuse sends. A
// limit that was taken away while they did is forgotten.
func (b *Broker) throttleCold(t *topic, subs []*subscription, now time.Time) *Throttle {
	limit := coldLimit(b.pressure.limits.Load())
	if limit.PerSecond <= 0 && !t.coldOn.Load() {
		return nil
	}
	if s := t.coldReads(limit, subs, now); s.On {
		th := t.coldThrottle(s)
		return &th
	}
	return nil
}

// coldReads returns the state of the limit of cold reads.
func (t *topic) coldReads(limit throttle.ColdLimit, subs []*subscription, now time.Time) throttle.State {
	var reads throttle.ColdReads
	for _, s := range subs {
		if behind := s.behind(); limit.Far(behind) {
			_, rate := s.cold.Rate(now)
			reads.Add(limit, behind, rate)
		}
	}
	t.gatesMu.Lock()
	defer t.gatesMu.Unlock()
	s := t.cold.Update(limit, reads, now)
	t.coldOn.Store(s.On)
	return s
}

func (t *topic) coldThrottle(s throttle.State) Throttle {
	return Throttle{Limit: limitColdReads, Subject: t.name, Unit: unitBytesPerSecond}.at(s)
}
