package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// fifo creates topic t and group g with two attempts and the given end. It returns functions that
// send messages named "group:n", and that receive.
func fifo(t *testing.T, b *broker.Broker, then settings.OnExhausted) (sends func(ids ...string), receives func() []*tidegate.Delivery) {
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
	putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 2, OnExhausted: then})
	return fifoOf(t, b)
}

func fifoOf(t *testing.T, b *broker.Broker) (sends func(ids ...string), receives func() []*tidegate.Delivery) {
	sends = func(ids ...string) {
		for _, id := range ids {
			group, _, _ := strings.Cut(id, ":")
			mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: group, Body: []byte(id)})
		}
	}
	receives = func() []*tidegate.Delivery {
		return receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Push: true, InvisibleDuration: time.Minute})
	}
	return sends, receives
}

func idsOf(ds []*tidegate.Delivery) string {
	var out []string
	for _, d := range ds {
		out = append(out, fmt.Sprintf("%s/%d", d.ID, d.Attempt))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// failDeliveries lets every delivery fail, to be due again at once.
func failDeliveries(t *testing.T, b *broker.Broker, ds []*tidegate.Delivery) {
	t.Helper()
	for _, d := range ds {
		settle(t, b, d, transport.Verdict{Kind: transport.Retry})
	}
	synctest.Wait()
}

func ackDeliveries(t *testing.T, b *broker.Broker, ds []*tidegate.Delivery) {
	t.Helper()
	ackDeliveriesNow(t, b, ds)
	synctest.Wait() // spilled messages are read back
}

func expectMessages(t *testing.T, got []*tidegate.Delivery, want string) []*tidegate.Delivery {
	t.Helper()
	assert.MustEqual(t, "received", idsOf(got), want)
	return got
}

func expectState(t *testing.T, b *broker.Broker, ready, inflight, waiting, parked, parkedGroups, blockedGroups int64) {
	t.Helper()
	g := assert.Value(b.Group("g"))(t)
	s := g.Topics[0]
	if s.Ready != ready || s.Inflight != inflight || s.WaitingRetry != waiting || s.Parked != parked || s.ParkedGroups != parkedGroups ||
		s.BlockedGroups != blockedGroups || s.Backlog.Messages != ready+inflight+waiting+parked+s.Blocked || (s.Blocked > 0) && blockedGroups == 0 {
		t.Errorf("the group is %+v; want ready %d, in flight %d, waiting %d, parked %d in %d, blocked %d", s, ready, inflight, waiting, parked, parkedGroups, blockedGroups)
	}
}

// The last attempt of a simple consumer that returns the message parks it. The handle that the
// change of the invisible duration issued is then the one that a request for a dead letter repeats.
func TestReturnOfTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		sends, receives := fifo(t, b, settings.OnExhaustedPark)
		sends("a:1")
		failDeliveries(t, b, receives())
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		old := *d
		d.Handle = assert.Value(b.Extend(t.Context(), d, 0, false))(t)
		expectState(t, b, 0, 0, 0, 1, 1, 0)
		_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
		assert.NoError(t, err, "with the new handle")
		_, err = b.Settle(t.Context(), &old, transport.Verdict{Kind: transport.DeadLetter})
		assert.Is(t, "with the old handle", err, tidegate.ErrInvalidHandle)
	})
}

// A timeout parks too, and a parked message is not parked twice. The failed message can become a
// dead letter, and the others continue without it.
func TestParkedByTimeout(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends, receives := fifo(t, b, settings.OnExhaustedPark)
		sends("a:1", "a:2", "b:1")
		expectMessages(t, receives(), "a:1/1 b:1/1")
		time.Sleep(time.Minute + 3*time.Second)
		synctest.Wait()
		expectMessages(t, receives(), "a:1/2 b:1/2")
		time.Sleep(time.Hour)
		synctest.Wait()
		expectMessages(t, receives(), "")
		expectState(t, b, 0, 0, 0, 3, 2, 0)
		page, err := b.Parked("g", status.ParkedQuery{Topic: "t", Limit: 1})
		if err != nil || len(page.Groups) != 1 || page.Groups[0].MessageGroup != "a" || page.Next == "" || !strings.Contains(page.Groups[0].Reason, "the last delivery timed out") {
			t.Fatalf("the first page: %+v, %v", page, err)
		}
		page, err = b.Parked("g", status.ParkedQuery{Limit: 1, After: page.Next})
		assert.MustThat(t, err == nil && len(page.Groups) == 1 && page.Groups[0].MessageGroup == "b" && page.Next == "",
			"the second page: %+v, %v", page, err)
		done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true})
		assert.MustThat(t, err == nil && done == (status.ParkedRedrive{MessageGroups: 2, Messages: 3}), "%+v, %v", done, err)
		synctest.Wait()
		ackDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 2)
		expectState(t, b, 0, 0, 0, 0, 0, 0)
	})
}

// A parked message group with very many successors neither fills memory nor delays other groups.
// After a redrive all its messages are delivered in order.
func TestParkedMessageGroupIsLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = consume.MaxHeld + 1000
		b, fs := openData(t)
		sends, receives := fifo(t, b, settings.OnExhaustedPark)
		for from := 0; from < n; from += 1000 {
			var ms []*tidegate.Message
			for i := from; i < min(n, from+1000); i++ {
				ms = append(ms, &tidegate.Message{ID: fmt.Sprint("a:", i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
			}
			mustSend(t, b, ms...)
		}
		d := expectMessages(t, receives(), "a:0/1")
		expectMessages(t, receives(), "") // as far as messages are held in memory
		failDeliveries(t, b, d)
		failDeliveries(t, b, expectMessages(t, receives(), "a:0/2"))
		sends("b:1")
		ackDeliveries(t, b, expectMessages(t, receives(), "b:1/1"))
		expectState(t, b, 0, 0, 0, n, 1, 0)
		leases := func() (sum int) {
			for _, s := range subscriptions(b) {
				s.Look(func(p *consume.Progress) {
					for _, n := range p.Counts() {
						sum += int(n)
					}
				})
			}
			return sum
		}
		assert.Equal(t, "leases in memory", leases(), 1)
		b = reopen(t, b, fs)
		_, receives = fifoOf(t, b)
		expectState(t, b, 0, 0, 0, n, 1, 0)
		assert.Must(t, assert.Err(b.RedriveParked(t.Context(), "g", status.ParkedSelection{})))
		for i := range 2 * consume.FetchLimit {
			ackDeliveries(t, b, expectMessages(t, receives(), fmt.Sprintf("a:%d/1", i)))
			l := leases()
			assert.MustThat(t, l >= 1 && l <= consume.FetchLimit+consume.FewHeld, "%d leases in memory", l)
		}
		expectState(t, b, n-2*consume.FetchLimit, 0, 0, 0, 0, 0)
	})
}

// Only a FIFO group has an order to keep.
func TestOnExhaustedIsForFIFO(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, c := range []settings.Group{{OnExhausted: settings.OnExhaustedPark}, {OnExhausted: settings.OnExhaustedBlock}, {FIFO: true, OnExhausted: "stop"}} {
		_, err := b.PutGroup(t.Context(), "g", c)
		assert.That(t, err != nil && strings.Contains(err.Error(), "on_exhausted is "+fmt.Sprintf("%q", c.OnExhausted)), "%+v: %v", c, err)
	}
}

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
				assert.Must(t, err)
			}
			if own.IntN(3) == 0 {
				assert.Must(t, assert.Err(b.RedriveParked(t.Context(), "g", status.ParkedSelection{})))
				p.responded(func() {})
			}
			if done := acked["0"]+acked["1"]+acked["2"] == groups*each; done || own.IntN(30) == 0 {
				p.unlessFailed(func() { rewinding = true })
				assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
				p.responded(func() {
					before, acked, rewinding = acked, map[string]int{}, false
				})
			}
		}
	})
	assert.Must(t, assert.Err(b.RedriveParked(t.Context(), "g", status.ParkedSelection{})))
	last := map[string]int{}
	request.Wait = 100 * time.Millisecond // some is read back meanwhile
	for {
		ds := receive(t, b, request)
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			var g, n int
			assert.Must(t, assert.Err(fmt.Sscanf(d.ID, "%d:%d", &g, &n)))
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
	assert.That(t, s.Backlog.Messages == s.Ready+s.Inflight && s.Inflight <= groups && s.Parked == 0 && (s.Inflight != 0 || s.Ready <= 0),
		"the group is left with %+v", s)
}

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
			assert.Must(t, serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Minute))
		}, 1},
		"done": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
		}, 0},
	} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Hour)}})
			putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock, NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}})
			mustSend(t, b, &tidegate.Message{ID: "0", Topic: "t", MessageGroup: "a", Body: []byte("x")})
			settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: 3 * time.Second})
			elapse(c.wait)
			c.meanwhile(t, b)
			before := subscriptionOf(t, b, "g")
			assert.MustThat(t, before.BlockedGroups == c.blocked, "before: %+v", before)
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
				assert.MustThat(t, d.ID == fmt.Sprint(i), "%s was delivered, want %d", d.ID, i)
				ackDeliveries(t, b, []*tidegate.Delivery{d})
			}
			s := subscriptionOf(t, b, "g")
			assert.That(t, s.BlockedGroups == 0 && s.Overtaken == 0 && s.Backlog == (status.Backlog{}), "at last: %+v", s)
		})
	}
}

// Messages of parked and blocked message groups are not ready, also if no receive has reached them
// yet: in the state of one group, of all groups, in the survey and in the metrics. Ready are those
// that receives get.
func TestReadyIsWhatReceivesGet(t *testing.T) {
	t.Parallel()
	for _, then := range []settings.OnExhausted{settings.OnExhaustedPark, settings.OnExhaustedBlock} {
		subtest(t, string(then), func(t *testing.T) {
			b, fs := openData(t)
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
					assert.That(t, got == want && inflight == 0 && backlog == ready+waiting+parked+blocked,
						"%s, %s: %+v, %d in flight, backlog %d; want %+v", when, of, got, inflight, backlog, want)
				}
				groups := append(b.Groups(), func() status.Group { g, _ := b.Group("g"); return g }())
				for _, g := range groups {
					s := g.Topics[0]
					check("the group", s.Ready, s.Inflight, s.WaitingRetry, s.Parked, s.Blocked, s.ParkedGroups, s.BlockedGroups, s.Backlog.Messages)
					assert.That(t, s.Why == why, "%s: why is %q, want %q", when, s.Why, why)
				}
				survey := serve(b).Survey()
				row := survey.Groups[0]
				check("the survey", row.Ready, row.Inflight, row.WaitingRetry, row.Parked, row.Blocked, row.ParkedGroups, row.BlockedGroups, row.Backlog.Messages)
				assert.That(t, row.Why == why && (row.UndeliveredMS > 0) == (ready > 0),
					"%s, the survey: why is %q, undelivered %d ms", when, row.Why, row.UndeliveredMS)
				sum := survey.Totals
				check("the totals", sum.Ready, sum.Inflight, sum.WaitingRetry, sum.Parked, sum.Blocked, sum.ParkedGroups, sum.BlockedGroups, sum.Backlog.Messages)
				m := serve(b).Stats().Groups[0]
				check("the metrics", m.Ready, m.Inflight, m.WaitingRetry, m.Parked, m.Blocked, m.ParkedGroups, m.BlockedGroups, m.Backlog.Messages)
				assert.That(t, (m.UndeliveredMS > 0) == (ready > 0) && m.OldestMS != 0,
					"%s, the metrics: the oldest undelivered message is %d ms old, the oldest %d", when, m.UndeliveredMS, m.OldestMS)
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
				assert.MustThat(t, err == nil && len(page.Groups) == 1 && page.Groups[0].Messages == want,
					"the list is %+v, %v; want one with %d messages", page, err, want)
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
			settle(t, b, failed, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "no such account"})
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
			assert.Equal(t, "after a restart the message group is", (list(20).Reason == "no such account"), parks)
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
			assert.Equal(t, "messages were received", len(ds), 3)
			ackDeliveries(t, b, ds)
			expect("after a receive", 0, 19, state)
			send("a", 5)
			expect("with further messages", 0, 24, state)
			if parks {
				done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{})
				assert.That(t, err == nil && done == (status.ParkedRedrive{MessageGroups: 1, Messages: 25}), "redriven: %+v, %v", done, err)
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
			settle(t, b, take(t, b, 1, "*")[0], transport.Verdict{Kind: transport.Retry, Delay: time.Hour})
		},
	} {
		subtest(t, want, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}})
			putGroup(t, b, "g", settings.Group{})
			take(t, b, 1, "*")
			prepare(t, b)
			elapse(after[want])
			assert.Equal(t, "why is", subscriptionOf(t, b, "g").Why, want)
			for _, row := range serve(b).Survey().Groups {
				assert.That(t, row.Group != "g" || row.Why == want, "in the survey why is %q: %+v", row.Why, row)
			}
		})
	}
}

// A message that is consumed again can become a dead letter again, also if the process ends. It
// leaves the group permanently then.
func TestRewoundMessageDiesAgain(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		for round := 1; round <= 3; round++ {
			failDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true}))
			assert.MustEqual(t, "dead letters in round", len(receiveAll(t, b, "%DLQ%g")), round)
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{0: 0}})))
			if round == 2 {
				b = reopen(t, b, fs)
			}
		}
	})
}

// A rewind on a large backlog makes sends wait (RocketMQ: sending retry and throttling), and one to
// the end frees them; neither is mistaken for consuming.
func TestRewindThrottles(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}})
		for range 12 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))
			time.Sleep(time.Second)
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
		r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]
		if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || !errors.Is(r.Err, tidegate.ErrThrottled) || e.RetryAfter < 3*time.Second || e.RetryAfter > 6*time.Second {
			t.Errorf("sent to a rewound topic: %v", r.Err) // 4 too many, drained at 1 a second
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Latest: true})))
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		rate, _ := subscriptions(b)[0].Drained(time.Now())
		assert.That(t, rate <= 1.5, "skipping counted as draining: %v a second", rate)
	})
}

func TestRewindRejects(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	putGroup(t, b, "g", settings.Group{})
	for want, call := range map[string]func() ([]status.QueueRewind, error){
		"40403": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "h", "t", status.Position{Latest: true})
		},
		"40402": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "u", status.Position{Latest: true})
		},
		"give one": func() ([]status.QueueRewind, error) { return b.Rewind(t.Context(), "g", "t", status.Position{}) },
		`["earliest" `: func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Latest: true, Earliest: true})
		},
		"queue 2 does not exist": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{2: 0}})
		},
		"give 0 to 0": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{1: 1}})
		},
	} {
		_, err := call()
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%v; want %s", err, want)
	}
	if g, _ := b.Group("h"); g.Name != "" {
		t.Error("a rewind created a group")
	}
	// A group that never received begins at the requested position.
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Latest: true})))
	assert.Equal(t, "received", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})), 0)
	// An empty list of offsets is the same in every form.
	done, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true, Offsets: map[int]int64{}})
	assert.That(t, err == nil && len(done) == 2, "%+v, %v", done, err)
}

func ackDeliveriesNow(t *testing.T, b *broker.Broker, ds []*tidegate.Delivery) {
	t.Helper()
	for _, err := range b.Ack(t.Context(), ds) {
		assert.Must(t, err)
	}
}

// A group is rewound while its topic gets more queues.
func TestRewindWhileATopicGrows(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		growQueues(t, b, "t", 3)
		for i := range 9 {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		for _, to := range []status.Position{{Latest: true}, {Earliest: true}, {Offsets: map[int]int64{2: 1}}} {
			assert.NoError(t, assert.Err(b.Rewind(t.Context(), "g", "t", to)))
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
		assert.That(t, len(ds) == 8, "%d messages of 8 are delivered", len(ds))
	})
}

// RocketMQ: sending retry and throttling: "If the consumer group is required to consume from an
// earlier moment, the storage pressure on the queue surges and throttling is triggered"
func TestColdReadsThrottleSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size, stored = 1000, 8000
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{MaxColdReads: 300 * size, ColdDistance: 500 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "other", settings.Topic{})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: make([]byte, size)})[0].Err
		}
		left := map[string]int{}
		get := func(group string, n int) {
			t.Helper()
			for n > 0 {
				ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: min(n, 32), InvisibleDuration: time.Hour})
				assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
				n -= len(ds)
				left[group] -= len(ds)
			}
		}
		get("late", 0)
		for range stored {
			assert.Must(t, send("t"))
			left["idle"]++
			left["late"]++
		}
		receive(t, b, transport.ReceiveRequest{Group: "idle", Topic: "t", InvisibleDuration: time.Hour})

		// A group that lags and reads nothing, or little, rejects nothing.
		time.Sleep(time.Minute)
		for range 20 {
			get("late", 20)
			time.Sleep(time.Second)
			assert.Must(t, send("t"), "a group reads 20 messages a second")
			left["late"]++
		}

		// It catches up, three times as fast as the limit.
		refused, taken, ended := 0, 0, 0
		for left["late"] > 0 {
			get("late", min(100, left["late"]))
			time.Sleep(100 * time.Millisecond)
			switch err := send("t"); {
			case err == nil:
				taken++
				left["late"]++
				if refused > 0 && ended == 0 {
					ended = left["late"]
				}
			case !errors.Is(err, tidegate.ErrThrottled):
				t.Fatal(err)
			default:
				refused++
				e, _ := errors.AsType[*tidegate.Error](err)
				for _, w := range []string{`cold reads of "t" is`, "the limit is 300000 bytes/s", "again at 240000 bytes/s"} {
					assert.MustThat(t, strings.Contains(err.Error(), w), "the text does not contain %q: %v", w, err)
				}
				assert.That(t, e.RetryAfter > 0, "no push-back: %v", err)
			}
			if left["late"] < 20 {
				break
			}
			assert.Must(t, send("other"), "another topic")
		}
		if refused < 50 || ended == 0 || ended > 500 {
			t.Errorf("%d rejected, %d accepted, accepted again when %d were left; want most rejected until about 400 are left", refused, taken, ended)
		}
	})
}

// A group at the end of its queue is rewound. Sends are rejected while it reads old messages, until
// it is near the end again. RocketMQ: sending retry and throttling: "a consumer group starts
// consuming messages from the maximum offset of the queue. If the consumer group is required to
// consume from an earlier moment, the storage pressure on the queue surges and throttling is
// triggered"
func TestRewindThrottlesSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size, stored, each = 1000, 6000, 100
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{MaxColdReads: 300 * size, ColdDistance: 500 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
		send := func() error {
			return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
		}
		consume := func(n int) (got int) {
			for got < n {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: min(n-got, 32), InvisibleDuration: time.Hour})
				if len(ds) == 0 {
					return got
				}
				assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
				got += len(ds)
			}
			return got
		}
		for range stored / each { // the group keeps up
			for range each {
				assert.Must(t, send())
			}
			consume(each)
			time.Sleep(time.Second)
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
		refusedAt, takenAt := 0, 0 // how far behind the group was at the first rejection, and when sends were taken again
		for left := stored; left > 0; {
			n := consume(each)
			left -= n
			time.Sleep(100 * time.Millisecond)
			switch err := send(); {
			case err == nil:
				if refusedAt > 0 && takenAt == 0 {
					takenAt = left
				}
				left++
			case !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "cold reads"):
				t.Fatal(err)
			case refusedAt == 0:
				refusedAt = left
			case takenAt > 0:
				t.Errorf("refused again when %d are left", left)
			}
			if n == 0 || left < each/2 {
				break
			}
		}
		assert.That(t, refusedAt >= stored*3/4 && takenAt != 0 && takenAt <= 500,
			"rejected from a lag of %d messages on, accepted again at %d; want soon after the rewind, and within 500", refusedAt, takenAt)
	})
}
