package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

func TestWaitingReceiveIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{})
		start := time.Now()
		time.AfterFunc(7*time.Second, func() { mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")}) })
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 20 * time.Second})
		if len(ds) != 1 || time.Since(start) != 7*time.Second {
			t.Fatalf("%d deliveries after %v", len(ds), time.Since(start))
		}
		if err := b.Retry(t.Context(), ds[0], 5*time.Second); err != nil {
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
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{Queues: 1})
		cause := errors.New("enough")
		for range 50 {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() {
				_, err := b.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Hour, Wait: time.Hour})
				done <- err
			}()
			synctest.Wait()
			// At the same moment a message and the end: the message must go to somebody else.
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
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", TopicConfig{})
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
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{})
		for i := range 100 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Tag: fmt.Sprint("tag", i%4), Body: []byte("x")})
		}
		got := 0
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Filter: transport.Filter{Expression: " tag1|| tag3 "}})
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
		if ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "t", Max: 32}); len(ds) != 32 {
			t.Errorf("another group got %d", len(ds))
		}
		for _, expr := range []string{"a|b", "a||", "||"} {
			_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Filter: transport.Filter{Expression: expr}})
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeIllegalFilterExpression || !strings.Contains(e.Message, expr) {
				t.Errorf("%q: %v", expr, err)
			}
		}
	})
}

func TestOwnedLeaseLastsAsLongAsItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{})
		putGroup(t, b, "g", GroupConfig{})
		poll := func(owner string, wait time.Duration) []*tidegate.Delivery {
			ds, err := b.Poll(t.Context(), Poll{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Wait: wait, Push: true}, Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		first := poll("client-1", 0)
		for range 30 { // five minutes of heartbeats
			time.Sleep(10 * time.Second)
			b.Touch("client-1")
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
		b.Forget("client-1")
		// A push consumer's timeout goes through the ladder: 1 s, then 10 s.
		if ds := poll("client-2", time.Minute); len(ds) != 1 || time.Since(start) != 11*time.Second || ds[0].Attempt != 2 {
			t.Fatalf("after its owner ended: %d deliveries after %v", len(ds), time.Since(start))
		}
		start = time.Now()
		if ds := poll("client-3", 5*time.Minute); len(ds) != 1 || time.Since(start) != time.Minute+30*time.Second {
			t.Fatalf("after its owner vanished: %d deliveries after %v", len(ds), time.Since(start))
		}
	})
}
