package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// coldThrottled decides whether sends to a topic are refused because groups far
// behind read from it: from the limit on, until they are near the end, or read
// much less. Who is behind and reads nothing costs nothing.
func coldThrottled(before bool, rate, limit, behind, distance int64) bool {
	if before {
		return limit > 0 && rate > resumeMark(limit) && behind > resumeMark(distance)
	}
	return limit > 0 && rate >= limit && behind > distance
}

// behind is how many bytes of bodies the group has not read yet.
func (s *subscription) behind() int64 { return s.backlog().Bytes - s.leasedBytes.Load() }

// countCold counts what was read from the store, if that was far from the end.
func (s *subscription) countCold(ms []store.Message) {
	p := s.broker.pressure.limits.Load()
	if p.MaxColdReads <= 0 || s.behind() <= resumeMark(p.coldDistance()) {
		return
	}
	var n int64
	for i := range ms {
		n += int64(len(ms[i].Body))
	}
	s.cold.add(int64(len(ms)), n, time.Now())
}

// throttleCold returns the cold reads of a topic as a throttle if they refuse sends.
func (b *Broker) throttleCold(t *topic, subs []*subscription, now time.Time) *Throttle {
	p := b.pressure.limits.Load()
	if p.MaxColdReads <= 0 {
		return nil
	}
	if th, on := t.coldReads(p, subs, now); on {
		refuses := th // th itself stays off the heap
		return &refuses
	}
	return nil
}

// coldReads returns the state of the limit of cold reads.
func (t *topic) coldReads(p *Pressure, subs []*subscription, now time.Time) (Throttle, bool) {
	near := resumeMark(p.coldDistance())
	th := Throttle{Limit: limitColdReads, Subject: t.name, Unit: unitBytesPerSecond, Mark: p.MaxColdReads, Resume: resumeMark(p.MaxColdReads)}
	var most int64
	for _, s := range subs {
		behind := s.behind()
		if behind <= near {
			continue
		}
		_, rate := s.cold.rate(now)
		th.Value += int64(rate)
		most = max(most, behind)
		if rate > 0 {
			th.RetryAfter = max(th.RetryAfter, Duration(pushBack(behind-near, rate)))
		}
	}
	t.gatesMu.Lock()
	defer t.gatesMu.Unlock()
	t.cold.set(coldThrottled(t.cold.on, th.Value, p.MaxColdReads, most, p.coldDistance()), now)
	if !t.cold.on {
		th.RetryAfter = 0
		return th, false
	}
	th.Since = t.cold.since
	return th, true
}
