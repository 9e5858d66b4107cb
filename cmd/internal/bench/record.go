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

// A recorder collects the results of one run. Several goroutines may use it.
type recorder struct {
	started time.Time

	mu       sync.Mutex
	response *hdrhistogram.Histogram // from the due time
	service  *hdrhistogram.Histogram // from the begin
	late     *hdrhistogram.Histogram // of the generator, after the due time
	seconds  []*hdrhistogram.Histogram
	done     int64 // messages
	failed   map[string]int64
	ended    time.Time // of the last operation
}

func newRecorder(started time.Time) *recorder {
	return &recorder{started: started, response: newHistogram(), service: newHistogram(), late: newHistogram(), failed: map[string]int64{}}
}

// lateness adds how late the generator was with one operation. One goroutine calls it.
func (r *recorder) lateness(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(r.late, d)
}

// record adds one operation. Due is the begin in a closed loop.
func (r *recorder) record(due, begun, ended time.Time, out Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended.After(r.ended) && (out.Messages > 0 || len(out.Failures) > 0) {
		r.ended = ended
	}
	for _, cause := range out.Failures {
		r.failed[cause]++
	}
	if out.Messages == 0 {
		return
	}
	r.done += out.Messages
	add(r.response, ended.Sub(due))
	add(r.service, ended.Sub(begun))
	second := int(due.Sub(r.started) / time.Second)
	for len(r.seconds) <= second {
		r.seconds = append(r.seconds, nil)
	}
	if r.seconds[second] == nil {
		r.seconds[second] = hdrhistogram.New(lowest, highest, 2)
	}
	add(r.seconds[second], ended.Sub(due))
}
