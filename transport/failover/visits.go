package failover

import (
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
)

// drainEvery is the interval at which receives from any queue query an inactive endpoint without
// messages.
const drainEvery = 5 * time.Second

// minVisits is the number of entries below which visits keeps expired ones.
const minVisits = 64

// A visitKey names the receives from any queue that find the same messages.
type visitKey struct {
	group, topic string
	filter       tidegate.Filter
}

// A visit is the state of these receives. The zero value means that there was none.
type visit struct {
	from    int         // 1 + the index of the inactive endpoint that returned the last messages; 0 for none
	emptyAt []time.Time // by endpoint, the last receive that found no message; zero for none
	at      time.Time   // the last change
}

// visits are the visits of all receives. It forgets those that changed nothing in the last
// drainEvery. The zero value is ready.
type visits struct {
	mu    sync.Mutex
	byKey map[visitKey]visit
	limit int // the number of entries at which note removes expired ones
}

// plan returns the endpoints to query without waiting for messages, before a receive waits at the
// active one.
func (v *visits) plan(key visitKey, active, n int, now time.Time, down func(int) bool) []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byKey[key].plan(active, n, now, down)
}

// note records the result of a receive from endpoint i.
func (v *visits) note(key visitKey, i int, found bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[visitKey]visit{}
	}
	v.byKey[key] = v.byKey[key].noted(i, found, now)
	if len(v.byKey) <= max(v.limit, minVisits) {
		return
	}
	for k, x := range v.byKey {
		if now.Sub(x.at) >= drainEvery {
			delete(v.byKey, k)
		}
	}
	v.limit = 2 * len(v.byKey) // the cost of an entry is constant on average
}

// turned records that the active endpoint returned messages: the inactive ones come first again.
func (v *visits) turned(key visitKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if x := v.byKey[key]; x.from > 0 {
		x.from = 0
		v.byKey[key] = x
	}
}

// plan is that of visits. It is a pure function.
func (x visit) plan(active, n int, now time.Time, down func(int) bool) []int {
	first := active + 1
	if x.from > 0 {
		first = x.from
	}
	var list []int
	for k := range n {
		i := (first + k) % n
		switch {
		case i == active && k < n-1:
			list = append(list, i) // its turn; otherwise the last receive is its turn
		case i != active && !down(i) && !x.emptySince(i, now):
			list = append(list, i)
		}
	}
	if len(list) > 0 && list[len(list)-1] == active {
		list = list[:len(list)-1] // the endpoints behind it are skipped
	}
	return list
}

func (x visit) emptySince(i int, now time.Time) bool {
	return i < len(x.emptyAt) && !x.emptyAt[i].IsZero() && now.Sub(x.emptyAt[i]) < drainEvery
}

// noted returns x after a receive from endpoint i.
func (x visit) noted(i int, found bool, now time.Time) visit {
	x.at = now
	x.emptyAt = slices.Clone(x.emptyAt)
	if len(x.emptyAt) <= i {
		x.emptyAt = append(x.emptyAt, make([]time.Time, i+1-len(x.emptyAt))...)
	}
	if found {
		x.from, x.emptyAt[i] = i+1, time.Time{}
	} else {
		x.emptyAt[i] = now
	}
	return x
}
