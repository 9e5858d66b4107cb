package broker

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

func putAddress(tb testing.TB, b *Broker, match string, s AddressSettings) {
	tb.Helper()
	if _, err := b.PutAddressSettings(tb.Context(), match, s); err != nil {
		tb.Fatal(err)
	}
}

// Seed 002: "Each time a message is redelivered the delay period will be equal to the previous
// delay * `redelivery-delay-multiplier`. A `max-redelivery-delay` can be set to prevent the delay
// from becoming too large. The `max-redelivery-delay` is defaulted to `redelivery-delay` \* 10."
//
// Seed 002: "This factor will be made either positive or negative at random to control whether the
// ultimate value will increase or decrease the `redelivery-delay`. Then it's multiplied by a random
// number between 0.0 and 1.0. This result is then multiplied by the `redelivery-delay` and then
// added to the `redelivery-delay` to arrive at the final value."
// Seed 002: "default is 1.0"
// Seed 002: "default is redelivery-delay * 10"
// Seed 002: "redelivery-delay=5000, redelivery-delay-multiplier=2, max-redelivery-delay=15000"
// Seed 002: "redelivery-delay=1000, redelivery-delay-multiplier=1, max-redelivery-delay=15000,
// redelivery-collision-avoidance-factor=0.5"
func TestRedeliveryDelay(t *testing.T) {
	type failure struct {
		attempt int
		draw    draw
		want    Milliseconds
	}
	for name, c := range map[string]struct {
		settings AddressSettings
		failures []failure
	}{
		`Seed 002: "redelivery-delay=5000, redelivery-delay-multiplier=2, max-redelivery-delay=15000"`: {
			AddressSettings{RedeliveryDelay: new(Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(Milliseconds(15000)), RedeliveryCollisionAvoidanceFactor: new(0.0)},
			[]failure{{attempt: 1, want: 5000}, {attempt: 2, want: 10000}, {attempt: 3, want: 15000}, {attempt: 4, want: 15000}, {attempt: math.MaxInt, want: 15000}},
		},
		`Seed 002: "redelivery-delay=1000, redelivery-delay-multiplier=1, max-redelivery-delay=15000, redelivery-collision-avoidance-factor=0.5"`: {
			AddressSettings{RedeliveryDelay: new(Milliseconds(1000)), RedeliveryDelayMultiplier: new(1.0), MaxRedeliveryDelay: new(Milliseconds(15000)), RedeliveryCollisionAvoidanceFactor: new(0.5)},
			[]failure{{1, draw{true, .25}, 875}, {2, draw{false, .75}, 1375}, {3, draw{true, .05}, 975}},
		},
		"the default maximum is ten times the delay": {
			AddressSettings{RedeliveryDelay: new(Milliseconds(100)), RedeliveryDelayMultiplier: new(3.0)},
			[]failure{{attempt: 1, want: 100}, {attempt: 2, want: 300}, {attempt: 3, want: 900}, {attempt: 4, want: 1000}},
		},
		"the default multiplier is 1, and chance has no part by default": {
			AddressSettings{RedeliveryDelay: new(Milliseconds(100))},
			[]failure{{1, draw{false, .9}, 100}, {2, draw{true, .9}, 100}, {9, draw{false, .9}, 100}},
		},
		"chance does not go beyond the maximum": {
			AddressSettings{RedeliveryDelay: new(Milliseconds(1000)), MaxRedeliveryDelay: new(Milliseconds(1200)), RedeliveryCollisionAvoidanceFactor: new(1.0)},
			[]failure{{1, draw{false, .9}, 1200}, {1, draw{true, .9}, 100}},
		},
		"a multiplier below 1": {
			AddressSettings{RedeliveryDelay: new(Milliseconds(1000)), RedeliveryDelayMultiplier: new(.5)},
			[]failure{{attempt: 2, want: 500}, {attempt: 3, want: 250}},
		},
		"no delay": {
			AddressSettings{RedeliveryDelayMultiplier: new(1e300), RedeliveryCollisionAvoidanceFactor: new(1.0), MaxRedeliveryDelay: new(Milliseconds(5))},
			[]failure{{1, draw{false, .9}, 0}, {1000, draw{true, .9}, 0}},
		},
	} {
		r := c.settings.policy().redelivery
		for _, f := range c.failures {
			if got := r.after(f.attempt, f.draw); got != f.want.Duration() {
				t.Errorf("%s: after attempt %d with %+v it is %v, want %v", name, f.attempt, f.draw, got, f.want.Duration())
			}
		}
	}
}

// Whatever the settings, a delay is neither negative nor above the maximum,
// and without chance no shorter than the one before it if the multiplier is 1 or more.
func TestRedeliveryDelayProperties(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(most Milliseconds) *Milliseconds {
		switch rnd.IntN(4) {
		case 0:
			return nil
		case 1:
			return new(most)
		}
		return new(Milliseconds(math.Exp(rnd.Float64() * math.Log(float64(most)))))
	}
	for range 20000 {
		s := AddressSettings{
			RedeliveryDelay: pick(maxSetDelay), MaxRedeliveryDelay: pick(maxSetDelay),
			RedeliveryDelayMultiplier: new(math.Exp(rnd.NormFloat64() * 50)), RedeliveryCollisionAvoidanceFactor: new(rnd.Float64()),
		}
		if err := s.Validate(); err != nil {
			continue // a multiplier of 0 or without end
		}
		r := s.policy().redelivery
		before := time.Duration(0)
		for _, attempt := range []int{-1, 0, 1, 2, 3, 17, 1000, 1 << 20, math.MaxInt} {
			d := draw{rnd.IntN(2) == 0, rnd.Float64()}
			if got := r.after(attempt, d); got < 0 || got > r.longest {
				t.Fatalf("seed %d: %+v after attempt %d with %+v: %v", seed, *r, attempt, d, got)
			}
			got := r.after(attempt, draw{})
			if r.multiplier >= 1 && got < before {
				t.Fatalf("seed %d: %+v after attempt %d: %v, and %v before", seed, *r, attempt, got, before)
			}
			before = got
		}
	}
}

// Seed 002: "By default, messages are redelivered 10 times at the maximum. Set
// `max-delivery-attempts` to -1 for infinite redeliveries."
//
// The default of max-delivery-attempts is 10, and it counts deliveries: the
// seed's 3 are "3 unsuccessful delivery attempts".
func TestMaxDeliveryAttempts(t *testing.T) {
	group := GroupConfig{}.withDefaults()
	for _, c := range []struct {
		settings  AddressSettings
		attempt   int
		exhausted bool
	}{
		{AddressSettings{RedeliveryDelay: new(Milliseconds(0))}, 9, false},
		{AddressSettings{RedeliveryDelay: new(Milliseconds(0))}, 10, true},
		{AddressSettings{MaxDeliveryAttempts: new(3)}, 2, false},
		{AddressSettings{MaxDeliveryAttempts: new(3)}, 3, true},
		{AddressSettings{MaxDeliveryAttempts: new(-1)}, math.MaxInt, false},
		{AddressSettings{}, 16, false}, // the group's own: 16 retries
		{AddressSettings{}, 17, true},
		{AddressSettings{ExpiryDelay: new(Milliseconds(5)), PersistDeliveryCountBeforeDelivery: new(true)}, 16, false}, // says nothing of redelivery
	} {
		if got := (policy{&group, c.settings.policy()}).exhausted(c.attempt); got != c.exhausted {
			t.Errorf("%+v: attempt %d is the last one: %t", c.settings, c.attempt, got)
		}
	}
}

// Seed 002: "a message sent to the `stocks` address that couldn't be delivered for some reason might
// be ultimately routed to the `DLQ.stocks` queue"
func TestDeadLetterTopics(t *testing.T) {
	dla := func(more AddressSettings) AddressSettings {
		return more.over(AddressSettings{DeadLetterAddress: new("DLA")})
	}
	auto := dla(AddressSettings{AutoCreateDeadLetterResources: new(true)})
	renamed := dla(AddressSettings{AutoCreateDeadLetterResources: new(true), DeadLetterQueuePrefix: new(""), DeadLetterQueueSuffix: new(".DLQ")})
	for _, c := range []struct {
		name     string
		settings AddressSettings
		topic    string
		asked    bool
		want     []string
	}{
		{"no settings", AddressSettings{}, "stocks", false, []string{"%DLQ%g"}},
		{"no address", AddressSettings{MaxDeliveryAttempts: new(3)}, "stocks", false, nil},
		{"no address, but a consumer asked", AddressSettings{MaxDeliveryAttempts: new(3)}, "stocks", true, []string{"%DLQ%g"}},
		{"an address", dla(AddressSettings{}), "stocks", false, []string{"DLA"}},
		{"an address, asked", dla(AddressSettings{}), "stocks", true, []string{"DLA"}},
		{"the address taken away by a more specific pattern", dla(AddressSettings{DeadLetterAddress: new("")}), "stocks", false, nil},
		{"automatic", auto, "stocks", false, []string{"DLA", "DLQ.stocks"}},
		{"automatic, renamed", renamed, "stocks", false, []string{"DLA", "stocks.DLQ"}},
		{"automatic, no name of its own", renamed.policyWith("", ""), "stocks", false, []string{"DLA"}},
		{"a dead letter fails", auto, "DLA", false, []string{"%DLQ%g"}},
		{"a dead letter of the queue fails", auto, "DLQ.stocks", false, []string{"%DLQ%g"}},
		{"a name that no topic can have", auto, string(slices.Repeat([]byte("x"), 127)), false, []string{"DLA"}},
	} {
		group := GroupConfig{}.withDefaults()
		if got := (policy{&group, c.settings.policy()}).deadLetterTopics("g", c.topic, c.asked); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func (s AddressSettings) policyWith(prefix, suffix string) AddressSettings {
	s.DeadLetterQueuePrefix, s.DeadLetterQueueSuffix = &prefix, &suffix
	return s
}

// Every message has a draw of its own, the same one whenever it is asked for,
// and together they are spread evenly.
func TestDraw(t *testing.T) {
	b := open(t, Options{})
	putTopic(t, b, "t", TopicConfig{Queues: 1})
	s, err := b.subscribe(t.Context(), "g", "t")
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	var sum float64
	negative := 0
	for i := range n {
		l := &lease{cursor: s.cursors[0], offset: int64(i / 4)}
		l.Attempt = i % 4
		d := s.draw(l)
		if d != s.draw(l) || d.number < 0 || d.number >= 1 {
			t.Fatalf("draw %d is %+v", i, d)
		}
		sum += d.number
		if d.negative {
			negative++
		}
	}
	if mean := sum / n; math.Abs(mean-.5) > .02 {
		t.Errorf("the numbers' mean is %v", mean)
	}
	if share := float64(negative) / n; math.Abs(share-.5) > .02 {
		t.Errorf("%v of the draws are negative", share)
	}
}

func TestRetryPolicy(t *testing.T) {
	b := open(t, Options{})
	for _, name := range []string{"plain", "slow", "slow2", "ever"} {
		putTopic(t, b, name, TopicConfig{})
	}
	slow := AddressSettings{RedeliveryDelay: new(Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(Milliseconds(15000))}
	putAddress(t, b, "slow", slow)
	putAddress(t, b, "slow2", slow)
	putAddress(t, b, "ever", AddressSettings{MaxDeliveryAttempts: new(-1)})
	ladder, steps := backoff.RetryLadder(), backoff.Steps{5 * time.Second, 10 * time.Second, 15 * time.Second}
	for _, c := range []struct {
		topics []string
		want   RetryPolicy
	}{
		{nil, RetryPolicy{17, ladder}},
		{[]string{"plain", "not there"}, RetryPolicy{17, ladder}},
		{[]string{"slow"}, RetryPolicy{10, steps}},
		{[]string{"slow", "slow2"}, RetryPolicy{10, steps}},
		{[]string{"slow", "plain"}, RetryPolicy{17, ladder}},
		{[]string{"slow", "ever"}, RetryPolicy{-1, ladder}},
		{[]string{"ever"}, RetryPolicy{-1, backoff.Steps{0}}},
	} {
		got := b.RetryPolicy(GroupConfig{}, c.topics...)
		if got.MaxAttempts != c.want.MaxAttempts || !slices.Equal(got.Ladder, c.want.Ladder) {
			t.Errorf("%q: %+v, want %+v", c.topics, got, c.want)
		}
	}
}

// failures receives and fails a message until it does not come within a day, and
// returns the times between deliveries.
func failures(t *testing.T, b *Broker, group, topic string) (waits []time.Duration) {
	t.Helper()
	last := time.Now()
	for range 100 {
		ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Push: true, Wait: 24 * time.Hour})
		if len(ds) == 0 {
			return waits
		}
		waits = append(waits, time.Since(last))
		last = time.Now()
		// The consumer's wish does not count here.
		if err := b.Retry(t.Context(), ds[0], 7*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return waits
}

// Seed 002: "Such a message goes back to its queue ready to be redelivered."
//
// Seed 002: "By default, there is no redelivery delay"
//
// Seed 002: "If a `dead-letter-address` is not specified, messages will removed after
// `max-delivery-attempts` unsuccessful attempts."
func TestRedeliveryByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "exampleQueue", TopicConfig{})
		putAddress(t, b, "exampleQueue", AddressSettings{MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		if waits := failures(t, b, "g", "exampleQueue"); !slices.Equal(waits, []time.Duration{0, 0, 0}) {
			t.Errorf("the deliveries came after %v, want three at once", waits)
		}
		g, err := b.Group("g")
		if err != nil {
			t.Fatal(err)
		}
		if s := g.Topics[0]; s.Discarded != 1 || s.DeadLetters != 0 || s.Backlog.Messages != 0 {
			t.Errorf("the group is left with %+v", s)
		}
		if _, err := b.Topic("%DLQ%g"); err == nil {
			t.Error("it became a dead letter of the group")
		}
	})
}

// Seed 002: "Other subsequent messages will be delivery regularly, only the cancelled
// message will be sent asynchronously back to the queue after the delay."
//
// Failures and timeouts alike have the broker's delays, which are those of the seed's example.
// Seed 002: "It is possible to delay messages redelivery"
// Seed 002: "If a `redelivery-delay` is specified, Apache ActiveMQ Artemis will wait this delay before redelivering
// the messages"
// Seed 002: "redelivery-delay=5000, redelivery-delay-multiplier=2, max-redelivery-delay=15000"
func TestRedeliveryDelaysOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "exampleQueue", TopicConfig{Queues: 1})
		putAddress(t, b, "#", AddressSettings{
			RedeliveryDelay: new(Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(Milliseconds(15000)),
		})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", ID: "fails", Body: []byte("x")})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", ID: "next", Body: []byte("x")})
		request := transport.ReceiveRequest{Group: "g", Topic: "exampleQueue", Push: true, Wait: time.Hour, InvisibleDuration: time.Second}
		take := func() *tidegate.Delivery {
			t.Helper()
			ds := receive(t, b, request)
			if len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			return ds[0]
		}
		if err := b.Retry(t.Context(), take(), time.Hour); err != nil {
			t.Fatal(err)
		}
		failed := time.Now()
		d := take()
		if d.ID != "next" || time.Since(failed) != 0 {
			t.Fatalf("%s came after %v", d.ID, time.Since(failed))
		}
		b.Ack(t.Context(), []*tidegate.Delivery{d})
		if d = take(); d.ID != "fails" || time.Since(failed) != 5*time.Second {
			t.Errorf("%s came after %v", d.ID, time.Since(failed))
		}
		failed = time.Now()
		if d = take(); d.Attempt != 3 || time.Since(failed) != time.Second+10*time.Second { // it timed out
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
		// A simple consumer's retry interval is its invisible duration.
		request.Push = false
		failed = time.Now()
		if d = take(); time.Since(failed) != time.Second+15*time.Second {
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
		failed = time.Now()
		if d = take(); d.Attempt != 5 || time.Since(failed) != time.Second {
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
	})
}

// Seed 002: "the larger `redelivery-collision-avoidance-factor` you choose the larger the variance
// of the `redelivery-delay` will be"
func TestLargerFactorLargerVariance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	draws := make([]draw, 1000)
	for i := range draws {
		draws[i] = draw{rnd.IntN(2) == 0, rnd.Float64()}
	}
	before := -1.0
	for _, factor := range []float64{0, .1, .15, .5, .9, 1} {
		r := AddressSettings{RedeliveryDelay: new(Milliseconds(1000)), RedeliveryCollisionAvoidanceFactor: &factor}.policy().redelivery
		sum, squares := 0.0, 0.0
		for _, d := range draws {
			x := r.after(1, d).Seconds()
			sum += x
			squares += x * x
		}
		mean := sum / float64(len(draws))
		variance := squares/float64(len(draws)) - mean*mean
		if variance <= before+1e-12 && factor > 0 || factor == 0 && math.Abs(variance) > 1e-12 || math.Abs(mean-1) > .05 {
			t.Errorf("factor %v: mean %v s, variance %v; with the factor before %v", factor, mean, variance, before)
		}
		before = variance
	}
}

// The draw is made once, when the message fails: a restart neither repeats it
// nor moves the due time.
//
// Seed 002: "By randomly padding the redelivery-delay by a small, configurable amount"
func TestCollisionsAreAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", TopicConfig{Queues: 2})
		putAddress(t, b, "t", AddressSettings{RedeliveryDelay: new(Milliseconds(100_000)), RedeliveryCollisionAvoidanceFactor: new(0.5)})
		for range 8 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		}
		start := time.Now()
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32, InvisibleDuration: time.Second})
		for _, d := range ds[:4] { // the others time out
			if err := b.Retry(t.Context(), d, 0); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Second)
		due := func() (times []time.Duration) {
			s := b.subs.all()[0]
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, l := range s.timers {
				times = append(times, l.Due.Sub(start))
			}
			slices.Sort(times)
			return times
		}
		before := due()
		if len(slices.Compact(slices.Clone(before))) != 8 || before[0] < 50*time.Second || before[7] > 151*time.Second {
			t.Errorf("the retries are due at %v", before)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, Options{Dir: "data", fs: fs})
		<-time.After(time.Second) // the timeouts are noticed anew
		if after := due(); !slices.Equal(before, after) {
			t.Errorf("after a restart they are due at %v, before at %v", after, before)
		}
	})
}
