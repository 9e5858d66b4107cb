package login

import (
	"maps"
	"sync"
	"time"
)

const (
	// freeFailures is how many logins of an address can fail without a delay.
	freeFailures = 5

	// pause is the least time between two attempts after that.
	pause = time.Second

	// forgetAfter is the time after the last attempt at which the failures of an address are
	// forgotten.
	forgetAfter = 10 * time.Minute

	// maxWait bounds the wait of an attempt. A longer one is rejected.
	maxWait = 10 * time.Second

	maxAddresses = 10_000

	// sweepInterval is how often all addresses are looked at, so that failures from ever new
	// addresses do not cost a walk each.
	sweepInterval = time.Minute
)

// Attempts slow down the logins of an address after some have failed. Goroutines may share the
// value. The zero value is ready for use.
type Attempts struct {
	mu        sync.Mutex
	addresses map[string]*failures // guarded by mu
	swept     time.Time            // guarded by mu: when old ones were removed last
}

// failures are those of one address.
type failures struct {
	count int
	last  time.Time // begin of the last attempt, which may wait
}

// Delay returns how long an attempt of an address has to wait. Attempts at the same time wait for
// one another, so that more connections do not help. ok is false if too many wait already.
func (a *Attempts) Delay(address string, now time.Time) (wait time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.addresses[address]
	if f == nil || f.count < freeFailures || now.Sub(f.last) >= forgetAfter {
		return 0, true
	}
	begin := now.Add(pause)
	if after := f.last.Add(pause); after.After(begin) {
		begin = after
	}
	if wait = begin.Sub(now); wait > maxWait {
		return wait, false
	}
	f.last = begin
	return wait, true
}

// Failed counts a failed attempt.
func (a *Attempts) Failed(address string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.addresses[address]
	if f == nil || now.Sub(f.last) >= forgetAfter {
		a.makeRoom(now)
		f = &failures{}
		a.addresses[address] = f
	}
	f.count++
	if f.last.Before(now) {
		f.last = now
	}
}

// makeRoom removes addresses without recent attempts, and any address at the limit. mu is held.
func (a *Attempts) makeRoom(now time.Time) {
	if a.addresses == nil {
		a.addresses = map[string]*failures{}
	}
	if len(a.addresses) < maxAddresses {
		return
	}
	if now.Sub(a.swept) >= sweepInterval {
		a.swept = now
		maps.DeleteFunc(a.addresses, func(_ string, f *failures) bool { return now.Sub(f.last) >= forgetAfter })
	}
	for address := range a.addresses {
		if len(a.addresses) < maxAddresses {
			return
		}
		delete(a.addresses, address)
	}
}

// Succeeded forgets the failures of an address.
func (a *Attempts) Succeeded(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.addresses, address)
}
