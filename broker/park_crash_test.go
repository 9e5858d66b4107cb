package broker_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The power fails while message groups are parked, redriven and rewound. Afterwards each message
// group continues at its old place, in order and without a gap, to its end.
func TestParkingAcrossPowerLoss(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(5), loseParked)
}

func loseParked(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	const groups, each = 3, 40
	request := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8, InvisibleDuration: time.Hour}
	acked := map[string]int{}  // how many of a message group, in all
	before := map[string]int{} // likewise before the last rewind, which a power failure may take back
	rewinding := false
	b := losePower(t, rnd, 60, func(b *broker.Broker, p *powerCut) {
		own := rand.New(rand.NewPCG(seed, 1))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
		var ms []*tidegate.Message
		for i := range each {
			for g := range groups {
				ms = append(ms, &tidegate.Message{ID: fmt.Sprint(g, ":", i), Topic: "t", MessageGroup: fmt.Sprint(g), Body: []byte("x")})
			}
		}
		mustSend(t, b, ms...)
		for {
			select {
			case <-p.failed:
				return
			default:
			}
			for _, d := range receive(t, b, request) {
				var err error
				if own.IntN(4) == 0 {
					_, err = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
					p.responded(func() {})
				} else {
					err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]
					p.responded(func() {
						acked[d.MessageGroup]++
						clear(before) // acknowledged data is on disk, and all earlier data
					})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if own.IntN(3) == 0 {
				if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
					t.Fatal(err)
				}
				p.responded(func() {})
			}
			if done := acked["0"]+acked["1"]+acked["2"] == groups*each; done || own.IntN(30) == 0 {
				p.unlessFailed(func() { rewinding = true })
				if _, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true}); err != nil {
					t.Fatal(err)
				}
				p.responded(func() {
					before, acked, rewinding = acked, map[string]int{}, false
				})
			}
		}
	})
	if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
		t.Fatal(err)
	}
	last := map[string]int{}
	request.Wait = 100 * time.Millisecond // some is read back meanwhile
	for {
		ds := receive(t, b, request)
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			var g, n int
			if _, err := fmt.Sscanf(d.ID, "%d:%d", &g, &n); err != nil {
				t.Fatal(err)
			}
			previous, ok := last[d.MessageGroup]
			done, most := acked[d.MessageGroup], max(acked[d.MessageGroup], before[d.MessageGroup])
			switch {
			case ok && n != previous+1:
				t.Errorf("%s follows %d", d.ID, previous)
			case !ok && (n < done && !rewinding || n > most+1): // one request may have been under way
				t.Errorf("%s is the first one, %d were acknowledged, %d before a rewind", d.ID, done, most)
			}
			last[d.MessageGroup] = n
		}
		ackDeliveriesNow(t, b, ds)
	}
	s := subscriptionOf(t, b, "g")
	for i := range groups {
		if n, ok := last[fmt.Sprint(i)]; ok && n != each-1 {
			t.Errorf("message group %d ends at %d", i, n)
		}
	}
	// A message that is in flight for an hour was in the consumer's hands when the power failed.
	if s.Backlog.Messages != s.Ready+s.Inflight || s.Inflight > groups || s.Parked != 0 || s.Inflight == 0 && s.Ready > 0 {
		t.Errorf("the group is left with %+v", s)
	}
}
