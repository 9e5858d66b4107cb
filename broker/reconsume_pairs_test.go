package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// The names of two topics and groups may make one name of a retry topic. Each
// group gets its own retries from it, and no other ones.
func TestTwoPairsWithOneRetryTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		pairs := []struct{ topic, group string }{{"T-X", "B"}, {"T", "X-B"}}
		for _, p := range pairs {
			putTopic(t, b, p.topic, settings.Topic{})
			putGroup(t, b, p.group, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
			for i := range 3 {
				mustSend(t, b, &tidegate.Message{Topic: p.topic, ID: fmt.Sprint(p.topic, i), Body: []byte("x")})
				if r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, p.group, p.topic), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}); err != nil || r.Topic != "T-X-B-RETRY" {
					t.Fatalf("%+v, %v", r, err)
				}
			}
		}
		for _, p := range pairs {
			for range 3 {
				d := one(t, b, p.group, p.topic)
				if d.Topic != p.topic || !strings.HasPrefix(d.Properties[protocol.PropertyOriginMessageID], p.topic) {
					t.Errorf("%s got a message of %s: %v", p.group, d.Topic, d.Properties)
				}
				ackDeliveries(t, b, []*tidegate.Delivery{d})
			}
			if ds := receive(t, b, transport.ReceiveRequest{Group: p.group, Topic: p.topic, Wait: time.Hour}); len(ds) != 0 {
				t.Errorf("%s got %+v too", p.group, ds[0].Message)
			}
			g, err := b.Group(p.group)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range g.Topics {
				if s.Backlog != (status.Backlog{}) {
					t.Errorf("%s is left with %+v of %s", p.group, s.Backlog, s.Topic)
				}
			}
		}
	})
}

// A receive that would create its group's retry topic ends with its context while settings change.
func TestReceiveEndsWhileItsRetryTopicIsMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		defer holdSettings(t, b)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := b.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour, InvisibleDuration: time.Minute})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A receive waits for its topic, though the group's retry topic is deleted meanwhile.
func TestRetryTopicIsDeletedWhileAReceiveWaits(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"waiting": false, "with retries": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				if busy {
					mustSend(t, b, &tidegate.Message{Topic: "t", ID: "lost", Body: []byte("x")})
					if _, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				time.AfterFunc(time.Minute, func() {
					if err := b.DeleteTopic(t.Context(), "t-g-RETRY"); err != nil {
						t.Error(err)
					}
				})
				time.AfterFunc(2*time.Minute, func() { mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")}) })
				d := one(t, b, "g", "t")
				if d.ID != "m" || time.Since(start) != 2*time.Minute {
					t.Errorf("%s came after %v", d.ID, time.Since(start))
				}
				ackDeliveries(t, b, []*tidegate.Delivery{d})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				if _, err := b.Topic("t-g-RETRY"); err != nil {
					t.Errorf("the next receive does not make it anew: %v", err)
				}
				time.AfterFunc(time.Minute, func() {
					if err := b.DeleteGroup(t.Context(), "g"); err != nil {
						t.Error(err)
					}
				})
				ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour, InvisibleDuration: time.Minute})
				if !errors.Is(err, tidegate.ErrNotFound) || len(ds) != 0 {
					t.Errorf("its group was deleted: %d deliveries, %v", len(ds), err)
				}
			})
		})
	}
}

// A retry topic that was named for a group is no other group's.
func TestRetryTopicOfTwoGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		g, h settings.RetryTopic
		ok   bool
	}{
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{Topic: "x"}, false},
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{Topic: "y"}, true},
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{}, true},
		{settings.RetryTopic{Topic: "x", DeadLetterTopic: "d"}, settings.RetryTopic{Topic: "y", DeadLetterTopic: "d"}, true},
		{settings.RetryTopic{Topic: "t-h-RETRY"}, settings.RetryTopic{}, false},
		{settings.RetryTopic{}, settings.RetryTopic{Topic: "t-g-RETRY"}, false},
		{settings.RetryTopic{Topic: "h-RETRY"}, settings.RetryTopic{Naming: settings.RetryNaming272}, false},
		{settings.RetryTopic{Naming: settings.RetryNaming261}, settings.RetryTopic{Topic: "g-retry"}, false},
		{settings.RetryTopic{Naming: settings.RetryNaming272}, settings.RetryTopic{Naming: settings.RetryNaming272}, true},
	} {
		b := open(t, broker.Options{})
		c.g.Enabled = true
		putGroup(t, b, "g", settings.Group{RetryTopic: c.g})
		putGroup(t, b, "h", settings.Group{RetryTopic: c.h}) // not enabled: nothing goes there
		c.h.Enabled = true
		_, err := b.PutGroup(t.Context(), "h", settings.Group{RetryTopic: c.h})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "retry_topic.topic") {
			t.Errorf("%+v beside %+v: %v", c.h, c.g, err)
		}
	}
}
