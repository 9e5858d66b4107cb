package routing

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
)

// excluded returns which of the servers sends leave out: those that tripped first,
// at most half. trips has the number of each one's trip, 0 for none.
func excluded(trips []int64) []bool {
	out := make([]bool, len(trips))
	for range len(trips) / 2 {
		first := -1
		for i, n := range trips {
			if n != 0 && !out[i] && (first < 0 || n < trips[first]) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		out[first] = true
	}
	return out
}

// Excludes returns the servers of r that sends leave out; nil if there are none.
func (r *Route) Excludes() (out []*remote.Server) {
	if len(r.Servers) < 2 || !slices.ContainsFunc(r.Servers, func(e *remote.Server) bool { return e.Tripped.Load() != 0 }) {
		return nil
	}
	trips := make([]int64, len(r.Servers))
	for i, e := range r.Servers {
		trips[i] = e.Tripped.Load()
	}
	for i, is := range excluded(trips) {
		if is {
			out = append(out, r.Servers[i])
		}
	}
	return out
}

// Choose returns the queue for a message: its group's, or the next in turn on a
// server that is neither excluded nor in avoid, if there is one. It may be one on an
// excluded server that the message is to probe. next counts the messages without a group.
func (r *Route) Choose(next *atomic.Uint64, group string, avoid []string) (q Queue, probe bool) {
	if group != "" {
		return r.forGroup(group), false
	}
	out := r.Excludes()
	for _, e := range out {
		if !slices.Contains(avoid, e.Key) && e.MayProbe(time.Now()) {
			return r.At[e.Key], true
		}
	}
	n := next.Add(1) - 1
	for _, avoided := range [][]string{avoid, nil} {
		for i := range uint64(len(r.Interleaved)) {
			if q := r.Interleaved[(n+i)%uint64(len(r.Interleaved))]; !slices.Contains(out, q.Server) && !slices.Contains(avoided, q.Server.Key) {
				return q, false
			}
		}
	}
	return r.Interleaved[n%uint64(len(r.Interleaved))], false // cannot happen: half of the servers are not excluded
}
