package broker_test

import (
	"fmt"
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

// A blocked message group is still blocked after a restart, in every state of its head, also if the
// group has no later message. Retention keeps the head.
func TestBlockedAcrossARestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait      time.Duration                        // after the head has blocked
		meanwhile func(t *testing.T, b *broker.Broker) // after that, and before the restart
		blocked   int64
	}{
		"waiting": {0, func(*testing.T, *broker.Broker) {}, 1},
		"ready":   {3 * time.Second, func(*testing.T, *broker.Broker) {}, 1},
		"in flight": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			one(t, b, "g", "t")
		}, 1},
		"released": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			serve(b).Return(t.Context(), []*tidegate.Delivery{one(t, b, "g", "t")})
			synctest.Wait()
		}, 1},
		"negatively acknowledged": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Minute); err != nil {
				t.Fatal(err)
			}
		}, 1},
		"done": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Hour)}})
				putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock, NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}})
				mustSend(t, b, &tidegate.Message{ID: "0", Topic: "t", MessageGroup: "a", Body: []byte("x")})
				if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: 3 * time.Second}); err != nil {
					t.Fatal(err)
				}
				elapse(c.wait)
				c.meanwhile(t, b)
				before := subscriptionOf(t, b, "g")
				if before.BlockedGroups != c.blocked {
					t.Fatalf("before: %+v", before)
				}
				b = reopen(t, b, fs)
				synctest.Wait()
				after := subscriptionOf(t, b, "g")
				if after.BlockedGroups != c.blocked || after.Ready != before.Ready || after.Inflight != before.Inflight || after.WaitingRetry != before.WaitingRetry {
					t.Fatalf("after the restart: %+v, before %+v", after, before)
				}
				if c.blocked == 0 {
					return
				}
				for i := 1; i <= 2; i++ {
					mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
				}
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Second}) // skips them
				elapse(90 * time.Minute)
				for i := range 3 {
					d := one(t, b, "g", "t")
					if d.ID != fmt.Sprint(i) {
						t.Fatalf("%s was delivered, want %d", d.ID, i)
					}
					ackDeliveries(t, b, []*tidegate.Delivery{d})
				}
				if s := subscriptionOf(t, b, "g"); s.BlockedGroups != 0 || s.Overtaken != 0 || s.Backlog != (status.Backlog{}) {
					t.Errorf("at last: %+v", s)
				}
			})
		})
	}
}

// Messages of parked and blocked message groups are not ready, also if no receive has reached them
// yet: in the state of one group, of all groups, in the survey and in the metrics. Ready are those
// that receives get.
func TestReadyIsWhatReceivesGet(t *testing.T) {
	t.Parallel()
	for _, then := range []settings.OnExhausted{settings.OnExhaustedPark, settings.OnExhaustedBlock} {
		t.Run(string(then), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
				putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: then, FIFORetryInterval: settings.Duration(time.Hour)})
				parks := then == settings.OnExhaustedPark
				expect := func(when string, ready, behind int64, why string) {
					t.Helper()
					want := status.Subscription{Ready: ready, WaitingRetry: 1, Blocked: behind, BlockedGroups: 1}
					if parks {
						want = status.Subscription{Ready: ready, Parked: 1 + behind, ParkedGroups: 1}
					}
					if behind < 0 {
						want = status.Subscription{Ready: ready}
					}
					check := func(of string, ready, inflight, waiting, parked, blocked, parkedGroups, blockedGroups, backlog int64) {
						t.Helper()
						got := status.Subscription{Ready: ready, WaitingRetry: waiting, Parked: parked, Blocked: blocked, ParkedGroups: parkedGroups, BlockedGroups: blockedGroups}
						if got != want || inflight != 0 || backlog != ready+waiting+parked+blocked {
							t.Errorf("%s, %s: %+v, %d in flight, backlog %d; want %+v", when, of, got, inflight, backlog, want)
						}
					}
					groups := append(b.Groups(), func() status.Group { g, _ := b.Group("g"); return g }())
					for _, g := range groups {
						s := g.Topics[0]
						check("the group", s.Ready, s.Inflight, s.WaitingRetry, s.Parked, s.Blocked, s.ParkedGroups, s.BlockedGroups, s.Backlog.Messages)
						if s.Why != why {
							t.Errorf("%s: why is %q, want %q", when, s.Why, why)
						}
					}
					survey := serve(b).Survey()
					row := survey.Groups[0]
					check("the survey", row.Ready, row.Inflight, row.WaitingRetry, row.Parked, row.Blocked, row.ParkedGroups, row.BlockedGroups, row.Backlog.Messages)
					if row.Why != why || (row.UndeliveredMS > 0) != (ready > 0) {
						t.Errorf("%s, the survey: why is %q, undelivered %d ms", when, row.Why, row.UndeliveredMS)
					}
					sum := survey.Totals
					check("the totals", sum.Ready, sum.Inflight, sum.WaitingRetry, sum.Parked, sum.Blocked, sum.ParkedGroups, sum.BlockedGroups, sum.Backlog.Messages)
					m := serve(b).Stats().Groups[0]
					check("the metrics", m.Ready, m.Inflight, m.WaitingRetry, m.Parked, m.Blocked, m.ParkedGroups, m.BlockedGroups, m.Backlog.Messages)
					if (m.UndeliveredMS > 0) != (ready > 0) || m.OldestMS == 0 {
						t.Errorf("%s, the metrics: the oldest undelivered message is %d ms old, the oldest %d", when, m.UndeliveredMS, m.OldestMS)
					}
				}
				send := func(group string, n int) {
					for range n {
						mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: group, Body: []byte("x")})
					}
					time.Sleep(time.Second)
				}
				list := func(want int64) status.ParkedGroup {
					t.Helper()
					page, err := b.Parked("g", status.ParkedQuery{State: map[bool]string{true: "parked", false: "blocked"}[parks]})
					if err != nil || len(page.Groups) != 1 || page.Groups[0].Messages != want {
						t.Fatalf("the list is %+v, %v; want one with %d messages", page, err, want)
					}
					if other, err := b.Parked("g", status.ParkedQuery{State: map[bool]string{true: "blocked", false: "parked"}[parks]}); err != nil || len(other.Groups) != 0 {
						t.Errorf("the list of the other state is %+v, %v", other, err)
					}
					return page.Groups[0]
				}
				state := "blocked"
				if parks {
					state = "parked"
				}
				send("a", 17)
				failed := one(t, b, "g", "t") // takes one message: no receive reaches the others
				if _, err := b.Settle(t.Context(), failed, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "no such account"}); err != nil {
					t.Fatal(err)
				}
				expect("after the failure", 0, 16, state)
				if g := list(17); g.MessageGroup != "a" || g.State != state || g.MessageID != failed.ID || g.Reason != "no such account" || g.Attempts != 1 || g.Since.IsZero() == parks || g.Due.IsZero() != parks {
					t.Errorf("the message group is %+v", g)
				}
				send("b", 1)
				send("a", 3)
				send("c", 1)
				send("d", 1)
				expect("with ready messages between", 3, 19, state)
				b = reopen(t, b, fs)
				synctest.Wait()
				expect("after a restart", 3, 19, state)
				if g := list(20); (g.Reason == "no such account") != parks {
					t.Errorf("after a restart the message group is %+v", g)
				}
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
				if len(ds) != 3 {
					t.Errorf("%d messages were received, want 3", len(ds))
				}
				ackDeliveries(t, b, ds)
				expect("after a receive", 0, 19, state)
				send("a", 5)
				expect("with further messages", 0, 24, state)
				if parks {
					done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{})
					if err != nil || done != (status.ParkedRedrive{MessageGroups: 1, Messages: 25}) {
						t.Errorf("redriven: %+v, %v", done, err)
					}
				} else {
					elapse(time.Hour)
					ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
				}
				synctest.Wait()
				left := int64(24)
				if parks {
					left = 25
				}
				expect("after the end", left, -1, "no_consumer")
			})
		})
	}
}

// Why is the first fact that explains why a group does not consume. The broker computes it in one
// place for the group, the survey and the command line.
func TestWhyAGroupDoesNotConsume(t *testing.T) {
	t.Parallel()
	send := func(t *testing.T, b *broker.Broker, n int) {
		for range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Tag: "a", Body: []byte("x")})
		}
	}
	take := func(t *testing.T, b *broker.Broker, n int, tag string) []*tidegate.Delivery {
		return receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: n, InvisibleDuration: time.Hour, Filter: tidegate.Filter{Expression: tag}})
	}
	after := map[string]time.Duration{"held": time.Minute}
	for want, prepare := range map[string]func(*testing.T, *broker.Broker){
		"idle": func(t *testing.T, b *broker.Broker) {
			send(t, b, 1)
			ackDeliveries(t, b, take(t, b, 1, "*"))
		},
		"filtered": func(t *testing.T, b *broker.Broker) {
			send(t, b, 2)
			take(t, b, 1, "other")
		},
		"throttled": func(t *testing.T, b *broker.Broker) {
			putGroup(t, b, "other", settings.Group{})
			receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
			send(t, b, 10)
			ackDeliveries(t, b, take(t, b, 32, "*"))
			serve(b).Survey() // the limits see the backlog of the other group
		},
		"no_consumer": func(t *testing.T, b *broker.Broker) { send(t, b, 1) },
		"held": func(t *testing.T, b *broker.Broker) {
			send(t, b, 2)
			take(t, b, 1, "*")
		},
		"working": func(t *testing.T, b *broker.Broker) {
			send(t, b, 2)
			take(t, b, 1, "*")
		},
		"retrying": func(t *testing.T, b *broker.Broker) {
			send(t, b, 1)
			if _, err := b.Settle(t.Context(), take(t, b, 1, "*")[0], transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}})
				putGroup(t, b, "g", settings.Group{})
				take(t, b, 1, "*")
				prepare(t, b)
				elapse(after[want])
				if s := subscriptionOf(t, b, "g"); s.Why != want {
					t.Errorf("why is %q: %+v", s.Why, s)
				}
				for _, row := range serve(b).Survey().Groups {
					if row.Group == "g" && row.Why != want {
						t.Errorf("in the survey why is %q: %+v", row.Why, row)
					}
				}
			})
		})
	}
}
