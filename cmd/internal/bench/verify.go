package bench

import "sync"

// A Verifier checks that each accepted message is delivered, once and in the order of its message
// group. Several goroutines may use it.
type Verifier struct {
	mu        sync.Mutex
	accepted  numbers
	delivered numbers
	both      int64 // accepted and delivered
	twice     int64
	disorder  int64
	last      map[string]int64 // by message group
}

// NewVerifier returns a Verifier of an empty run.
func NewVerifier() *Verifier { return &Verifier{last: map[string]int64{}} }

// numbers is a set of numbers from 0 on, with a bit for each.
type numbers struct {
	bits  []uint64
	count int64
}

// add adds a number. It reports whether the number was new.
func (s *numbers) add(n int64) bool {
	word, bit := int(n/64), uint64(1)<<(n%64)
	for len(s.bits) <= word {
		s.bits = append(s.bits, make([]uint64, word-len(s.bits)+1)...)
	}
	if s.bits[word]&bit != 0 {
		return false
	}
	s.bits[word] |= bit
	s.count++
	return true
}

func (s *numbers) has(n int64) bool {
	return int(n/64) < len(s.bits) && s.bits[n/64]&(1<<(n%64)) != 0
}

// Accept notes that the message with a number of the run was accepted.
func (v *Verifier) Accept(number int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.accepted.add(number) && v.delivered.has(number) {
		v.both++
	}
}

// Deliver checks a delivery of the message with a number of the run, and reports whether it is the
// first of that message. Messages without a group have no order.
func (v *Verifier) Deliver(number int64, group string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.delivered.add(number) {
		v.twice++
		return false
	}
	if v.accepted.has(number) {
		v.both++
	}
	if group != "" {
		if last, ok := v.last[group]; ok && number < last {
			v.disorder++
		}
		v.last[group] = max(v.last[group], number)
	}
	return true
}

// A Truth is the result of a verification.
type Truth struct {
	Accepted   int64 `json:"accepted"`
	Delivered  int64 `json:"delivered"` // different messages, also those whose acceptance was not reported
	Lost       int64 `json:"lost"`      // accepted and not delivered
	Twice      int64 `json:"twice"`
	OutOfOrder int64 `json:"out_of_order"`
}

// Complete reports whether each accepted message was delivered.
func (v *Verifier) Complete() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.both == v.accepted.count
}

// Truth returns the counts.
func (v *Verifier) Truth() Truth {
	v.mu.Lock()
	defer v.mu.Unlock()
	return Truth{v.accepted.count, v.delivered.count, v.accepted.count - v.both, v.twice, v.disorder}
}
