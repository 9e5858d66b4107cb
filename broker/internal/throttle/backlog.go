package throttle

import "time"

// A Measure is how a backlog is measured.
type Measure int

// The measures.
const (
	ByMessages Measure = iota
	ByBytes
	ByAge // of the oldest message, in milliseconds
	Measures
)

// An Amount is a backlog, or a limit of one, in each measure. As a limit, 0 is none.
type Amount [Measures]int64

// A Backlog keeps which limits of one backlog refuse sends, and shares the room
// that they leave when they end.
type Backlog struct {
	gates [Measures]gate

	// The room that the end of a limit left is shared: which one, and by whom.
	sharing bool
	ended   Measure
	fair    fairness
}

// Update compares a backlog with its limits, and returns the first one that
// refuses sends, if any does.
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

// State returns how the limit of one measure was at the last Update. It cannot tell RetryAfter.
func (b *Backlog) State(m Measure, value, marks Amount) State {
	return b.gates[m].state(State{Value: value[m], Mark: marks[m], Resume: resumeMark(marks[m])})
}

// Draining is how fast a backlog falls, in each measure: messages and bytes a
// second, and seconds of age a second. What is 0, or less, does not fall.
type Draining struct{ Messages, Bytes, Age float64 }

// Until estimates how long it takes until a backlog is down to resume in a
// measure; 0 if it does not fall and nothing can be said.
func (d Draining) Until(m Measure, backlog Amount, resume int64) time.Duration {
	switch m {
	case ByMessages:
		return pushBack(backlog[m]-resume, d.Messages)
	case ByBytes:
		return pushBack(backlog[m]-resume, d.Bytes)
	}
	// The age falls as consumers come to newer messages, and is none when they
	// have come to the end.
	all := pushBack(backlog[ByMessages], d.Messages)
	falling := pushBack(backlog[ByAge]-resume, d.Age*1000)
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

// UntilAll estimates how long it takes until a topic is down to resume in a measure: the last group
// that is above it ends the throttle. waiting, which is not drained, counts too. 0 if nothing can
// be said.
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
