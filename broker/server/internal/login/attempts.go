package login

import (
	"maps"
	"sync"
	"time"
)

const (
	// freeOfName is how many logins of an address with one name can fail without a delay, and
	// nameInterval the least time between two of them after that.
	freeOfName   = 5
	nameInterval = time.Second

	// freeOfAddress and addressInterval are those of all names of an address that has failed with
	// them.
	freeOfAddress   = 20
	addressInterval = time.Second / 2

	// forgetAfter is the time after the last attempt at which failures are forgotten.
	forgetAfter = 10 * time.Minute

	// maxWait bounds the wait of an attempt. A longer one is rejected.
	maxWait = 10 * time.Second

	// maxEntries bounds the names of all addresses, and the addresses.
	maxEntries = 10_000

	// sweepInterval is how often all entries are looked at, so that failures of ever new addresses
	// do not cost a walk each.
	sweepInterval = time.Minute
)

// Attempts slow down the logins of an address with the name of a key after some have failed.
// Goroutines may share the value. The zero value is ready for use.
type Attempts struct {
	mu        sync.Mutex
	names     table[named]  // guarded by mu
	addresses table[string] // guarded by mu
}

// A named is an address with the name of a key, which is empty for all names that no key has.
type named struct{ address, name string }

// Judge counts an attempt of an address, whose secret was right or wrong, and returns how long its
// response has to wait. ok is false if the response would wait for more than 10 s. Then the client
// must not learn whether the secret was right, and the attempt does not count.
//
// Neither result depends on whether this secret is right, and attempts at the same time wait for
// one another. The time to guess a secret is therefore the sum of all waits, on any number of
// connections. A name that has not failed from the address does not wait, so the guesses of other
// users behind the address delay only the names that were guessed.
func (a *Attempts) Judge(address, name string, right bool, now time.Time) (wait time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pair := named{address, name}
	own, all := a.names.get(pair, now), a.addresses.get(address, now)
	var begin, beginAll time.Time
	if own != nil {
		begin, beginAll = own.next(freeOfName, nameInterval, now), all.next(freeOfAddress, addressInterval, now)
		if wait = max(begin.Sub(now), beginAll.Sub(now)); wait > maxWait {
			return wait, false
		}
	}
	if right {
		a.names.forget(pair)
	} else {
		own, all = a.names.ensure(pair, now), a.addresses.ensure(address, now)
		own.count++
		all.count++
	}
	own.attempt(begin)
	all.attempt(beginAll)
	return wait, true
}

// failures are those of one address, or of one name of it.
type failures struct {
	count int
	last  time.Time // begin of the last attempt, which may wait
}

// next returns the earliest time of an attempt after n free failures; f may be nil.
func (f *failures) next(n int, interval time.Duration, now time.Time) time.Time {
	if f == nil || f.count < n {
		return now
	}
	if f.last.After(now) {
		now = f.last
	}
	return now.Add(interval)
}

// attempt notes when an attempt begins; f may be nil.
func (f *failures) attempt(at time.Time) {
	if f != nil && f.last.Before(at) {
		f.last = at
	}
}

// A table has the failures of each key that has failed recently. The zero value is empty.
type table[K comparable] struct {
	entries map[K]*failures
	swept   time.Time // when old entries were removed last
}

// get returns the failures of a key, or nil.
func (t *table[K]) get(k K, now time.Time) *failures {
	if f := t.entries[k]; f != nil && now.Sub(f.last) < forgetAfter {
		return f
	}
	return nil
}

// ensure returns the failures of a key, and adds an entry if there is none.
func (t *table[K]) ensure(k K, now time.Time) *failures {
	if f := t.get(k, now); f != nil {
		return f
	}
	delete(t.entries, k)
	t.makeRoom(now)
	f := &failures{last: now}
	t.entries[k] = f
	return f
}

func (t *table[K]) forget(k K) { delete(t.entries, k) }

// makeRoom removes entries without recent attempts, and any entry at the limit.
func (t *table[K]) makeRoom(now time.Time) {
	if t.entries == nil {
		t.entries = map[K]*failures{}
	}
	if len(t.entries) < maxEntries {
		return
	}
	if now.Sub(t.swept) >= sweepInterval {
		t.swept = now
		maps.DeleteFunc(t.entries, func(_ K, f *failures) bool { return now.Sub(f.last) >= forgetAfter })
	}
	for k := range t.entries {
		if len(t.entries) < maxEntries {
			return
		}
		delete(t.entries, k)
	}
}
