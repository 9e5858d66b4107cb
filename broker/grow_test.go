package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A topic gets more queues while a group receives from it for the first time:
// the group receives from the new ones too.
func TestTopicGrowsDuringAFirstReceive(t *testing.T) {
	t.Parallel()
	for _, start := range []settings.Start{settings.StartEarliest, settings.StartLatest} {
		t.Run(string(start), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				putGroup(t, b, "g", settings.Group{Start: start})
				tp, err := b.Parts().Catalog.Topic("t")
				if err != nil {
					t.Fatal(err)
				}
				s := subscription.New(b.Parts().Env, b.Parts().Catalog.FindGroup("g"), tp, false)
				putTopic(t, b, "t", settings.Topic{Queues: 3})
				if _, err = b.Parts().Catalog.Register(s); err != nil {
					t.Fatal(err)
				}
				for i := range 9 {
					mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
				}
				if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}); len(ds) != 9 {
					t.Errorf("%d messages of 9 are delivered", len(ds))
				}
			})
		})
	}
}

// A group is rewound while its topic gets more queues.
func TestRewindWhileATopicGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		tp, err := b.Parts().Catalog.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		b.Parts().Catalog.Subscriptions().Lock()
		tp.Grow(3) // as PutTopic does, which has not come to the groups yet
		b.Parts().Catalog.Subscriptions().Unlock()
		for i := range 9 {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		for _, to := range []status.Position{{Latest: true}, {Earliest: true}, {Offsets: map[int]int64{2: 1}}} {
			if _, err := b.Rewind(t.Context(), "g", "t", to); err != nil {
				t.Error(err)
			}
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}); len(ds) != 8 {
			t.Errorf("%d messages of 8 are delivered", len(ds))
		}
	})
}
