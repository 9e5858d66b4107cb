package broker_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// toGroup redrives all dead letters of g to g alone.
func toGroup(t *testing.T, b *broker.Broker, sel status.DeadLetterSelection) status.DeadLetterRedrive {
	t.Helper()
	sel.ToGroupOnly = true
	done, err := b.RedriveDeadLetters(t.Context(), "g", sel)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// fateOfGroup returns the fate of the message m of t in a group.
func fateOfGroup(t *testing.T, b *broker.Broker, group string) status.Fate {
	t.Helper()
	trace, err := serve(b).Trace("t", status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m"}}, 0, func(name string) bool { return name == group })
	if err != nil || len(trace.Messages) != 1 || len(trace.Messages[0].Groups) != 1 {
		t.Fatalf("%+v, %v", trace, err)
	}
	return trace.Messages[0].Groups[0]
}

// nothing fails the test if a group receives a message of a topic.
func nothing(t *testing.T, b *broker.Broker, group, topic string) {
	t.Helper()
	if ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Max: 32}); len(ds) > 0 {
		t.Errorf("group %s received %s of %s", group, ds[0].ID, ds[0].Topic)
	}
}

// A redrive to one group is received by this group alone, as a message of its topic. The letter
// keeps its ID, origin and number of redrives through further failures, redrives and a restart.
func TestRedriveToOneGroup(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]settings.Group{
		"no retry topics": {}, "latest": {Start: settings.StartLatest},
		"retry topics":        {RetryTopic: settings.RetryTopic{Enabled: true, DeadLetterTopic: "%DLQ%g"}},
		"shared retry topics": {RetryTopic: settings.RetryTopic{Enabled: true, Naming: settings.RetryNaming272, DeadLetterTopic: "%DLQ%g"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 2})
				putGroup(t, b, "g", group)
				nothing(t, b, "g", "t")
				nothing(t, b, "h", "t")
				m := &tidegate.Message{ID: "m", Topic: "t", Tag: "tag", Keys: []string{"k"}, Properties: map[string]string{"p": "v"}, Body: []byte("x")}
				kill(t, b, m)
				ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
				for round := 1; round <= 3; round++ {
					if done := toGroup(t, b, status.DeadLetterSelection{}); done != (status.DeadLetterRedrive{Redriven: 1}) {
						t.Fatalf("round %d: %+v", round, done)
					}
					if f := fateOfGroup(t, b, "g"); f.Topic != "%RETRY%g_t" || f.State != "new" || f.DeadLetter != nil {
						t.Errorf("round %d: the trace has %+v", round, f)
					}
					if left := listLetters(t, b, status.DeadLetterFilter{}); len(left) > 0 {
						t.Errorf("round %d: %v are dead letters still", round, left)
					}
					if round == 2 {
						b = reopen(t, b, fs)
					}
					nothing(t, b, "h", "t")
					d := one(t, b, "g", "t")
					if d.ID != "m" || d.Topic != "t" || d.Attempt != 1 || d.Tag != "tag" || d.Properties["p"] != "v" || d.Properties[protocol.PropertyDeadLetterRedrives] != fmt.Sprint(round) {
						t.Fatalf("round %d: %+v", round, d)
					}
					if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute}); err != nil {
						t.Fatal(err)
					}
					elapse(time.Minute)
					if d = one(t, b, "g", "t"); d.Attempt != 2 || d.Topic != "t" {
						t.Errorf("round %d: after a retry %+v", round, d)
					}
					if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"}); err != nil {
						t.Fatal(err)
					}
					if f := fateOfGroup(t, b, "g"); f.State != "dead_letter" || f.DeadLetter == nil || f.DeadLetter.MessageID != "m" {
						t.Errorf("round %d: the trace has %+v", round, f)
					}
					page, err := b.DeadLetters("g", status.DeadLetterQuery{})
					if err != nil || len(page.DeadLetters) != 1 {
						t.Fatalf("round %d: %+v, %v", round, page, err)
					}
					l := page.DeadLetters[0]
					if l.MessageID != "m" || l.Origin.Topic != "t" || l.Origin.MessageID != "m" || l.Origin.Redrives != round || l.Origin.Attempts != 2 {
						t.Errorf("round %d: the dead letter is %+v", round, l)
					}
				}
				if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Redriven != 1 {
					t.Fatalf("to all groups: %+v, %v", done, err)
				}
				for _, g := range []string{"g", "h"} {
					d := one(t, b, g, "t")
					delete(d.Properties, protocol.PropertyDeadLetterRedrives)
					if d.ID != "m" || !maps.Equal(d.Properties, m.Properties) {
						t.Errorf("group %s received %+v", g, d.Message)
					}
					ackDeliveries(t, b, []*tidegate.Delivery{d})
				}
				nothing(t, b, "g", "t")
			})
		})
	}
}

// A receive that waits for the topic before the first redrive gets the letter at once.
func TestRedriveToOneGroupWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		kill(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")}, &tidegate.Message{ID: "b", Topic: "t", Body: []byte("x")})
		begin := time.Now()
		got := make(chan string)
		for range 2 {
			go func() {
				ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Max: 1, Wait: time.Hour, InvisibleDuration: time.Minute})
				if err != nil || len(ds) != 1 || time.Since(begin) > 2*time.Second {
					got <- fmt.Sprint(ds, err, time.Since(begin))
					return
				}
				got <- ds[0].ID
			}()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		toGroup(t, b, status.DeadLetterSelection{})
		ids := []string{<-got, <-got}
		if slices.Sort(ids); !slices.Equal(ids, []string{"a", "b"}) {
			t.Errorf("the receives got %q", ids)
		}
	})
}

// A dead letter that cannot be sent to one group remains a dead letter. A dry run counts it.
func TestRedriveToOneGroupRejects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		long := strings.Repeat("l", 120)
		for _, name := range []string{"t", "u", long} {
			putTopic(t, b, name, settings.Topic{Queues: 1})
			kill(t, b, &tidegate.Message{ID: name[:1] + "1", Topic: name, Body: []byte("x")}, &tidegate.Message{ID: name[:1] + "2", Topic: name, Body: []byte("x")})
		}
		mustSend(t, b, &tidegate.Message{ID: "s", Topic: "%DLQ%g", Body: []byte("x")}) // without an origin
		if err := b.DeleteTopic(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
		want := status.DeadLetterRedrive{Redriven: 2, NoTarget: 5}
		if done := toGroup(t, b, status.DeadLetterSelection{DryRun: true}); done != want {
			t.Errorf("a dry run: %+v, want %+v", done, want)
		}
		if _, err := b.Topic("%RETRY%g_t"); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("after the dry run the topic exists: %v", err)
		}
		if done := toGroup(t, b, status.DeadLetterSelection{Limit: 1}); done.Redriven != 1 || done.Next == "" {
			t.Errorf("one letter: %+v", done)
		}
		if done := toGroup(t, b, status.DeadLetterSelection{Newest: true}); done != (status.DeadLetterRedrive{Redriven: 1, NoTarget: 5}) {
			t.Errorf("the others: %+v", done)
		}
		if left := listLetters(t, b, status.DeadLetterFilter{}); !slices.Equal(left, []string{"u1", "u2", "l1", "l2", "s"}) {
			t.Errorf("left are %v", left)
		}
		putGroup(t, b, "fifo", settings.Group{FIFO: true})
		for name, c := range map[string]struct {
			group string
			to    string
			code  tidegate.Code
			text  string
		}{
			"a FIFO group":     {"fifo", "", tidegate.CodeBadRequest, "FIFO"},
			"a target":         {"g", "t", tidegate.CodeBadRequest, "to_group_only"},
			"an unknown group": {"nobody", "", tidegate.CodeConsumerGroupNotFound, "nobody"},
		} {
			_, err := b.RedriveDeadLetters(t.Context(), c.group, status.DeadLetterSelection{ToGroupOnly: true, To: c.to})
			e, ok := errors.AsType[*tidegate.Error](err)
			if !ok || e.Code != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// The address settings of the original topic apply to redriven messages.
func TestRedriveToOneGroupByAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "DLA", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{MaxDeliveryAttempts: new(2), DeadLetterAddress: new("DLA")})
		mustSend(t, b, &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")})
		for round := range 2 {
			for range 2 {
				if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Reason: "no"}); err != nil {
					t.Fatal(err)
				}
			}
			page, err := b.DeadLetters("g", status.DeadLetterQuery{In: "DLA"})
			if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != "t" || page.DeadLetters[0].Origin.Attempts != 2 || page.DeadLetters[0].Origin.Redrives != round {
				t.Fatalf("round %d: %+v, %v", round, page, err)
			}
			if done := toGroup(t, b, status.DeadLetterSelection{In: "DLA"}); done.Redriven != 1 {
				t.Fatalf("round %d: %+v", round, done)
			}
		}
	})
}

// Whenever the power fails during redrives to one group: each message is among the dead letters or
// is delivered to the group once, and never to another group.
func TestRedriveToOneGroupAcrossPowerLoss(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(5), loseRedriveToGroup)
}

func loseRedriveToGroup(t *testing.T, seed uint64) {
	const n, pages = 60, 12
	topics := []string{"t", "u"}
	b := losePower(t, rand.New(rand.NewPCG(seed, 0)), pages, func(b *broker.Broker, p *powerCut) {
		for _, topic := range topics {
			putTopic(t, b, topic, settings.Topic{Queues: 2})
			nothing(t, b, "h", topic)
			for i := range n / 2 {
				mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(topic, i), Topic: topic, Body: []byte("x")})
			}
			for i := 0; i < n/2; {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: topic, Max: 32, InvisibleDuration: time.Hour})
				for _, d := range ds {
					if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
						t.Fatal(err)
					}
				}
				i += len(ds)
			}
			for i := 0; i < n/2; {
				ds := receive(t, b, transport.ReceiveRequest{Group: "h", Topic: topic, Max: 32, InvisibleDuration: time.Hour})
				ackDeliveriesNow(t, b, ds)
				i += len(ds)
			}
		}
		for page, after := 0, ""; page == 0 || after != ""; page++ {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n / pages, After: after, ToGroupOnly: true, Newest: seed%2 == 0})
			if err != nil {
				t.Fatal(err)
			}
			after = done.Next
			p.responded(func() {})
		}
	})
	checkClasses(t, b, "g", "")
	seen := map[string]int{}
	for _, id := range listAllLetters(t, b) {
		seen[id]++
	}
	for _, topic := range topics {
		nothing(t, b, "h", topic)
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: topic, Max: 32, InvisibleDuration: time.Hour})
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				seen[d.ID]++
				if d.Topic != topic || !strings.HasPrefix(d.ID, topic) || d.Properties[protocol.PropertyDeadLetterRedrives] != "1" {
					t.Errorf("a receive from %s has %s of %s with %v", topic, d.ID, d.Topic, d.Properties)
				}
			}
			ackDeliveriesNow(t, b, ds)
		}
	}
	if len(seen) != n || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("%d messages of %d, %v", len(seen), n, seen)
	}
}

func listAllLetters(t *testing.T, b *broker.Broker) []string {
	t.Helper()
	page, err := b.DeadLetters("g", status.DeadLetterQuery{Limit: 1000})
	if err != nil || page.Next != "" {
		t.Fatalf("%+v, %v", page, err)
	}
	return letterIDs(page)
}
