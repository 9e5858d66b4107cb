package rocketmq_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// Each mode is a change of the invisible duration with a header. A server that does not announce it
// is not asked: it would extend the lease.
func TestReconsumeRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		mode     transport.Verdict
		header   string
		duration time.Duration
		bad      bool
	}{
		"delay":                        {mode: transport.Verdict{Kind: transport.RetryTopic, Delay: 90 * time.Second}, header: "delay", duration: 90 * time.Second},
		"level":                        {mode: transport.Verdict{Kind: transport.RetryTopic, Level: 18}, header: "level=18"},
		"next level":                   {mode: transport.Verdict{Kind: transport.RetryTopic}, header: "next"},
		"negative":                     {mode: transport.Verdict{Kind: transport.NegativeAck}, header: "negative"},
		"negative with a delay":        {mode: transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, header: "negative", duration: time.Hour},
		"level and delay":              {mode: transport.Verdict{Kind: transport.RetryTopic, Level: 1, Delay: time.Second}, bad: true},
		"negative acknowledgement too": {mode: transport.Verdict{Kind: transport.NegativeAck, Level: 1}, bad: true},
	} {
		for _, announced := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				if s.features = "suspend, snooze"; announced {
					s.features += ", reconsume"
				}
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error { sendMessage(st, nil); return nil }
				s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
					return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
				}
				s.changeTrailer = metadata.Pairs(wire.TrailerRetry, "1500")
				c := newClient(t, n, nil)
				ds, err := c.Receive(t.Context(), request1)
				if err != nil {
					t.Fatal(err)
				}
				got, err := c.Settle(t.Context(), ds[0], tt.mode)
				sent := s.of("ChangeInvisibleDuration")
				want := tidegate.CodeNotImplemented
				if announced {
					want = tidegate.CodeBadRequest
				}
				if !announced || tt.bad {
					if e, _ := errors.AsType[*tidegate.Error](err); e == nil || e.Code != want || len(sent) != 0 {
						t.Errorf("%s, announced %t: %v and %d requests; want %d and none", name, announced, err, len(sent), want)
					}
					return
				}
				if err != nil || got != (transport.RetryResult{Fate: transport.FateAgain, Delay: 1500 * time.Millisecond}) || len(sent) != 1 {
					t.Fatalf("%s: %+v, %v, %d requests", name, got, err, len(sent))
				}
				r := sent[0].req.(*rmqpb.ChangeInvisibleDurationRequest)
				if r.GetInvisibleDuration().AsDuration() != tt.duration || r.GetReceiptHandle() != "h" || sent[0].md.Get(wire.HeaderReconsume)[0] != tt.header {
					t.Errorf("%s: request %v, header %q", name, r, sent[0].md.Get(wire.HeaderReconsume))
				}
			})
		}
	}
}
