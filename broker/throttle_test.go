package broker_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ: sending retry and throttling: "If the number of messages piling up exceeds the
// threshold, throttling is triggered to alleviate burden on the downstream system"
func TestBacklogThrottlesSends(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1000}})
		var accepted, refused int
		var err error
		batch := make([]*tidegate.Message, 100)
		for range 11 {
			for i := range batch {
				batch[i] = &tidegate.Message{Topic: "orders", Body: []byte("x")}
			}
			for _, r := range send(t, b, batch...) {
				if r.Err == nil {
					accepted++
				} else {
					refused++
					err = r.Err
				}
			}
		}
		assert.MustThat(t, accepted == 1000 && refused == 100, "%d accepted, %d refused, want 1000 and 100", accepted, refused)
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && errors.Is(err, tidegate.ErrThrottled) && e.ReplyCode() == 530 && e.RetryAfter == 0, "the refusal is %#v", err)
		for _, w := range []string{"530 TOO_MANY_REQUESTS", "topic backlog messages", `"orders"`, "is 1000", "limit is 1000", "again at 800"} {
			assert.That(t, strings.Contains(err.Error(), w), "the text does not contain %q: %v", w, err)
		}

		// Draining to 801 is not enough, to 800 is.
		consume := func(n int) {
			t.Helper()
			for n > 0 {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Max: min(n, 32)})
				ackDeliveriesNow(t, b, ds)
				n -= len(ds)
				time.Sleep(100 * time.Millisecond)
			}
		}
		consume(199)
		r := send(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x")})[0]
		assert.MustThat(t, errors.Is(r.Err, tidegate.ErrThrottled), "a send at a backlog of 801: %v", r.Err)
		// About 300 messages a second were drained, and one is too many.
		if e, _ := errors.AsType[*tidegate.Error](r.Err); e.RetryAfter < time.Millisecond || e.RetryAfter > 10*time.Millisecond {
			t.Errorf("push-back is %v", e.RetryAfter)
		}
		if th, err := b.Topic("orders"); err != nil || th.Throttle == nil || th.Throttle.Value != 801 || th.Backlog.Messages != 801 {
			t.Errorf("the topic reports %+v, %v", th.Throttle, err)
		}
		consume(1)
		if r := send(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x")})[0]; r.Err != nil {
			t.Errorf("a backlog of 800 is refused: %v", r.Err)
		}
	})
}

func TestGroupBacklogAndBytesThrottle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxBacklog: settings.Limit{Bytes: 1000}})
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "free", settings.Topic{MaxBacklog: settings.Limit{Messages: 1 << 40}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 999)}, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]
		assert.That(t, errors.Is(r.Err, tidegate.ErrThrottled) && strings.Contains(r.Err.Error(), "topic backlog bytes"),
			"by bytes: %v", r.Err)
		putGroup(t, b, "slow", settings.Group{MaxBacklog: settings.Limit{Messages: 2}})
		receive(t, b, transport.ReceiveRequest{Group: "slow", Topic: "free"})
		mustSend(t, b, &tidegate.Message{Topic: "free", Body: make([]byte, 2000)}, &tidegate.Message{Topic: "free", Body: []byte("x")})
		r = send(t, b, &tidegate.Message{Topic: "free", Body: []byte("x")})[0]
		assert.That(t, errors.Is(r.Err, tidegate.ErrThrottled) && strings.Contains(r.Err.Error(), `group backlog messages of "slow"`),
			"by group: %v", r.Err)
		putGroup(t, b, "slow", settings.Group{}) // lifted while running
		mustSend(t, b, &tidegate.Message{Topic: "free", Body: []byte("x")})
	})
}

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
		assert.MustThat(t, n <= 4800, "the throttle does not end")
		time.Sleep(step / 4)
		for g := range groups {
			if n%4 > 0 {
				break
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: fmt.Sprint("g", g), Topic: "t", Max: batch * (1 + g), InvisibleDuration: time.Hour})
			assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
		}
		err := send()
		if err == nil {
			break
		}
		e, _ := errors.AsType[*tidegate.Error](err)
		assert.MustThat(t, e != nil && e.Code == tidegate.CodeTooManyRequests, "%+v", err)
		tolds = append(tolds, told{time.Now(), e.RetryAfter})
	}
	end := time.Now()
	assert.MustThat(t, len(tolds) >= 20, "refused %d times only", len(tolds))
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

// Ten clients share the rate of a slow consumer. The most aggressive one tries 150 times as often
// as the least. Each gets within a factor of two of an equal share.
func TestThrottledClientsShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
				assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
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
			assert.That(t, n >= total/clients/2 && n <= 2*total/clients,
				"client %d sent %d; an equal share is %d: %v", i, n, total/clients, took)
		}
		assert.That(t, serve(b).Stats().Throttled[engine.FairShare] != 0, "no client was rejected for its share")
	})
}

// A limit that was removed is forgotten: a new one rejects sends from its own mark on, also if the
// limits were not read meanwhile.
func TestRemovedBacklogLimitIsForgotten(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"topic", "group", "broker"} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			limit := func(n int64) {
				t.Helper()
				switch l := (settings.Limit{Messages: n}); of {
				case "topic":
					putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: l})
				case "group":
					putGroup(t, b, "g", settings.Group{MaxBacklog: l})
				default:
					assert.Must(t, b.SetLimits(t.Context(), settings.Limits{MaxBacklog: l}))
				}
			}
			send := func(n int) (err error) {
				for range n {
					err = errors.Join(err, send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err)
				}
				return err
			}
			limit(100)
			assert.Must(t, send(100))
			err := send(1)
			assert.MustThat(t, errors.Is(err, tidegate.ErrThrottled), "of %s: at the limit: %v", of, err)
			limit(0)
			time.Sleep(time.Second)
			assert.Must(t, send(800), "of %s: without a limit", of)
			limit(1000)
			assert.NoError(t, send(100), "of %s: with 900 of 1000", of)
			now := time.Now()
			send(1)
			if d, err := b.Topic("t"); err != nil || d.Throttle == nil || !d.Throttle.Since.Equal(now) {
				t.Errorf("of %s: at the new limit: %+v, %v", of, d.Throttle, err)
			}
		})
	}
}

// The same holds for a limit of cold reads.
func TestRemovedColdLimitIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 1000
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{ColdDistance: 100 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		send := func() error {
			return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
		}
		limit := func(messages int64) {
			t.Helper()
			assert.Must(t, b.SetLimits(t.Context(), settings.Limits{Pressure: settings.Pressure{MaxColdReads: messages * size, ColdDistance: 100 * size}}))
		}
		for range 3000 {
			assert.Must(t, send())
		}
		limit(50)
		for range 1000 / 32 {
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
		}
		assert.MustIs(t, "a thousand at once", send(), tidegate.ErrThrottled)
		limit(0)
		assert.Must(t, send(), "without a limit")
		// The recent reads are within the new limit, but above the end of a throttle.
		_, rate := subscriptions(b)[0].Cold.Rate(time.Now())
		limit(int64(rate)/size*10/9 + 1)
		assert.NoError(t, send(), "with a limit that was not reached")
	})
}

// Limits that were set in use survive restarts. The last change of each limit wins: a limit whose
// configured value changes afterwards has the configured value, at a restart and in use.
func TestLimitsSurviveARestart(t *testing.T) {
	t.Parallel()
	limit := func(messages, bytes int64) settings.Limit { return settings.Limit{Messages: messages, Bytes: bytes} }
	type step struct {
		does     string         // set, configure or open
		to       settings.Limit // the argument, or MaxBacklog of Options
		inEffect settings.Limit
	}
	for name, steps := range map[string][]step{
		"the same file":   {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(1, 2), limit(5, 6)}, {"open", limit(1, 2), limit(5, 6)}},
		"one field of it": {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(7, 2), limit(7, 6)}, {"open", limit(7, 2), limit(7, 6)}},
		"there and back":  {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(7, 2), limit(7, 6)}, {"open", limit(1, 2), limit(1, 6)}},
		"to nothing":      {{"set", limit(0, 0), limit(0, 0)}, {"open", limit(1, 2), limit(0, 0)}, {"open", limit(1, 0), limit(0, 0)}},
		"as configured":   {{"set", limit(5, 6), limit(5, 6)}, {"set", limit(1, 2), limit(1, 2)}, {"open", limit(1, 3), limit(1, 3)}, {"open", limit(1, 2), limit(1, 2)}},
		"reloaded":        {{"set", limit(5, 6), limit(5, 6)}, {"configure", limit(1, 3), limit(5, 3)}, {"open", limit(1, 3), limit(5, 3)}, {"open", limit(1, 2), limit(5, 2)}},
		"reloaded before": {{"configure", limit(1, 3), limit(1, 3)}, {"set", limit(5, 3), limit(5, 3)}, {"open", limit(1, 3), limit(5, 3)}},
		"never set":       {{"configure", limit(1, 3), limit(1, 3)}, {"open", limit(1, 2), limit(1, 2)}},
	} {
		subtest(t, name, func(t *testing.T) {
			fs := vfs.NewMem()
			b := open(t, broker.Options{Dir: "data", MaxBacklog: limit(1, 2)}.On(fs))
			for i, s := range steps {
				var err error
				switch l := (settings.Limits{MaxBacklog: s.to}); s.does {
				case "set":
					err = b.SetLimits(t.Context(), l)
				case "configure":
					err = b.ConfigureLimits(t.Context(), l)
				case "open":
					if err = b.Close(); err == nil {
						b = open(t, broker.Options{Dir: "data", MaxBacklog: s.to}.On(fs))
					}
				}
				assert.Must(t, err)
				if got := b.Limits().MaxBacklog; got != s.inEffect {
					t.Errorf("step %d, %s %+v: %+v, want %+v", i+1, s.does, s.to, got, s.inEffect)
				}
			}
		})
	}
}

// A set limit that replaces a configured one is in the log of the start.
func TestStartLogsSetLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data", MaxBacklog: settings.Limit{Messages: 12}}.On(fs))
		assert.Must(t, b.SetLimits(t.Context(), settings.Limits{MaxBacklog: settings.Limit{Messages: 34}}))
		assert.Must(t, b.Close())
		var log strings.Builder
		open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil)), MaxBacklog: settings.Limit{Messages: 12}}.On(fs))
		assert.Contains(t, "the log", log.String(), "set in use", "34", "12", "/v1/throttle")
	})
}

// Here the threshold is how long they have been piling up.
//
// RocketMQ: sending retry and throttling: "If the number of messages piling up exceeds the
// threshold, throttling is triggered to alleviate burden on the downstream system"
func TestAgeThrottlesSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Age: settings.Duration(10 * time.Second)}})
		putTopic(t, b, "u", settings.Topic{})
		putGroup(t, b, "strict", settings.Group{MaxBacklog: settings.Limit{Age: settings.Duration(5 * time.Second)}})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})[0].Err
		}
		refused := func(topic string, words ...string) {
			t.Helper()
			err := send(topic)
			assert.MustThat(t, errors.Is(err, tidegate.ErrThrottled), "a send to %s: %v", topic, err)
			assert.Contains(t, "the error", fmt.Sprint(err), words...)
		}
		taken := func(topic string) {
			t.Helper()
			assert.Must(t, send(topic))
		}
		// Without consumers all messages of the topic count.
		for range 10 { // one a second
			taken("t")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		refused("t", `topic backlog age of "t" is 11s`, "the limit is 10s", "again at 8s")

		// The oldest is in flight: still rejected. Consumed down to 8 s: taken.
		ack := func(ds []*tidegate.Delivery) {
			t.Helper()
			assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
			time.Sleep(200 * time.Millisecond)
		}
		get := func(group, topic string, n int) []*tidegate.Delivery {
			ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Max: n, InvisibleDuration: time.Hour})
			slices.SortFunc(ds, func(x, y *tidegate.Delivery) int { return x.StoredAt.Compare(y.StoredAt) })
			return ds
		}
		ds := get("g", "t", 32)
		assert.MustEqual(t, "received", len(ds), 10)
		refused("t")
		ack(ds[:3])
		refused("t") // 8.2 s
		ack(ds[3:4])
		taken("t")

		// A group's own limit.
		taken("u")
		get("strict", "u", 1)
		time.Sleep(6 * time.Second)
		refused("u", `group backlog age of "strict" is 6s`, "the limit is 5s")
		putGroup(t, b, "strict", settings.Group{}) // lifted while running
		taken("u")
		_, err := b.PutTopic(t.Context(), "u", settings.Topic{MaxBacklog: settings.Limit{Age: 1}})
		assert.That(t, err != nil && strings.Contains(err.Error(), "max_backlog.age is 1ns"), "an age of 1 ns: %v", err)
	})
}

// Sends are rejected before the disk is full. Stored messages can still be consumed, and once there
// is space sends are accepted without a restart.
//
// RocketMQ: sending retry and throttling: "When the system capacity usage exceeds the threshold, a
// Apache RocketMQ broker rejects requests and returns an error to avoid over-burdening the
// underlying resources"
func TestFreeDiskThrottlesSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const gib = 1 << 30
		fs := vfs.NewMem()
		free := func(n uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 100 * gib, UsedBytes: 100*gib - n})
		}
		free(2 * gib)
		b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, protocol.DeadLetterPrefix+"x", settings.Topic{Queues: 1})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})[0].Err
		}
		for range 10 {
			assert.Must(t, send("t"))
		}
		free(gib / 2)
		time.Sleep(time.Second)
		if d, err := b.Topic("t"); err != nil || d.Throttle == nil || d.Throttle.Limit != "free disk" {
			t.Errorf("before a send, the topic reports %+v, %v", d.Throttle, err)
		}
		assert.That(t, serve(b).Stats().Topics[0].Throttle != nil, "the statistics report no throttle")
		for _, topic := range []string{"t", protocol.DeadLetterPrefix + "x"} {
			err := send(topic)
			assert.MustThat(t, errors.Is(err, tidegate.ErrThrottled), "with half a GiB free: %v", err)
			for _, w := range []string{"530 TOO_MANY_REQUESTS", "free disk is 536870912", "the limit is 1073741824", "again at 1342177280", "no restart"} {
				assert.That(t, strings.Contains(err.Error(), w), "the text does not contain %q: %v", w, err)
			}
		}
		assert.Equal(t, "are counted", serve(b).Stats().Throttled["free disk"], 2)
		// All of consumption works.
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10, InvisibleDuration: time.Minute, Push: true})
		assert.MustEqual(t, "received", len(ds), 10)
		_, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		if err := errors.Join(err, second(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"})), errors.Join(b.Ack(t.Context(), ds[2:])...)); err != nil {
			t.Error(err)
		}
		free(5 * gib / 4)
		time.Sleep(time.Second)
		assert.NoError(t, send("t"), "once there is space")
		// It is changed while in use, and looked at when much is written.
		free(3 * gib)
		l := b.Limits()
		l.Pressure.MinFreeDisk = 4 * gib
		assert.Must(t, b.SetLimits(t.Context(), l))
		assert.Is(t, "with a limit of 4 GiB", send("t"), tidegate.ErrThrottled)
		l.Pressure.MinFreeDisk = -1
		assert.Must(t, b.SetLimits(t.Context(), l))
		assert.NoError(t, send("t"), "without a limit")
		l.Pressure.MinFreeDisk = gib
		assert.Must(t, b.SetLimits(t.Context(), l))
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		free(0)
		refused := false
		for range 40 { // no time passes
			refused = refused || send0(t, b, 1<<20) != nil
		}
		assert.That(t, refused, "40 MiB are written at once without a look at the disk")
	})
}

func send0(t *testing.T, b *broker.Broker, size int) error {
	return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
}

// A store that cannot flush blocks writes. The broker rejects sends after a while instead of
// letting them wait, and accepts sends again once the store flushes.
//
// RocketMQ: sending retry and throttling: "When the system capacity usage exceeds the threshold, a
// Apache RocketMQ broker rejects requests and returns an error to avoid over-burdening the
// underlying resources"
func TestWriteStallThrottlesSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newStallFS(createsTable)
		b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}) // a group's first receive is written to the message log
		fs.hold(true)
		done := make(chan error, 1000)
		sent := 0
		for ; !stalled(b) && sent < 500; sent++ {
			go func() { done <- send0(t, b, 1<<20) }()
			synctest.Wait()
		}
		assert.MustThat(t, sent != 500, "500 MiB do not stall it")
		time.Sleep(2 * time.Second)
		err := send0(t, b, 1)
		assert.That(t, errors.Is(err, tidegate.ErrThrottled) && strings.Contains(err.Error(), "write stall is 2s, the limit is 1s"),
			"after 2 s: %v", err)
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Max: 1, InvisibleDuration: time.Minute})
		assert.That(t, err == nil && len(ds) == 1, "receiving: %d, %v", len(ds), err)
		fs.hold(false)
		for range sent {
			assert.Must(t, <-done)
		}
		time.Sleep(20 * time.Millisecond)
		assert.NoError(t, send0(t, b, 1), "once the store continues")
	})
}

// A disk of 200 MB with the default settings accepts sends. If less than an eighth of it is free,
// the log at the start names the limit and the setting.
func TestSmallDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		free := func(n uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 200e6, UsedBytes: 200e6 - n})
		}
		free(120e6)
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		assert.Must(t, b.Close())

		free(24e6)
		var log strings.Builder
		b = open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		for _, w := range []string{"all sends throttled", "free disk", "value=24000000", "mark=25000000", "min_free_disk_bytes"} {
			if !strings.Contains(log.String(), w) {
				t.Errorf("the log does not contain %q: %s", w, log.String())
			}
		}
		assert.Is(t, "with 24 MB free", send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err, tidegate.ErrThrottled)
		free(40e6)
		time.Sleep(time.Second)
		assert.NoError(t, send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err, "with 40 MB free")
	})
}

// limited returns the limits of a broker, and a topic with a group that have every limit. The one
// that is reached is a backlog of most messages.
func limited(tb testing.TB, most int64) (*engine.Limits, *engine.Topic) {
	b := open(tb, broker.Options{Pressure: settings.Pressure{MaxColdReads: 1 << 40}})
	all := settings.Limit{Messages: most, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}
	putTopic(tb, b, "t", settings.Topic{MaxBacklog: all, MaxRate: settings.Rate{MessagesPerSecond: 1e9, BytesPerSecond: 1e12}})
	putGroup(tb, b, "g", settings.Group{MaxBacklog: settings.Limit{Messages: 1 << 40, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}})
	_, err := b.Receive(tb.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
	assert.MustThat(tb, err == nil, "%+v", err)
	mustSend(tb, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	return b.Engine().Parts().Limits, topicOf(tb, b, "t")
}

// The decision on an accepted message allocates no memory, for any number of limits.
func TestThrottlingAllocatesNothing(t *testing.T) {
	l, topic := limited(t, 1000)
	if n := testing.AllocsPerRun(100, func() {
		now := time.Now()
		l.Observe(topic, now)
		if th := l.Check(topic, now, &engine.Sender{Client: "client", Size: 100}); th != nil {
			t.Fatalf("rejected by %v", th)
		}
	}); n != 0 {
		t.Errorf("%g allocations, want 0", n)
	}
}
