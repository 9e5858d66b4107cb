package throttle

import "time"

// A Measure is one of the ways to measure a backlog.
type Measure int

// The measures.
const (
	ByMessages Measure = iota
	ByBytes
	ByAge // age of the oldest message, in milliseconds
	Measures
)

// An Amount is the size of a backlog, or a limit for it, in each measure. As a limit, 0 means no
// limit.
type Amount [Measures]int64

// A Backlog keeps which limits of one backlog reject sends. After a limit has ended, it shares the
// room below the limit among the clients. The zero value rejects nothing.
type Backlog struct {
	gates [Measures]gate

	// While sharing is set, the clients in fair share the room below the limit that has ended.
	sharing bool
	ended   Measure
	fair    fairness
}

// Update compares a backlog with its limits. It returns the first limit that rejects sends, or
// false if none does.
func (b *Backlog) Update(value, marks Amount, now time.Time) (Measure, bool) {
	holds, ended := Measures, Measures
	for i := range b.gates {
		m, g := Measure(i), &b.gates[i]
		if g.update(value[m], marks[m], now) {
			holds = min(holds, m)
		} else if g.resuming {
			ended = min(ended, m)
		}
	}
	if holds == Measures && ended == Measures {
		b.fair.clients = nil
	}
	b.sharing, b.ended = holds == Measures && ended != Measures, ended
	return holds, holds != Measures
}

// State returns the state of one limit at the last Update, without RetryAfter.
func (b *Backlog) State(m Measure, value, marks Amount) State {
	return b.gates[m].state(State{Value: value[m], Mark: marks[m], Resume: resumeMark(marks[m])})
}

// Expect estimates how long a limit that rejects sends continues to do so. drain is the estimate by
// the drain rate of the last seconds, see Draining.Until. value is that of the last Update.
func (b *Backlog) Expect(m Measure, value, marks Amount, drain time.Duration, now time.Time) Range {
	return b.gates[m].expect(value[m], resumeMark(marks[m]), drain, now)
}

// Draining is how fast a backlog falls: messages and bytes per second, and seconds of age per
// second. In a measure that is 0 or negative, the backlog does not fall.
type Draining struct{ Messages, Bytes, Age float64 }

// Until estimates how long it takes until a backlog has fallen to resume in a measure. It returns 0
// if the backlog does not fall, so that there is no estimate.
func (d Draining) Until(m Measure, backlog Amount, resume int64) time.Duration {
	switch m {
	case ByMessages:
		return drainTime(backlog[m]-resume, d.Messages)
	case ByBytes:
		return drainTime(backlog[m]-resume, d.Bytes)
	}
	// The age falls as consumers proceed to newer messages. It is 0 once the backlog is empty.
	all := drainTime(backlog[ByMessages], d.Messages)
	falling := drainTime(backlog[ByAge]-resume, d.Age*1000)
	if all == 0 || falling == 0 {
		return max(all, falling)
	}
	return min(all, falling)
}

// A Consumer is one of the groups that drain a topic.
type Consumer struct {
	Backlog Amount
	Drain   Draining
}

// UntilAll estimates how long it takes until the backlogs of all groups of a topic have fallen to
// resume in a measure. The slowest group above resume determines the result. waiting is the part
// that no group can drain yet, for example delayed messages; it counts in addition to the backlog
// of each group. UntilAll returns 0 if there is no estimate.
func UntilAll(m Measure, waiting Amount, groups []Consumer, resume int64) (longest time.Duration) {
	if resume -= waiting[m]; resume < 0 {
		return 0
	}
	for _, g := range groups {
		if g.Backlog[m] <= resume {
			continue
		}
		d := g.Drain.Until(m, g.Backlog, resume)
		if d == 0 {
			return 0
		}
		longest = max(longest, d)
	}
	return longest
}
