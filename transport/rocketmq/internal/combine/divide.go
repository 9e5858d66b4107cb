package combine

import (
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

const (
	// pushBackKey is the trailer with the milliseconds to wait after a throttled request.
	pushBackKey = "grpc-retry-pushback-ms"

	// pushBacksKey is the trailer of a request with several topics instead: the milliseconds for
	// each run of messages with the same topic, joined by commas; 0 means none.
	pushBacksKey = "x-tidegate-pushback-topics"
)

// divide divides the result of a request among its sends.
func divide(r Result, sends []*wire.Sending) []Result {
	out := make([]Result, len(sends))
	total := 0
	for _, s := range sends {
		total += len(s.Messages)
	}
	entries := r.Response.GetEntries()
	var waits []string // of the runs
	if v := r.Trailer.Get(pushBacksKey); len(v) > 0 {
		waits = strings.Split(v[0], ",")
	}
	run := 0
	for i, s := range sends {
		if i > 0 && s.Topic.GetName() != sends[i-1].Topic.GetName() {
			run++
		}
		one := Result{Trailer: r.Trailer}
		if waits != nil {
			one.Trailer = nil
			if run < len(waits) && waits[run] != "0" {
				one.Trailer = metadata.Pairs(pushBackKey, waits[run])
			}
		}
		if r.Response != nil {
			one.Response = &rmqpb.SendMessageResponse{Status: r.Response.GetStatus(), Entries: entries}
			if n := len(s.Messages); len(entries) == total {
				one.Response.Entries = entries[:n]
				entries, total = entries[n:], total-n
			}
		}
		if r.Err != nil {
			e := *r.Err
			e.Subject = s.Topic.GetName()
			one.Err = &e
		}
		out[i] = one
	}
	return out
}
