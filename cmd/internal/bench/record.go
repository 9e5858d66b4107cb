package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range of the histograms: 1 µs to 10 minutes with three significant digits.
const (
	lowest  = int64(time.Microsecond)
	highest = int64(10 * time.Minute)
	digits  = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(lowest, highest, digits) }

func add(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), lowest), highest)) // the value is in range
}

// A recorder collects the results of one run. Several goroutines may use it. It has several parts,
// so that the callers do not wait for each other: a caller that the kernel stops inside a part
// would stop all of them.
type recorder struct {
	started time.Time
	open    bool // the loop
	parts   []part
	late    *hdrhistogram.Histogram // of the generator, after the due time; one goroutine uses it

	mu      sync.Mutex
	seconds []*hdrhistogram.Histogram // nil for a second without operations
}

// maxParts bounds the parts, of which each has histograms of 170 KiB.
const maxParts = 16

// A part has the operations of some callers.
type part struct {
	mu sync.Mutex
	figures
	second int                     // of series
	series *hdrhistogram.Histogram // what was due in the latest second
}

// Figures are those of operations.
type figures struct {
	response *hdrhistogram.Histogram // from the due time; in a closed loop the service
	service  *hdrhistogram.Histogram // from the begin
	done     int64                   // messages
	failed   map[string]int64
	ended    time.Time // of the last operation
}

// newRecorder returns a recorder of a run, whose begin has to be set.
func newRecorder(callers int, open bool) *recorder {
	r := &recorder{open: open, parts: make([]part, min(callers, maxParts)), late: newHistogram()}
	for i := range r.parts {
		p := &r.parts[i]
		p.service, p.series, p.failed = newHistogram(), newSeries(), map[string]int64{}
		if p.response = p.service; open {
			p.response = newHistogram()
		}
	}
	return r
}

func newSeries() *hdrhistogram.Histogram { return hdrhistogram.New(lowest, highest, 2) }

// record adds one operation of a caller. Due is the begin in a closed loop.
func (r *recorder) record(caller int, due, begun, ended time.Time, out Outcome) {
	p := &r.parts[caller%len(r.parts)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended.After(p.ended) && (out.Messages > 0 || len(out.Failures) > 0) {
		p.ended = ended
	}
	for _, cause := range out.Failures {
		p.failed[cause]++
	}
	if out.Messages == 0 {
		return
	}
	p.done += out.Messages
	add(p.service, ended.Sub(begun))
	if r.open {
		add(p.response, ended.Sub(due))
	}
	switch second := int(due.Sub(r.started) / time.Second); {
	case second < p.second: // it ended after a later one
		r.mu.Lock()
		defer r.mu.Unlock()
		add(r.at(second), ended.Sub(due))
		return
	case second > p.second:
		r.merge(p.second, p.series)
		p.series.Reset()
		p.second = second
	}
	add(p.series, ended.Sub(due))
}

// merge adds operations to a second.
func (r *recorder) merge(second int, h *hdrhistogram.Histogram) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.TotalCount() > 0 {
		r.at(second).Merge(h)
	}
}

// at returns the histogram of a second. The caller holds mu.
func (r *recorder) at(second int) *hdrhistogram.Histogram {
	for len(r.seconds) <= second {
		r.seconds = append(r.seconds, nil)
	}
	if r.seconds[second] == nil {
		r.seconds[second] = newSeries()
	}
	return r.seconds[second]
}

// sum returns all parts together.
func (r *recorder) sum() figures {
	all := figures{response: newHistogram(), service: newHistogram(), failed: map[string]int64{}}
	for i := range r.parts {
		p := &r.parts[i]
		p.mu.Lock()
		all.response.Merge(p.response)
		all.service.Merge(p.service)
		r.merge(p.second, p.series)
		p.series.Reset()
		all.done += p.done
		for cause, n := range p.failed {
			all.failed[cause] += n
		}
		if p.ended.After(all.ended) {
			all.ended = p.ended
		}
		p.mu.Unlock()
	}
	return all
}
