package broker_test

import (
	"fmt"
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
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
			t.Fatal(err)
		}
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
	if idsOf(got) != want {
		t.Fatalf("received %q, want %q", idsOf(got), want)
	}
	return got
}

func expectState(t *testing.T, b *broker.Broker, ready, inflight, waiting, parked, parkedGroups, blockedGroups int64) {
	t.Helper()
	g, err := b.Group("g")
	if err != nil {
		t.Fatal(err)
	}
	s := g.Topics[0]
	if s.Ready != ready || s.Inflight != inflight || s.WaitingRetry != waiting || s.Parked != parked || s.ParkedGroups != parkedGroups ||
		s.BlockedGroups != blockedGroups || s.Backlog.Messages != ready+inflight+waiting+parked+s.Blocked || (s.Blocked > 0) && blockedGroups == 0 {
		t.Errorf("the group is %+v; want ready %d, in flight %d, waiting %d, parked %d in %d, blocked %d", s, ready, inflight, waiting, parked, parkedGroups, blockedGroups)
	}
}

// In a parked message group the failed message and its successors wait in order, and new messages
// join the end. Other message groups continue. A restart changes nothing. A redrive delivers the
// messages in order, the failed one first, with attempts from 1 on.
func TestParkedMessageGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		sends, receives := fifo(t, b, settings.OnExhaustedPark)
		sends("a:1", "a:2", "b:1", "a:3", "b:2")
		ds := expectMessages(t, receives(), "a:1/1 b:1/1")
		failDeliveries(t, b, ds[:1])
		failDeliveries(t, b, ds[1:])
		ds = expectMessages(t, receives(), "a:1/2 b:1/2")
		slices.SortFunc(ds, func(x, y *tidegate.Delivery) int { return strings.Compare(x.ID, y.ID) })
		ackDeliveries(t, b, ds[1:])
		failDeliveries(t, b, ds[:1])
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry}); err == nil {
			t.Error("the handle of a parked message is accepted")
		}
		ackDeliveries(t, b, expectMessages(t, receives(), "b:2/1"))
		sends("a:4", "b:3")
		ackDeliveries(t, b, expectMessages(t, receives(), "b:3/1"))
		expectState(t, b, 0, 0, 0, 4, 1, 0)
		page, err := b.Parked("g", status.ParkedQuery{})
		if err != nil || len(page.Groups) != 1 {
			t.Fatalf("parked: %+v, %v", page, err)
		}
		p := page.Groups[0]
		if p.MessageGroup != "a" || p.Topic != "t" || p.MessageID != "a:1" || p.Messages != 4 || p.Attempts != 2 ||
			!strings.Contains(p.Reason, "delivery 2 failed") || !p.Since.Equal(time.Now()) {
			t.Errorf("parked: %+v", p)
		}

		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		sends, receives = fifoOf(t, b)
		expectMessages(t, receives(), "")
		time.Sleep(time.Hour)
		expectMessages(t, receives(), "")
		expectState(t, b, 0, 0, 0, 4, 1, 0)
		if page, err := b.Parked("g", status.ParkedQuery{}); err != nil || len(page.Groups) != 1 || !page.Groups[0].Since.Equal(p.Since) || page.Groups[0].Reason != p.Reason {
			t.Errorf("parked after a restart: %+v, %v; want %+v", page, err, p)
		}
		sends("a:5")
		expectMessages(t, receives(), "")

		done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{Topic: "t", MessageGroup: "a"})
		if err != nil || done != (status.ParkedRedrive{MessageGroups: 1, Messages: 5}) {
			t.Fatalf("redriven: %+v, %v", done, err)
		}
		sends("a:6")
		failDeliveries(t, b, expectMessages(t, receives(), "a:1/1"))
		ackDeliveries(t, b, expectMessages(t, receives(), "a:1/2"))
		for i := 2; i <= 6; i++ {
			ackDeliveries(t, b, expectMessages(t, receives(), fmt.Sprintf("a:%d/1", i)))
		}
		expectState(t, b, 0, 0, 0, 0, 0, 0)
		if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{Topic: "t", MessageGroup: "a"}); err == nil {
			t.Error("no message is parked, and its redrive is accepted")
		}
	})
}

// A timeout parks too, and a parked message is not parked twice. The failed message can become a
// dead letter, and the others continue without it.
func TestParkedByTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
		if err != nil || len(page.Groups) != 1 || page.Groups[0].MessageGroup != "b" || page.Next != "" {
			t.Fatalf("the second page: %+v, %v", page, err)
		}
		done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true})
		if err != nil || done != (status.ParkedRedrive{MessageGroups: 2, Messages: 3}) {
			t.Fatalf("%+v, %v", done, err)
		}
		synctest.Wait()
		ackDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
		expectState(t, b, 0, 0, 0, 0, 0, 0)
	})
}

// A blocked message is retried without end at the fixed interval, and none of its group passes it.
// Other groups continue. A change of the setting applies to blocked messages.
func TestBlockedMessageGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		sends, receives := fifo(t, b, settings.OnExhaustedBlock)
		sends("a:1", "a:2", "a:3")
		for attempt := 1; attempt <= 5; attempt++ {
			ds := expectMessages(t, receives(), fmt.Sprintf("a:1/%d", attempt))
			if attempt == 4 { // RocketMQ's FIFO consumer, having retried by itself: a failure
				if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "mine"}); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(time.Minute) // a timeout
				synctest.Wait()
			}
			expectMessages(t, receives(), "")
			if attempt == 1 {
				expectState(t, b, 2, 0, 1, 0, 0, 0)
			} else {
				expectState(t, b, 0, 0, 1, 0, 0, 1)
			}
			sends(fmt.Sprint("b:", attempt))
			ackDeliveries(t, b, expectMessages(t, receives(), fmt.Sprintf("b:%d/1", attempt)))
			if attempt == 3 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				synctest.Wait()
				sends, receives = fifoOf(t, b)
				expectState(t, b, 0, 0, 1, 0, 0, 1)
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}
		ackDeliveries(t, b, expectMessages(t, receives(), "a:1/6"))
		sends("a:4")
		failDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		failDeliveries(t, b, expectMessages(t, receives(), "a:2/2"))
		expectMessages(t, receives(), "a:2/3")
		expectState(t, b, 0, 1, 0, 0, 0, 1)
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 2, OnExhausted: settings.OnExhaustedPark})
		time.Sleep(time.Hour)
		synctest.Wait()
		expectMessages(t, receives(), "")
		expectState(t, b, 0, 0, 0, 3, 1, 0)
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 2}) // parked messages stay parked
		expectMessages(t, receives(), "")
		if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		failDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		failDeliveries(t, b, expectMessages(t, receives(), "a:2/2"))
		ackDeliveries(t, b, expectMessages(t, receives(), "a:3/1"))
		ackDeliveries(t, b, expectMessages(t, receives(), "a:4/1"))
	})
}

// A consumer's request for a dead letter: before the last attempt the broker obeys it, with any
// setting for the end. After the last attempt it only means that the attempts are exhausted. It can
// be repeated, and can come late.
func TestDeadLetterRequestsWhereGroupsPark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		sends, receives := fifo(t, b, settings.OnExhaustedPark)
		sends("a:1", "a:2", "a:3")
		d := expectMessages(t, receives(), "a:1/1")[0]
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"}); err != nil {
			t.Fatal(err)
		}
		d = expectMessages(t, receives(), "a:2/1")[0]
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		d.Attempt = 2 // its own count
		for range 2 {
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "used up"}); err != nil {
				t.Fatal(err)
			}
		}
		expectMessages(t, receives(), "")
		expectState(t, b, 0, 0, 0, 2, 1, 0)
		page, err := b.Parked("g", status.ParkedQuery{})
		if err != nil || page.Groups[0].Reason != "used up" || page.Groups[0].Attempts != 2 {
			t.Errorf("%+v, %v", page, err)
		}
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
		if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"}); err == nil {
			t.Error("the handle from before the redrive is accepted")
		}
		ackDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		ackDeliveries(t, b, expectMessages(t, receives(), "a:3/1"))
	})
}

// A parked message group with very many successors neither fills memory nor delays other groups.
// After a redrive all its messages are delivered in order.
func TestParkedMessageGroupIsLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = consume.MaxHeld + 1000
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
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
		if leases() != 1 {
			t.Errorf("%d leases in memory, want the failed message's", leases())
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		_, receives = fifoOf(t, b)
		expectState(t, b, 0, 0, 0, n, 1, 0)
		if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		for i := range 2 * consume.FetchLimit {
			ackDeliveries(t, b, expectMessages(t, receives(), fmt.Sprintf("a:%d/1", i)))
			if l := leases(); l < 1 || l > consume.FetchLimit+consume.FewHeld {
				t.Fatalf("%d leases in memory", l)
			}
		}
		expectState(t, b, n-2*consume.FetchLimit, 0, 0, 0, 0, 0)
	})
}

// Only a FIFO group has an order to keep.
func TestOnExhaustedIsForFIFO(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, c := range []settings.Group{{OnExhausted: settings.OnExhaustedPark}, {OnExhausted: settings.OnExhaustedBlock}, {FIFO: true, OnExhausted: "stop"}} {
		if _, err := b.PutGroup(t.Context(), "g", c); err == nil || !strings.Contains(err.Error(), "on_exhausted is "+fmt.Sprintf("%q", c.OnExhausted)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
