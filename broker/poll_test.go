package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

func TestWaitingReceiveIsWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		start := time.Now()
		time.AfterFunc(7*time.Second, func() { mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")}) })
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 20 * time.Second})
		if len(ds) != 1 || time.Since(start) != 7*time.Second {
			t.Fatalf("%d deliveries after %v", len(ds), time.Since(start))
		}
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		ds = receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 20 * time.Second})
		if len(ds) != 1 || time.Since(start) != 12*time.Second {
			t.Fatalf("the retry: %d deliveries after %v", len(ds), time.Since(start))
		}
		start = time.Now()
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 20 * time.Second}); len(ds) != 0 || time.Since(start) != 20*time.Second {
			t.Fatalf("%d deliveries after %v, want none after 20s", len(ds), time.Since(start))
		}
	})
}

func TestCancelledReceiveTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		cause := errors.New("enough")
		for range 50 {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() {
				_, err := b.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Hour, Wait: time.Hour})
				done <- err
			}()
			synctest.Wait()
			// A message and the end at the same moment: another receive must get the message.
			sent := make(chan struct{})
			go func() { mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")}); close(sent) }()
			cancel(cause)
			err := <-done
			<-sent
			if err == nil {
				continue // it won
			}
			if !errors.Is(err, cause) {
				t.Fatalf("the receive ended with %v", err)
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Second, InvisibleDuration: time.Hour})
			if len(ds) != 1 || ds[0].Attempt != 1 {
				t.Fatalf("the next receive got %d deliveries: %+v", len(ds), ds)
			}
		}
	})
}

func TestCloseEndsWaitingReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.Open(broker.Options{})
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{})
		done := make(chan error)
		for range 3 {
			go func() {
				_, err := b.Receive(context.WithoutCancel(t.Context()), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Wait: time.Hour})
				done <- err
			}()
		}
		synctest.Wait()
		if err := errors.Join(b.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-done; !errors.Is(err, tidegate.ErrClosed) {
				t.Errorf("a receive ended with %v", err)
			}
		}
		if r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]; !errors.Is(r.Err, tidegate.ErrClosed) {
			t.Errorf("a send ended with %v", r.Err)
		}
	})
}

// A filtered-out message costs the group no attempt and no backlog, and other
// groups still get it.
func TestFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		for i := range 100 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Tag: fmt.Sprint("tag", i%4), Properties: map[string]string{"n": strconv.Itoa(i)}, Body: []byte("x")})
		}
		got := 0
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Filter: tidegate.Filter{Expression: " tag1|| tag3 "}})
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				if d.Tag != "tag1" && d.Tag != "tag3" {
					t.Errorf("got tag %q", d.Tag)
				}
			}
			got += len(ds)
		}
		g, err := b.Group("g")
		if err != nil || got != 50 || g.Topics[0].Backlog.Messages != 50 {
			t.Errorf("%d messages, backlog %+v, %v; want 50, 50", got, g.Topics, err)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "sql", Topic: "t", Max: 32, Filter: tidegate.Filter{SQL: true, Expression: "TAGS IN ('tag0', 'tag2') AND n BETWEEN 10 AND 19"}})
		if len(ds) != 5 {
			t.Errorf("by SQL got %d, want 5", len(ds))
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "t", Max: 32}); len(ds) != 32 {
			t.Errorf("another group got %d", len(ds))
		}
		for _, expr := range []string{"a|b", "|", "||"} {
			_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Filter: tidegate.Filter{Expression: expr}})
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeIllegalFilterExpression || !strings.Contains(e.Message, expr) {
				t.Errorf("%q: %v", expr, err)
			}
		}
	})
}

func TestOwnedLeaseLastsAsLongAsItsOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		poll := func(owner string, wait time.Duration) []*tidegate.Delivery {
			ds, err := serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Wait: wait, Push: true}, Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		first := poll("client-1", 0)
		for range 30 { // five minutes of heartbeats
			time.Sleep(10 * time.Second)
			serve(b).Touch("client-1")
		}
		if ds := poll("client-2", 0); len(ds) != 0 {
			t.Fatal("delivered again while its owner lives")
		}
		if err := b.Ack(t.Context(), first)[0]; err != nil {
			t.Fatalf("the owner's handle: %v", err)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		poll("client-1", 0)
		start := time.Now()
		serve(b).Forget("client-1")
		// A timeout of a push consumer's delivery follows the retry schedule: 1 s, then 10 s.
		if ds := poll("client-2", time.Minute); len(ds) != 1 || time.Since(start) != 11*time.Second || ds[0].Attempt != 2 {
			t.Fatalf("after its owner ended: %d deliveries after %v", len(ds), time.Since(start))
		}
		start = time.Now()
		if ds := poll("client-3", 5*time.Minute); len(ds) != 1 || time.Since(start) != time.Minute+30*time.Second {
			t.Fatalf("after its owner vanished: %d deliveries after %v", len(ds), time.Since(start))
		}
	})
}

// The end of a client looks only at the subscriptions from which the client received: the end of n
// clients of n groups would take n² steps. A list of all subscriptions would take at least 8 bytes
// for each. The bytes are those of the whole process, so the limit is half of that.
func TestEndOfAClientConcernsItsGroups(t *testing.T) {
	const n = 1000
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	for i := range n {
		p := engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: fmt.Sprint("g", i), Topic: "t", Queue: -1, Push: true}, Owner: fmt.Sprint("client-", i)}
		if _, err := serve(b).Poll(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if bytes := allocated.Bytes(func() {
		for i := range n {
			serve(b).Forget(fmt.Sprint("client-", i))
		}
	}); bytes > n*n*4 {
		t.Errorf("the end of %d clients of %d groups allocated %d bytes, want at most %d", n, n, bytes, n*n*4)
	}
}

// The end of a client concerns all of its deliveries, also those of a client with more groups than
// the broker remembers.
func TestEndOfAClientOfManyGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const groups = 300
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		received := func(owner string) (n int) {
			for i := range groups {
				ds, err := serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: fmt.Sprint("g", i), Topic: "t", Queue: -1, Push: true}, Owner: owner})
				if err != nil {
					t.Fatal(err)
				}
				n += len(ds)
			}
			return n
		}
		if n := received("owner"); n != groups {
			t.Fatalf("the owner has %d deliveries, want %d", n, groups)
		}
		serve(b).Forget("owner")
		time.Sleep(12 * time.Second) // a second, and the first interval of the retry schedule
		if n := received("other"); n != groups {
			t.Errorf("after the end of the owner %d messages were delivered again, want %d", n, groups)
		}
	})
}

// Heartbeats of clients without deliveries leave nothing behind. Those of other clients keep their
// deliveries, also over a restart of the broker.
func TestOnlyOwnersAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		serve(b).Touch("stranger")
		if remembers(b, "stranger") {
			t.Error("a client is remembered that received nothing")
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		poll := func(owner string) []*tidegate.Delivery {
			ds, err := serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Push: true}, Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		ds := poll("owner")
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: dir})
		for range 12 {
			time.Sleep(10 * time.Second)
			serve(b).Touch("owner") // a heartbeat: it has not received since
			serve(b).Touch("stranger")
		}
		if ds := poll("other"); len(ds) != 0 {
			t.Error("delivered again while its owner lives")
		}
		if err := b.Ack(t.Context(), ds)[0]; err != nil {
			t.Error(err)
		}
		for owner, want := range map[string]bool{"owner": true, "other": true, "stranger": false} {
			if got := remembers(b, owner); got != want {
				t.Errorf("%s is remembered: %t, want %t", owner, got, want)
			}
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		poll("owner")
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: dir})
		serve(b).Forget("owner")
		time.Sleep(12 * time.Second) // a second, and the first interval of the retry schedule
		if ds := poll("other"); len(ds) != 1 {
			t.Errorf("after the end of its owner %d messages were delivered again, want 1", len(ds))
		}
	})
}

// An attempt ID is kept, so it has a limit.
func TestAttemptIDHasALimit(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
	for n, ok := range map[int]bool{255: true, 256: false} {
		_, err := b.Receive(t.Context(), transport.ReceiveRequest{
			Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, AttemptID: strings.Repeat("a", n),
		})
		if e, _ := errors.AsType[*tidegate.Error](err); ok && err != nil || !ok && (e == nil || e.Code != tidegate.CodeBadRequest || !strings.Contains(e.Message, "255")) {
			t.Errorf("an attempt ID of %d bytes: %v", n, err)
		}
	}
}

// Its owner's sign of life holds from the moment that it is given, not from
// the moment at which the engine looks.
func TestOwnedLeaseHoldsWhenTheTimerIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		ds, err := serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Push: true}, Owner: "c"})
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		time.Sleep(30 * time.Second)
		serve(b).Touch("c")
		subscriptions(b)[0].Stop()
		time.Sleep(31 * time.Second)
		if err := b.Ack(t.Context(), ds)[0]; err != nil {
			t.Error(err)
		}
	})
}

// While a subscription holds its maximum of messages, queues wait. They continue when a message
// group of any queue does.
func TestQueuesContinueWhenFewerMessagesAreHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{}.MaxHeld(1))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
		putGroup(t, b, "g", settings.Group{FIFO: true})
		putTopic(t, b, "same-queues", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
		groups := map[int]string{}
		for i := 0; len(groups) < 2; i++ {
			name := fmt.Sprint("mg", i)
			r := send(t, b, &tidegate.Message{Topic: "same-queues", MessageGroup: name, Body: []byte("x")})[0]
			groups[r.Receipt.Queue] = name
		}
		for range 2 {
			mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: groups[0], Body: []byte("x")})
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2})
		start := time.Now()
		done := make(chan int)
		go func() {
			done <- len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: 1, Wait: time.Hour}))
		}()
		synctest.Wait()
		mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: groups[1], Body: []byte("y")})
		time.Sleep(time.Second)
		if err := b.Ack(t.Context(), ds)[0]; err != nil {
			t.Fatal(err)
		}
		if n := <-done; n != 1 || time.Since(start) != time.Second {
			t.Errorf("%d deliveries after %v", n, time.Since(start))
		}
	})
}

// Messages that fail repeatedly do not delay new messages, and new messages do not delay due
// retries. RocketMQ: consumption retry: "you can use the retry mechanism to redeliver the message
// to avoid blocking the process"
func TestRetriesAndNewMessagesShare(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 3, 8, 32} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
			for range 50 {
				mustSend(t, b, &tidegate.Message{Topic: "t", Tag: "poison", Body: []byte("x")})
			}
			fresh, retried := 0, 0
			for receives := 0; receives < 4*(50+200)+50 && fresh < 200; receives++ {
				if receives < 200 {
					mustSend(t, b, &tidegate.Message{Topic: "t", Tag: "good", Body: []byte("x")})
				}
				for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: batch}) {
					if d.Tag == "good" {
						fresh++
						if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
							t.Fatal(err)
						}
						continue
					}
					if d.Attempt > 1 {
						retried++
					}
					if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			}
			if fresh < 200 || retried < 100 {
				t.Errorf("batches of %d: %d of 200 new messages and %d retries were delivered", batch, fresh, retried)
			}
		})
	}
}

// Deliveries that are released together share their fsyncs.
func TestReleaseSharesFsyncs(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, topic := range []string{"t", "u"} {
		putTopic(t, b, topic, settings.Topic{Queues: 2})
		sendN(t, b, topic, 20, 1)
	}
	ds := append(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 20}), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "u", Max: 20})...)
	ds = append(ds[:10], append([]*tidegate.Delivery{{Handle: "none"}}, ds[10:]...)...)
	before := serve(b).Stats().GroupStore.Commit.Count()
	serve(b).Return(t.Context(), ds)
	if n := serve(b).Stats().GroupStore.Commit.Count() - before; n > 4 {
		t.Errorf("%d commits", n)
	}
	for _, topic := range []string{"t", "u"} {
		again := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: topic, Max: 32})
		if len(again) != 20 || again[0].Attempt != 1 {
			t.Errorf("%d are delivered again: %+v", len(again), again[0])
		}
	}
}
