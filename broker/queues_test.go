package broker_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The queues of a topic have their offsets and times, and those of a group its progress.
func TestQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		putTopic(t, b, "other", settings.Topic{Queues: 1})
		begin := time.Now()
		for range 12 { // four in each queue, in turn
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			time.Sleep(time.Second)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: 1, Max: 3, InvisibleDuration: time.Hour})
		if len(ds) != 3 {
			t.Fatalf("%d deliveries", len(ds))
		}
		if err := b.Ack(t.Context(), ds[:1])[0]; err != nil {
			t.Fatal(err)
		}
		var queues []status.Queue
		var progress []status.GroupQueue
		for after := ""; ; {
			page, err := serve(b).QueuesPage("t", after, 1)
			if err != nil || len(page.Queues) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			of, err := serve(b).GroupQueues("g", "t", after, 1)
			if err != nil || len(of.Queues) != 1 || of.Next != page.Next {
				t.Fatalf("%+v, %v", of, err)
			}
			queues, progress = append(queues, page.Queues...), append(progress, of.Queues...)
			if after = page.Next; after == "" {
				break
			}
		}
		if len(queues) != 3 {
			t.Fatalf("%+v", queues)
		}
		oldest := map[time.Duration]bool{}
		for i, q := range queues {
			oldest[q.Oldest.Sub(begin)] = true
			want := status.Queue{Queue: i, End: 4, Messages: 4, Oldest: q.Oldest, Newest: q.Oldest.Add(9 * time.Second)}
			if !q.Newest.Equal(want.Newest) || q.Queue != want.Queue || q.Begin != want.Begin || q.End != want.End || q.Messages != want.Messages {
				t.Errorf("%+v, want %+v", q, want)
			}
			g := status.GroupQueue{Queue: i, End: 4, Undelivered: 4}
			first := q.Oldest
			if i == 1 {
				g.Cursor, g.Undelivered, g.Unfinished, first = 3, 1, 2, q.Newest
			}
			if g.Oldest = progress[i].Oldest; progress[i] != g || !g.Oldest.Equal(first) {
				t.Errorf("%+v, want %+v with %v", progress[i], g, first)
			}
		}
		if !oldest[0] || !oldest[time.Second] || !oldest[2*time.Second] {
			t.Errorf("the queues begin at %v", oldest)
		}
		for name, f := range map[string]func() error{
			"topic":    func() error { _, err := serve(b).QueuesPage("x", "", 0); return err },
			"limit":    func() error { _, err := serve(b).QueuesPage("t", "", 1001); return err },
			"after":    func() error { _, err := serve(b).QueuesPage("t", "-1", 0); return err },
			"group":    func() error { _, err := serve(b).GroupQueues("x", "t", "", 0); return err },
			"received": func() error { _, err := serve(b).GroupQueues("g", "other", "", 0); return err },
			"after of": func() error { _, err := serve(b).GroupQueues("g", "t", "x", 0); return err },
		} {
			want := map[string]tidegate.Code{
				"topic": tidegate.CodeTopicNotFound, "group": tidegate.CodeConsumerGroupNotFound, "received": tidegate.CodeConsumerGroupNotFound,
			}[name]
			if want == 0 {
				want = tidegate.CodeBadRequest
			}
			if e, ok := errors.AsType[*tidegate.Error](f()); !ok || e.Code != want {
				t.Errorf("%s: %v", name, f())
			}
		}
		if page, err := serve(b).QueuesPage("t", "7", 0); err != nil || len(page.Queues) != 0 || page.Next != "" {
			t.Errorf("after the last queue: %+v, %v", page, err)
		}
	})
}

// A dry run of a rewind and of a purge has the result of the call, and changes nothing.
func TestDryRuns(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]status.Position{
		"earliest": {Earliest: true}, "latest": {Latest: true}, "time": {Time: time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC)}, "offsets": {Offsets: map[int]int64{1: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
				putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
				for i := range 40 {
					mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: fmt.Sprint(i % 4), Body: []byte("x")})
					time.Sleep(time.Second)
				}
				for i := range 4 { // two parked, one in flight, one done and its successor ready
					for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Hour}) {
						switch i {
						case 0, 1:
							if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
								t.Fatal(err)
							}
						case 2:
							if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				synctest.Wait()
				before, err := b.Group("g")
				if err != nil {
					t.Fatal(err)
				}
				plan, err := serve(b).PlanRewind("g", "t", to)
				if err != nil {
					t.Fatal(err)
				}
				if after, err := b.Group("g"); err != nil || !reflect.DeepEqual(after.Topics, before.Topics) {
					t.Errorf("the plan changed %+v to %+v, %v", before.Topics, after.Topics, err)
				}
				done, err := b.Rewind(t.Context(), "g", "t", to)
				if err != nil || fmt.Sprint(done) != fmt.Sprint(plan) {
					t.Errorf("the rewind is %+v, %v; the plan was %+v", done, err, plan)
				}
				counted, err := serve(b).CountPurge("t")
				if err != nil {
					t.Fatal(err)
				}
				if purged, err := b.PurgeTopic(t.Context(), "t"); err != nil || purged != counted || purged.Messages != 40 {
					t.Errorf("the purge is %+v, %v; %+v were counted", purged, err, counted)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay})
		sendHalf(t, b, "m")
		mustSend(t, b, &tidegate.Message{Topic: "d", Body: []byte("xyz"), DeliverAt: time.Now().Add(time.Hour)})
		for topic, bytes := range map[string]int64{"t": 0, "d": 3} {
			counted, err := serve(b).CountPurge(topic)
			if err != nil || counted != (status.Backlog{Messages: 1, Bytes: bytes}) {
				t.Errorf("%s has %+v, %v", topic, counted, err)
			}
			if purged, err := b.PurgeTopic(t.Context(), topic); err != nil || purged.Messages != 1 {
				t.Errorf("%s: %+v, %v", topic, purged, err)
			}
		}
		for name, f := range map[string]func() error{
			"no topic":    func() error { _, err := serve(b).CountPurge("x"); return err },
			"no group":    func() error { _, err := serve(b).PlanRewind("g", "t", status.Position{Latest: true}); return err },
			"no position": func() error { _, err := serve(b).PlanRewind("g", "t", status.Position{}); return err },
		} {
			if f() == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
