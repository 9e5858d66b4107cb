package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Ten clients share the rate of a slow consumer. The most aggressive one tries 150 times as often
// as the least. Each gets within a factor of two of an equal share.
func TestThrottledClientsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients, drained, seconds = 10, 100, 30
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 500}})
		var took [clients]int
		client := func(i int) {
			m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}
			err := serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Client: fmt.Sprint("client", i)}})[0].Err
			switch {
			case err == nil:
				took[i]++
			case !errors.Is(err, tidegate.ErrThrottled):
				t.Fatal(err)
			}
		}
		// Tries a second: 12, 24, 36, ... and two that try at each step.
		due := [clients]float64{}
		for step := range seconds * 1000 {
			for i := range due {
				if due[i] += []float64{12, 15, 20, 30, 50, 100, 200, 400, 1000, 1800}[i] / 1000; due[i] >= 1 {
					client(i)
					if due[i]--; due[i] >= 1 {
						due[i] = 0
					}
				}
			}
			if step%(1000/drained) == 0 {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})
				if err := errors.Join(b.Ack(t.Context(), ds)...); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
			if step == 10_000 { // until the first throttle ended no client knew of the others
				took = [clients]int{}
			}
		}
		total := 0
		for _, n := range took {
			total += n
		}
		if want := drained * (seconds - 10); total < want*8/10 || total > want*12/10 {
			t.Errorf("%d were accepted while %d were drained", total, want)
		}
		for i, n := range took {
			if n < total/clients/2 || n > 2*total/clients {
				t.Errorf("client %d sent %d; an equal share is %d: %v", i, n, total/clients, took)
			}
		}
		if n := serve(b).Stats().Throttled[engine.FairShare]; n == 0 {
			t.Error("no client was rejected for its share")
		}
	})
}

// Without consumers the space that a throttle left can still be used.
func TestSharingDoesNotStarve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Messages: 100}})
		send := func(client string) bool {
			m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}
			return serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Client: client}})[0].Err == nil
		}
		for send("a") {
		}
		send("b")
		for range 2 {
			if err := errors.Join(b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10}))...); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for range 600 { // a minute
			for _, c := range []string{"a", "b"} {
				if send(c) {
					n++
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n < 15 {
			t.Errorf("%d of 20 places were used", n)
		}
	})
}
