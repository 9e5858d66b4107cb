package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Dead letters that lie elsewhere than in %DLQ%group, because of retry topics
// or address settings, are listed with their group, browsed, sent back and purged; those of others
// in the same topic are left alone.
func TestDeadLettersInOtherTopics(t *testing.T) {
	t.Parallel()
	dla := settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1)}
	for name, c := range map[string]struct {
		address settings.Address
		group   settings.Group
		topics  []string
		in      string
	}{
		"retry topics":             {settings.Address{}, settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true}}, []string{"t-g-DLQ"}, "t-g-DLQ"},
		"retry topics, older":      {settings.Address{}, settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true, Naming: settings.RetryNaming272}}, []string{"g-DLQ"}, "g-DLQ"},
		"dead-letter-address":      {dla, settings.Group{}, []string{"DLA"}, "DLA"},
		"automatic":                {settings.Address{AutoCreateDeadLetterResources: new(true)}.Over(dla), settings.Group{}, []string{"DLA", "DLQ.t"}, "DLQ.t"},
		"address and retry topics": {dla, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, []string{"DLA"}, "DLA"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				putAddress(t, b, "t", c.address)
				other := c.group
				other.RetryTopic.DeadLetterTopic = c.in // both in one topic
				putGroup(t, b, "g", c.group)
				putGroup(t, b, "other", other)
				for i := range 4 {
					mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
					for _, g := range []string{"g", "other"} {
						if _, err := b.Settle(t.Context(), one(t, b, g, "t"), transport.Verdict{Kind: transport.Retry}); err != nil {
							t.Fatal(err)
						}
					}
				}
				if g, err := b.Group("g"); err != nil || !slices.Equal(g.DeadLetterTopics, c.topics) {
					t.Errorf("the group's are in %q, %v; want %q", g.DeadLetterTopics, err, c.topics)
				}
				list := func(group string, want string) {
					t.Helper()
					page, err := b.DeadLetters(group, status.DeadLetterQuery{In: c.in})
					if got := fmt.Sprint(letterIDs(page)); err != nil || got != want {
						t.Errorf("%s has %s in %s, %v; want %s", group, got, c.in, err, want)
					}
				}
				list("g", "[0 1 2 3]")
				list("other", "[0 1 2 3]")
				only := status.DeadLetterFilter{MessageIDs: []string{"1", "2"}}
				if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: c.in, DeadLetterFilter: only}); err != nil || done.Purged != 2 {
					t.Errorf("%+v, %v", done, err)
				}
				list("g", "[0 3]")
				list("other", "[0 1 2 3]")
				if done, err := b.RedriveDeadLetters(t.Context(), "other", status.DeadLetterSelection{In: c.in}); err != nil || done.Redriven != 4 {
					t.Errorf("%+v, %v", done, err)
				}
				list("other", "[]")
				if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}); len(ds) != 4 {
					t.Errorf("%d were sent back", len(ds))
				}
				for range 2 {
					list("g", "[0 3]")
					if info, err := b.Topic(c.in); err != nil || info.StoredMessages != 2 || info.Backlog.Messages != 2 || info.StoredBytes != 2 {
						t.Errorf("%s has %+v, %v", c.in, info, err)
					}
					b = reopen(t, b, fs)
				}
				// A letter that was taken out is not counted again when the rest is removed.
				putTopic(t, b, c.in, settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Second)}})
				elapse(time.Hour)
				if info, err := b.Topic(c.in); err == nil && (info.StoredMessages != 0 || info.StoredBytes != 0 || info.Backlog != (status.Backlog{})) {
					t.Errorf("%s has %+v once all are removed", c.in, info)
				}
			})
		})
	}
}

func TestDeadLettersInNoTopic(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{})
	putGroup(t, b, "g", settings.Group{})
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	if page, err := b.DeadLetters("g", status.DeadLetterQuery{In: "t"}); err != nil || len(page.DeadLetters) != 0 {
		t.Errorf("%+v, %v", page, err)
	}
	if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t"}); err != nil || done.Purged != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := b.DeadLetters("g", status.DeadLetterQuery{In: "u"}); !errors.Is(err, tidegate.ErrTopicNotFound) {
		t.Error(err)
	}
	if _, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t", To: "t"}); err == nil {
		t.Error("dead letters are sent to where they are")
	}
	if g, err := b.Group("g"); err != nil || len(g.DeadLetterTopics) != 0 {
		t.Errorf("%q, %v", g.DeadLetterTopics, err)
	}
}

// The topic remembers the ID of a dead letter like any other ID. A send with that ID is a
// duplicate, before and after a restart.
func TestDuplicateOfADeadLetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "DLA", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1)})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r := send(t, b, &tidegate.Message{Topic: "DLA", ID: "m", Body: []byte("x")})[0]
			if info, err := b.Topic("DLA"); r.Err != nil || err != nil || info.StoredMessages != 1 || r.Receipt.Offset != 0 {
				t.Errorf("%+v, %v; the topic is %+v, %v", r.Receipt, r.Err, info, err)
			}
			b = reopen(t, b, fs)
		}
		time.Sleep(2 * time.Minute)
		mustSend(t, b, &tidegate.Message{Topic: "DLA", ID: "m", Body: []byte("x")})
		if info, err := b.Topic("DLA"); err != nil || info.StoredMessages != 2 {
			t.Errorf("after the window the topic is %+v, %v", info, err)
		}
	})
}
