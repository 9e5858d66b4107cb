package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

func TestSettingsSurviveAndAreChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		topic := settings.Topic{Type: settings.TopicFIFO, Queues: 3, MaxBacklog: settings.Limit{Messages: 7}}
		group := settings.Group{
			FIFO: true, Start: settings.StartLatest, MaxAttempts: -1, OnExhausted: settings.OnExhaustedPark, Retry: backoff.Steps{time.Second}, FIFORetryInterval: settings.Duration(time.Minute), MaxBacklog: settings.Limit{Bytes: 9},
			RetryTopic: settings.RetryTopic{
				Naming: settings.RetryNaming272, Topic: "r", DeadLetterTopic: "d", MaxRetries: 3, Levels: backoff.Steps{time.Second}, SubscriptionType: settings.SubscriptionFailover,
			},
			NegativeAck: settings.NegativeAck{Delay: settings.Duration(time.Hour), MaxRedeliveries: 5},
		}
		putTopic(t, b, "t", topic)
		putGroup(t, b, "g", group)
		topic.Queues = 5
		putTopic(t, b, "t", topic)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		if got, err := b.Topic("t"); err != nil || got.Topic != topic {
			t.Errorf("topic: %+v, %v; want %+v", got, err, topic)
		}
		if got, err := b.Group("g"); err != nil || fmt.Sprint(got.Group) != fmt.Sprint(group) {
			t.Errorf("group: %+v, %v; want %+v", got, err, group)
		}
		for name, c := range map[string]struct {
			topic string
			c     settings.Topic
			says  []string
		}{
			"type":    {"t", settings.Topic{Type: settings.TopicNormal}, []string{"FIFO", "NORMAL"}},
			"fewer":   {"t", settings.Topic{Queues: 4}, []string{"5 queues", "4"}},
			"several": {"new", settings.Topic{Type: "ODD", Queues: 5000, MaxBacklog: settings.Limit{Bytes: -1}}, []string{"ODD", "5000", "1024", "max_backlog"}},
			"name":    {"a b", settings.Topic{}, []string{"a b"}},
		} {
			_, err := b.PutTopic(t.Context(), c.topic, c.c)
			if !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, w := range c.says {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s: the error does not contain %q: %v", name, w, err)
				}
			}
		}
		if _, err := b.PutGroup(t.Context(), "x", settings.Group{MaxAttempts: -2, FIFORetryInterval: -1, Retry: backoff.Steps{-1}}); !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("group: %v", err)
		}
	})
}

// A topic is deleted while it is in use: senders and receivers get 40402. A later topic of the same
// name is new, also after a restart.
func TestDeleteTopicInUse(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, broker.Options{Dir: "data"}.On(fs))
	for round := range 5 {
		putTopic(t, b, "t", settings.Topic{})
		if info, err := b.Topic("t"); err != nil || info.StoredMessages != 0 {
			t.Fatalf("round %d: a new topic has %d messages, %v", round, info.StoredMessages, err)
		}
		var wg sync.WaitGroup
		var sent atomic.Int64
		inUse := make(chan struct{}) // closed when the topic is
		for range 4 {
			wg.Go(func() {
				for {
					r := b.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}})
					if errors.Is(r[0].Err, tidegate.ErrTopicNotFound) {
						return
					} else if r[0].Err != nil {
						t.Error(r[0].Err)
						return
					}
					if sent.Add(1) == 100 {
						close(inUse)
					}
				}
			})
			wg.Go(func() {
				for {
					ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Wait: time.Minute})
					if errors.Is(err, tidegate.ErrTopicNotFound) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					for _, err := range b.Ack(t.Context(), ds) {
						if err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
							t.Error(err)
						}
					}
				}
			})
		}
		<-inUse
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if err := b.DeleteGroup(t.Context(), "g"); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, broker.Options{Dir: "data"}.On(fs))
	if len(b.Topics()) != 0 || len(b.Groups()) != 0 || len(subscriptions(b)) != 0 {
		t.Errorf("left after a restart: %v %v %v", b.Topics(), b.Groups(), subscriptions(b))
	}
}

// The process ends during a deletion, before its response. A topic or group that still exists then
// has its progress.
func TestDeletionThatIsCutOffKeepsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []string{"topic", "group"} {
			fs := vfs.NewCrashableMem()
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			if err := b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))[0]; err != nil {
				t.Fatal(err)
			}
			release := holdWrites(b)
			done := make(chan error)
			go func() {
				if what == "topic" {
					done <- b.DeleteTopic(t.Context(), "t")
				} else {
					done <- b.DeleteGroup(t.Context(), "g")
				}
			}()
			synctest.Wait() // the progress is gone
			cut := fs.CrashClone(vfs.CrashCloneCfg{})
			release()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			b = open(t, broker.Options{Dir: "data"}.On(cut))
			if g, err := b.Group("g"); err != nil || len(g.Topics) != 1 || g.Topics[0].Backlog.Messages != 0 {
				t.Errorf("after a cut-off deletion of the %s: %+v, %v", what, g, err)
			}
		}
	})
}

func TestDeletedGroupEndsWaitingReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		done := make(chan error)
		go func() {
			_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Wait: time.Hour})
			done <- err
		}()
		synctest.Wait()
		if err := b.DeleteGroup(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
		if e, ok := errors.AsType[*tidegate.Error](<-done); !ok || e.Code != tidegate.CodeConsumerGroupNotFound {
			t.Errorf("the receive ended with %v", e)
		}
	})
}
