package main

import (
	"fmt"
	"sync"
	"time"
)

// A ledger has the accepted messages that no consumer has received yet, by ID, and the counts of
// each phase of the program. It has no clock and no I/O. Several goroutines may call its methods.
type ledger struct {
	mu       sync.Mutex // guards the fields below
	missing  map[string]bool
	received map[string]bool // IDs
	newest   map[string]int  // the highest number received, by message group
	accepted int
	phases   []phase       // the last one is the present one
	changed  chan struct{} // has a value after a message was received
}

// A phase has the counts of a part of the run. A send belongs to the phase in which it ended, a
// delivery to the phase in which it arrived.
type phase struct {
	name       string
	began      time.Time
	took       time.Duration // 0 for the present phase
	drain      bool          // nothing is sent in this phase
	accepted   int
	failed     int
	longest    time.Duration // of the sends, also of those that failed
	duplicates int           // deliveries of a message that had been received before
	disorder   int           // first deliveries after that of a later message of the message group
}

func newLedger() *ledger {
	return &ledger{missing: map[string]bool{}, received: map[string]bool{}, newest: map[string]int{}, changed: make(chan struct{}, 1)}
}

// begin ends the present phase, which it returns, and begins another one. The first call returns
// the zero phase. An empty name begins none.
func (l *ledger) begin(name string, drain bool, now time.Time) (ended phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.phases); n > 0 {
		p := &l.phases[n-1]
		p.took = now.Sub(p.began)
		ended = *p
	}
	if name != "" {
		l.phases = append(l.phases, phase{name: name, began: now, drain: drain})
	}
	return ended
}

// sent notes the end of a send: the ID of an accepted message, or an error.
func (l *ledger) sent(id string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.phases[len(l.phases)-1]
	p.longest = max(p.longest, took)
	if err != nil {
		p.failed++
		return
	}
	p.accepted++
	l.accepted++
	if !l.received[id] { // a consumer can be faster than the response to the send
		l.missing[id] = true
	}
}

// arrived notes a delivery. number is the place of the message in its message group; both are zero
// for a message without one.
func (l *ledger) arrived(id, messageGroup string, number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.phases[len(l.phases)-1]
	switch {
	case l.received[id]:
		p.duplicates++
		return
	case messageGroup != "" && number < l.newest[messageGroup]:
		p.disorder++
	case messageGroup != "":
		l.newest[messageGroup] = number
	}
	l.received[id] = true
	delete(l.missing, id)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// lacks returns the number of accepted messages that no consumer has received, and the ID of one of
// them.
func (l *ledger) lacks() (n int, example string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for example = range l.missing {
		break
	}
	return len(l.missing), example
}

// total returns the counts of all phases. took is the time of those with sends. stored is the
// number of messages that were received although their sends failed, provided that no accepted
// message is missing.
func (l *ledger) total() (all phase, stored int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all.name = "in all"
	for _, p := range l.phases {
		if !p.drain {
			all.took += p.took
		}
		all.accepted += p.accepted
		all.failed += p.failed
		all.longest = max(all.longest, p.longest)
		all.duplicates += p.duplicates
		all.disorder += p.disorder
	}
	return all, len(l.received) - l.accepted
}

// heading is the line above the rows of phases.
const heading = "phase                seconds  accepted  sends/s  longest send  failed  duplicates  disorder"

// row returns the line of a phase.
func (p phase) row() string {
	rate := 0.0
	if p.took > 0 {
		rate = float64(p.accepted) / p.took.Seconds()
	}
	return fmt.Sprintf("%-20s %7.1f  %8d  %7.1f  %10.3f s  %6d  %10d  %8d",
		p.name, p.took.Seconds(), p.accepted, rate, p.longest.Seconds(), p.failed, p.duplicates, p.disorder)
}
