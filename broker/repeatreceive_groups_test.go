package broker_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A receive of an unordered group can be repeated too, also if its messages were from the group's
// retry topic, and after any number of later receives.
func TestRepeatedReceiveOfAnyGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		if _, err := b.PutTopic(t.Context(), "t", settings.Topic{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}); err != nil {
			t.Fatal(err)
		}
		mustSend(t, b, &tidegate.Message{ID: "first", Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour}
		ds := expectMessages(t, receive(t, b, r), "first/1")
		if _, err := serve(b).ReconsumeLater(t.Context(), ds[0], transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		named := func(id string) transport.ReceiveRequest {
			r := r
			r.AttemptID = id
			return r
		}
		retried := receive(t, b, named("retried"))
		if len(retried) != 1 {
			t.Fatalf("received %d messages, want the retried one", len(retried))
		}
		const others = 5000
		for i := range others {
			mustSend(t, b, &tidegate.Message{ID: strconv.Itoa(i), Topic: "t", Body: []byte("x")})
			ds := receive(t, b, named("attempt "+strconv.Itoa(i)))
			if len(ds) != 1 {
				t.Fatalf("receive %d: %d messages, want 1", i, len(ds))
			}
			if i%3 > 0 {
				ackDeliveries(t, b, ds)
			}
		}
		repeat := func(id string) []*tidegate.Delivery {
			r := named(id)
			r.Repeat, r.Wait = true, time.Minute
			return receive(t, b, r)
		}
		if again := repeat("retried"); len(again) != 1 || again[0].ID != retried[0].ID || again[0].Attempt != retried[0].Attempt {
			t.Errorf("repeated: %v, want %v", again, retried)
		}
		for i := range others {
			want := 0
			if i%3 == 0 {
				want = 1
			}
			if got := repeat("attempt " + strconv.Itoa(i)); len(got) != want || want == 1 && (got[0].ID != strconv.Itoa(i) || got[0].Attempt != 1) {
				t.Fatalf("receive %d repeated: %v, want %d messages", i, got, want)
			}
		}
		sub := subscriptions(b)
		for _, s := range sub {
			s.Look(func(p *consume.Progress) {
				if n := p.Replays(); n > others/3+1024 {
					t.Errorf("%d attempt IDs are kept for %d messages in flight", n, others/3)
				}
			})
		}
	})
}
