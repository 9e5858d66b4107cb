package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// In a steady drain the delay that a rejected send gets is right within a factor of two, at any
// rate, for every measure of a backlog and with several groups.
func TestPushBackIsRightWithinTwo(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	rates := []float64{3, 20, 150, 1000}
	if *soakFactor == 0 {
		rates = rates[rnd.IntN(len(rates)):][:1]
	}
	for _, limit := range []settings.Limit{{Messages: 1000}, {Bytes: 1000 * 50}, {Age: settings.Duration(100 * time.Second)}} {
		for _, base := range rates {
			rate := base * (0.7 + 0.6*rnd.Float64())
			groups := 1 + rnd.IntN(2)
			t.Run(fmt.Sprintf("%+v at %.1f a second, %d groups", limit, rate, groups), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { steadyDrain(t, limit, rate, 1, groups) })
			})
		}
	}
	for _, c := range []struct {
		limit settings.Limit
		rate  float64
		batch int
	}{
		{settings.Limit{Messages: 500}, 0.2, 1}, {settings.Limit{Messages: 250}, 0.04, 1}, {settings.Limit{Bytes: 5000 * 50}, 1.07, 32}, {settings.Limit{Messages: 5000}, 20, 32}, {settings.Limit{Messages: 5000}, 0.5, 10},
	} {
		t.Run(fmt.Sprintf("%+v at %g a second, %d at a time", c.limit, c.rate, c.batch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { steadyDrain(t, c.limit, c.rate, c.batch, 1) })
		})
	}
}

// steadyDrain fills a topic until it throttles, drains it at a rate in batches (a second group
// twice as fast), and compares the delays that rejected sends get.
func steadyDrain(t *testing.T, limit settings.Limit, rate float64, batch, groups int) {
	b := open(t, broker.Options{MinInvisibleDuration: 1})
	putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: limit})
	for g := range groups {
		putGroup(t, b, fmt.Sprint("g", g), settings.Group{})
		receive(t, b, transport.ReceiveRequest{Group: fmt.Sprint("g", g), Topic: "t"})
	}
	send := func() error { return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 50)})[0].Err }
	for range 5100 { // for an age: 100 s of messages
		if send() != nil {
			break
		}
		if limit.Age > 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
	type told struct {
		at   time.Time
		wait time.Duration
	}
	var tolds []told
	start := time.Now()
	step := time.Duration(float64(time.Second) / rate * float64(batch))
	for n := 1; ; n++ {
		if n > 4800 {
			t.Fatal("the throttle does not end")
		}
		time.Sleep(step / 4)
		for g := range groups {
			if n%4 > 0 {
				break
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: fmt.Sprint("g", g), Topic: "t", Max: batch * (1 + g), InvisibleDuration: time.Hour})
			if err := errors.Join(b.Ack(t.Context(), ds)...); err != nil {
				t.Fatal(err)
			}
		}
		err := send()
		if err == nil {
			break
		}
		e, _ := errors.AsType[*tidegate.Error](err)
		if e == nil || e.Code != tidegate.CodeTooManyRequests {
			t.Fatal(err)
		}
		tolds = append(tolds, told{time.Now(), e.RetryAfter})
	}
	end := time.Now()
	if len(tolds) < 20 {
		t.Fatalf("refused %d times only", len(tolds))
	}
	least := 2*step + 200*time.Millisecond
	if speed := rate/10 - 1; limit.Age > 0 && speed > 0 {
		// The age of the oldest message falls by speed seconds a second, but in steps of a message,
		// 100 ms, which bounds the precision.
		least += 2 * time.Duration(float64(100*time.Millisecond)/speed)
	}
	for _, x := range tolds {
		took := end.Sub(x.at)
		if x.at.Sub(start) < max(time.Second, 5*step) || took < least {
			continue // nothing measured yet, or less than the span that counts
		}
		took = throttle.Bound(took)
		if x.wait < took/2 || x.wait > 2*took {
			t.Errorf("after %v the push-back is %v, and the wait takes %v", x.at.Sub(start), x.wait, took)
			return
		}
	}
}
