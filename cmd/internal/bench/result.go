package bench

import (
	"fmt"
	"io"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Result is the document of a benchmark. Files of it can be compared.
type Result struct {
	Schema    int               `json:"schema"`    // 1
	Benchmark string            `json:"benchmark"` // send, receive or e2e
	Arguments map[string]string `json:"arguments"`
	System    map[string]string `json:"system"`
	Searched  []Searched        `json:"searched,omitempty"` // by --max-p99
	Rounds    []Round           `json:"rounds"`
	Truth     *Truth            `json:"truth,omitempty"`
	Broker    *Broker           `json:"broker,omitempty"` // nil if it is not known
}

// A Broker is the report of a broker about itself and its storage.
type Broker struct {
	Version  string  `json:"version"`
	Disk     int64   `json:"disk_bytes"` // after the rounds; 0 for a broker in memory
	Fsyncs   int64   `json:"fsyncs"`     // during the rounds
	FsyncP50 float64 `json:"fsync_p50_us"`
	FsyncP99 float64 `json:"fsync_p99_us"` // since the start of the broker, as upper bounds
}

// A Searched is one rate that a search for the highest one tried.
type Searched struct {
	Rate  float64 `json:"rate"`
	P99   float64 `json:"p99_us"`
	Holds bool    `json:"holds"`
}

// Responses returns the latencies of all rounds from the due times; nil for a closed loop.
func (r Result) Responses() (*hdrhistogram.Histogram, error) {
	return r.merged(func(r Round) *Latency { return r.Response })
}

// Services returns the latencies of all rounds from the begin of the operations.
func (r Result) Services() (*hdrhistogram.Histogram, error) {
	return r.merged(func(r Round) *Latency { return &r.Service })
}

func (r Result) merged(of func(Round) *Latency) (*hdrhistogram.Histogram, error) {
	var all *hdrhistogram.Histogram
	for n, round := range r.Rounds {
		l := of(round)
		if l == nil {
			return nil, nil
		}
		h, err := hdrhistogram.Decode([]byte(l.HDR))
		if err != nil {
			return nil, fmt.Errorf("the histogram of round %d cannot be read: %w", n+1, err)
		}
		if all == nil {
			all = newHistogram()
		}
		all.Merge(h)
	}
	return all, nil
}

// WriteHDR writes the distribution of all rounds as HdrHistogram's text of percentiles, in
// milliseconds: the response times of an open loop, or else the service times.
func (r Result) WriteHDR(w io.Writer) error {
	h, err := r.Responses()
	if err == nil && h == nil {
		h, err = r.Services()
	}
	if err != nil || h == nil {
		return err
	}
	_, err = h.PercentilesPrint(w, 5, 1e6)
	return err
}
