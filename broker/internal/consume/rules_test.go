package consume

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
)

const ms = time.Millisecond

// Artemis: undelivered messages: "Each time a message is redelivered the delay period will be equal
// to the previous delay * `redelivery-delay-multiplier`. A `max-redelivery-delay` can be set to
// prevent the delay from becoming too large. The `max-redelivery-delay` is defaulted to
// `redelivery-delay` \* 10."
//
// Artemis: undelivered messages: "This factor will be made either positive or negative at random to
// control whether the ultimate value will increase or decrease the `redelivery-delay`. Then it's
// multiplied by a random number between 0.0 and 1.0. This result is then multiplied by the
// `redelivery-delay` and then added to the `redelivery-delay` to arrive at the final value."
// Artemis: undelivered messages: "redelivery-delay=5000, redelivery-delay-multiplier=2,
// max-redelivery-delay=15000"
// Artemis: undelivered messages: "redelivery-delay=1000, redelivery-delay-multiplier=1,
// max-redelivery-delay=15000, redelivery-collision-avoidance-factor=0.5"
// Artemis: undelivered messages: "the larger `redelivery-collision-avoidance-factor` you choose the
// larger the variance of the `redelivery-delay` will be"
func TestAfter(t *testing.T) {
	type failure struct {
		attempt int
		draw    Draw
		want    time.Duration
	}
	for name, c := range map[string]struct {
		rules    RetryRules
		failures []failure
	}{
		`Artemis: undelivered messages: "redelivery-delay=5000, redelivery-delay-multiplier=2, max-redelivery-delay=15000"`: {
			RetryRules{Delay: 5000 * ms, Multiplier: 2, Longest: 15000 * ms},
			[]failure{{attempt: 1, want: 5000 * ms}, {attempt: 2, want: 10000 * ms}, {attempt: 3, want: 15000 * ms}, {attempt: 4, want: 15000 * ms}, {attempt: math.MaxInt, want: 15000 * ms}},
		},
		`Artemis: undelivered messages: "redelivery-delay=1000, redelivery-delay-multiplier=1, max-redelivery-delay=15000, redelivery-collision-avoidance-factor=0.5"`: {
			RetryRules{Delay: 1000 * ms, Multiplier: 1, Longest: 15000 * ms, Factor: .5},
			[]failure{{1, Draw{true, .25}, 875 * ms}, {2, Draw{false, .75}, 1375 * ms}, {3, Draw{true, .05}, 975 * ms}},
		},
		"the maximum is between two steps": {
			RetryRules{Delay: 100 * ms, Multiplier: 3, Longest: 1000 * ms},
			[]failure{{attempt: 1, want: 100 * ms}, {attempt: 2, want: 300 * ms}, {attempt: 3, want: 900 * ms}, {attempt: 4, want: 1000 * ms}},
		},
		"without a factor chance has no part": {
			RetryRules{Delay: 100 * ms, Multiplier: 1, Longest: 1000 * ms},
			[]failure{{1, Draw{false, .9}, 100 * ms}, {2, Draw{true, .9}, 100 * ms}, {9, Draw{false, .9}, 100 * ms}},
		},
		"chance does not go beyond the maximum": {
			RetryRules{Delay: 1000 * ms, Multiplier: 1, Longest: 1200 * ms, Factor: 1},
			[]failure{{1, Draw{false, .9}, 1200 * ms}, {1, Draw{true, .9}, 100 * ms}},
		},
		"a multiplier below 1": {
			RetryRules{Delay: 1000 * ms, Multiplier: .5, Longest: 10000 * ms},
			[]failure{{attempt: 2, want: 500 * ms}, {attempt: 3, want: 250 * ms}},
		},
		"no delay": {
			RetryRules{Multiplier: 1e300, Factor: 1, Longest: 5 * ms},
			[]failure{{1, Draw{false, .9}, 0}, {1000, Draw{true, .9}, 0}},
		},
	} {
		for _, f := range c.failures {
			got := c.rules.After(f.attempt, f.draw)
			assert.That(t, got == f.want, "%s: after attempt %d with %+v it is %v, want %v", name, f.attempt, f.draw, got, f.want)
		}
	}
}

// For all rules, a delay is neither negative nor above the maximum. Without the random part it is
// at least the delay before it if the multiplier is 1 or more.
func TestAfterProperties(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	const most = 100 * 365 * 24 * time.Hour
	pick := func() time.Duration {
		switch rnd.IntN(4) {
		case 0:
			return 0
		case 1:
			return most
		}
		return time.Duration(math.Exp(rnd.Float64()*math.Log(float64(most/ms)))) * ms
	}
	for range 20000 {
		r := RetryRules{Delay: pick(), Longest: pick(), Multiplier: math.Exp(rnd.NormFloat64() * 50), Factor: rnd.Float64()}
		before := time.Duration(0)
		for _, attempt := range []int{-1, 0, 1, 2, 3, 17, 1000, 1 << 20, math.MaxInt} {
			d := Draw{rnd.IntN(2) == 0, rnd.Float64()}
			if got := r.After(attempt, d); got < 0 || got > r.Longest {
				t.Fatalf("seed %d: %+v after attempt %d with %+v: %v", seed, r, attempt, d, got)
			}
			got := r.After(attempt, Draw{})
			assert.MustThat(t, r.Multiplier < 1 || got >= before,
				"seed %d: %+v after attempt %d: %v, and %v before", seed, r, attempt, got, before)
			before = got
		}
	}
}

// A retry schedule ends with the step that repeats. Without such a step its length is bounded.
func TestLadder(t *testing.T) {
	for _, c := range []struct {
		rules RetryRules
		want  backoff.Steps
	}{
		{RetryRules{Multiplier: 1}, backoff.Steps{0}},
		{RetryRules{Delay: 5 * time.Second, Multiplier: 1, Longest: time.Minute, Factor: 1}, backoff.Steps{5 * time.Second}},
		{RetryRules{Delay: 5 * time.Second, Multiplier: 2, Longest: 15 * time.Second}, backoff.Steps{5 * time.Second, 10 * time.Second, 15 * time.Second}},
	} {
		got := c.rules.Ladder()
		assert.That(t, slices.Equal(got, c.want), "%+v: %v, want %v", c.rules, got, c.want)
	}
	slow := RetryRules{Delay: time.Second, Multiplier: 1.001, Longest: time.Hour}
	assert.Equal(t, "steps", len(slow.Ladder()), maxSteps)
}

// Artemis: undelivered messages: "a message sent to the `stocks` address that couldn't be delivered
// for some reason might be ultimately routed to the `DLQ.stocks` queue"
func TestDeadLetterTopics(t *testing.T) {
	none, address := RetryRules{Prefix: "DLQ."}, RetryRules{DeadLetter: "DLA", Prefix: "DLQ."}
	auto := RetryRules{DeadLetter: "DLA", AutoCreate: true, Prefix: "DLQ."}
	renamed := RetryRules{DeadLetter: "DLA", AutoCreate: true, Suffix: ".DLQ"}
	unnamed := RetryRules{DeadLetter: "DLA", AutoCreate: true}
	for _, c := range []struct {
		name  string
		rules RetryRules
		topic string
		early bool
		want  []string
	}{
		{"no address", none, "stocks", false, nil},
		{"no address, but a consumer asked", none, "stocks", true, []string{"own"}},
		{"an address", address, "stocks", false, []string{"DLA"}},
		{"an address, asked", address, "stocks", true, []string{"DLA"}},
		{"automatic", auto, "stocks", false, []string{"DLA", "DLQ.stocks"}},
		{"automatic, renamed", renamed, "stocks", false, []string{"DLA", "stocks.DLQ"}},
		{"automatic, no name of its own", unnamed, "stocks", false, []string{"DLA"}},
		{"automatic, named as the address", RetryRules{DeadLetter: "DLQ.stocks", AutoCreate: true, Prefix: "DLQ."}, "stocks", false, []string{"DLQ.stocks"}},
		{"a dead letter fails", auto, "DLA", false, []string{"own"}},
		{"a dead letter of the queue fails", auto, "DLQ.stocks", false, []string{"own"}},
		{"a name that begins so, and there are no queues", address, "DLQ.stocks", false, []string{"DLA"}},
		{"a name that no topic can have", auto, strings.Repeat("x", 127), false, []string{"DLA"}},
	} {
		got := c.rules.DeadLetterTopics("own", c.topic, c.early)
		assert.That(t, slices.Equal(got, c.want), "%s: %q, want %q", c.name, got, c.want)
	}
}

// The action after the last attempt depends on the policy, the event and the message.
func TestExhaustion(t *testing.T) {
	t.Parallel()
	park, block := Policy{MaxAttempts: 17, OnExhausted: ThenPark}, Policy{MaxAttempts: 17, OnExhausted: ThenBlock}
	dead := Policy{MaxAttempts: 17, OnExhausted: ThenDeadLetter}
	none := Policy{MaxAttempts: -1, OnExhausted: ThenPark}
	limited := Policy{MaxAttempts: 1, MaxRedeliveries: 3, OnExhausted: ThenPark}
	for i, c := range []struct {
		policy   Policy
		event    Event
		attempt  int
		group    string
		negative bool
		want     Exhaustion
	}{
		{dead, EventFail, 16, "", false, AttemptsLeft},
		{dead, EventFail, 17, "", false, ThenDeadLetter},
		{dead, EventFail, 17, "a", false, ThenDeadLetter},
		{park, EventFail, 16, "a", false, AttemptsLeft},
		{park, EventTimeout, 18, "a", false, ThenPark},
		{park, EventFail, 17, "", false, ThenDeadLetter},
		{block, EventDue, 17, "a", false, ThenBlock},
		{block, EventFail, 17, "", false, ThenDeadLetter},
		{none, EventFail, 1000, "a", false, AttemptsLeft},
		{dead, EventNegativeAck, 99, "", false, AttemptsLeft}, // it has no maximum by default
		{limited, EventNegativeAck, 3, "a", false, AttemptsLeft},
		{limited, EventNegativeAck, 4, "a", false, ThenPark},
		{limited, EventDue, 2, "a", true, AttemptsLeft}, // the wait after one has no maximum
		{limited, EventDue, 2, "a", false, ThenPark},
	} {
		l := &Lease{Lease: store.Lease{Attempt: c.attempt, Group: c.group, Negative: c.negative}}
		got := c.policy.exhaustion(c.event, l)
		assert.That(t, got == c.want, "case %d: %d, want %d", i, got, c.want)
	}
}

// Every message has a draw of its own for each failure, which is always the same.
func TestDraw(t *testing.T) {
	t.Parallel()
	p := New(Config{Group: 1, Topic: 2})
	p.AddQueue(store.Mark{})
	seen := map[Draw]bool{}
	for i := range 1000 {
		l := &Lease{cursor: p.cursors[0], offset: int64(i / 4)}
		l.Attempt, l.Serial = i/2%2, uint32(i%2)
		d := p.draw(l)
		if d != p.draw(l) || seen[d] {
			t.Fatalf("draw %d is %+v; seen: %t", i, d, seen[d])
		}
		seen[d] = true
	}
}

func TestRenewedUntil(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	for _, c := range []struct{ seen, longest, want time.Duration }{
		{0, 12 * time.Hour, time.Minute},
		{30 * time.Second, 12 * time.Hour, 90 * time.Second},
		{5 * time.Hour, 12 * time.Hour, 3 * time.Hour},
		{5 * time.Hour, time.Hour, time.Hour},
	} {
		got := renewedUntil(start.Add(c.seen), start, c.longest).Sub(start)
		assert.That(t, got == c.want, "heartbeat after %v, at most %v: until %v, want %v", c.seen, c.longest, got, c.want)
	}
}

// Equal numbers give equal draws in every version of the broker, because due times from before a
// restart are derived from them.
func TestDrawFrom(t *testing.T) {
	for _, c := range []struct {
		got  Draw
		want Draw
	}{
		{drawFrom(1, 2, 3, 4, 5, 6), Draw{true, 6927598689757807.0 / (1 << 53)}},
		{drawFrom(7, 1, 0, 1000, 1<<31, 1), Draw{false, 1361872726598930.0 / (1 << 53)}},
	} {
		assert.Equal(t, "it is", c.got, c.want)
	}
}

// Draws for things that differ a little differ, and together they are spread evenly.
func TestDrawsAreSpread(t *testing.T) {
	const n = 20000
	var sum float64
	negative := 0
	seen := map[float64]bool{}
	for i := range uint64(n) {
		d := drawFrom(1, 1, 0, i/4, 7, i%4)
		if d.Number < 0 || d.Number >= 1 || seen[d.Number] {
			t.Fatalf("draw %d is %+v; seen: %t", i, d, seen[d.Number])
		}
		seen[d.Number] = true
		sum += d.Number
		if d.Negative {
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

// A due time that is read from the disk is never further ahead than the duration for which it was
// set, and a delivery never begins in the future. Times in the past stay what they are.
func TestRestoredTimes(t *testing.T) {
	t.Parallel()
	set := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		state      State
		since, due time.Duration // after set
		span       time.Duration // 0: a record of an earlier version
		now        time.Duration // after set
		wantDue    time.Duration // after now
		wantSince  time.Duration // after now
	}{
		"the clock runs on":                  {Inflight, 0, 10 * time.Second, 10 * time.Second, 4 * time.Second, 6 * time.Second, -4 * time.Second},
		"an hour behind":                     {Inflight, 0, 10 * time.Second, 10 * time.Second, -time.Hour, 10 * time.Second, 0},
		"a retry, an hour behind":            {WaitingRetry, -time.Minute, 5 * time.Second, 5 * time.Second, -time.Hour, 5 * time.Second, 0},
		"a minute behind, a longer retry":    {WaitingRetry, 0, time.Hour, time.Hour, -time.Minute, time.Hour, 0},
		"in 1970":                            {Inflight, 0, 10 * time.Second, 10 * time.Second, -set.Sub(time.Unix(0, 0)), 10 * time.Second, 0},
		"four days ahead":                    {Inflight, 0, 10 * time.Second, 10 * time.Second, 96 * time.Hour, 10*time.Second - 96*time.Hour, -96 * time.Hour},
		"an extension":                       {Inflight, -time.Hour, time.Minute, time.Minute, -30 * time.Minute, time.Minute, -30 * time.Minute},
		"an old record":                      {Inflight, 0, 10 * time.Second, 0, 4 * time.Second, 6 * time.Second, -4 * time.Second},
		"an old record, an hour behind":      {Inflight, 0, 10 * time.Second, 0, -time.Hour, 10 * time.Second, 0},
		"an old retry, an hour behind":       {WaitingRetry, -20 * time.Second, 10 * time.Second, 0, -time.Hour, 30 * time.Second, 0},
		"parked since then, an hour behind":  {Parked, -time.Minute, 0, 0, -time.Hour, time.Hour, 0},
		"ready again, then an hour behind":   {Ready, -time.Minute, 0, 0, -time.Hour, time.Minute, 0},
		"ready again, and the clock runs on": {Ready, -time.Minute, 0, 0, time.Hour, -time.Hour, -time.Hour - time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := set.Add(c.now)
			due, since := restoredTimes(&store.Lease{State: uint8(c.state), Due: set.Add(c.due), Since: set.Add(c.since), Span: c.span}, now)
			if due.Sub(now) != c.wantDue || since.Sub(now) != c.wantSince {
				t.Errorf("due in %v, want %v; delivered %v, want %v", due.Sub(now), c.wantDue, since.Sub(now), c.wantSince)
			}
		})
	}
	due, since := restoredTimes(&store.Lease{}, set)
	assert.That(t, due.IsZero() && since.IsZero(), "a lease without times gets %v and %v", due, since)
}

// Restored times have a monotonic part, so a later step of the wall clock does not change them.
func TestRestoredTimesAreMonotonic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	due, since := restoredTimes(&store.Lease{State: uint8(Inflight), Due: now.Round(0).Add(time.Second), Since: now.Round(0)}, now)
	for _, at := range []time.Time{due, since} {
		if at == at.Round(0) { // Round(0) removes the monotonic part
			t.Errorf("%v has no monotonic part", at)
		}
	}
}

// The package's doc has the state machine as a table for people: row by row
// the one of the code.
func TestStateMachineIsDocumented(t *testing.T) {
	t.Parallel()
	var code []string
	add := func(m map[State]map[Event]State, condition string) {
		for from, events := range m {
			for e, to := range events {
				code = append(code, strings.Join([]string{from.String(), e.String(), to.String(), condition}, " "))
			}
		}
	}
	add(transitions, "-")
	add(pushTransitions, "push consumer")
	add(exhaustedTransitions[ThenDeadLetter], "exhausted: "+"dead-letter")
	add(exhaustedTransitions[ThenPark], "exhausted: "+"park")
	add(exhaustedTransitions[ThenBlock], "exhausted: "+"block")
	slices.Sort(code)

	text := assert.Value(os.ReadFile("../../doc.go"))(t)
	_, table, ok := strings.Cut(string(text), "//	from          event         to            condition\n")
	assert.MustThat(t, ok, "doc.go has no table")
	table, _, _ = strings.Cut(table, "\n//\n")
	var doc []string
	rank := map[string]int{"exhausted:": 0, "push": 1, "-": 2}
	before := []string{"", "", "", "-"}
	for line := range strings.Lines(table) {
		words := strings.Fields(strings.TrimPrefix(line, "//"))
		doc = append(doc, strings.Join(words, " "))
		assert.That(t, words[0] != before[0] || words[1] != before[1] || rank[words[3]] >= rank[before[3]],
			"%q stands below a row that holds before it", line)
		before = words
	}
	slices.Sort(doc)
	if !slices.Equal(doc, code) {
		t.Errorf("the doc has\n%s\nthe code\n%s", strings.Join(doc, "\n"), strings.Join(code, "\n"))
	}
}

// The names are in logs, errors and the table in the documentation of package broker.
func TestNamesOfStatesAndEvents(t *testing.T) {
	for s, want := range map[State]string{
		Ready: "Ready", Inflight: "Inflight", WaitingRetry: "WaitingRetry", Commit: "Commit",
		DeadLetter: "DeadLetter", Parked: "Parked", Held: "Held", 99: "unknown",
	} {
		got := s.String()
		assert.That(t, got == want, "state %d is %q, want %q", uint8(s), got, want)
	}
	for e, want := range map[Event]string{
		EventDeliver: "deliver", EventAck: "ack", EventFail: "fail", EventTimeout: "timeout", EventChange: "change", EventRelease: "release",
		EventDue: "due", EventDeadLetter: "dead-letter", EventNegativeAck: "negative-ack",
		EventReconsume: "reconsume", EventPromote: "promote", EventRedrive: "redrive",
	} {
		got := e.String()
		assert.That(t, got == want, "event %d is %q, want %q", uint8(e), got, want)
	}
}

// checkFate compares the fate of a message with its state in the model.
func (m *model) checkFate(msg *message) {
	want := msg.state
	switch {
	case msg.state != Ready || !msg.passed || m.isHead(msg):
	case m.stands(msg) == Parked:
		want = Parked
	default:
		want = Held
	}
	f := m.p.Fate(msg.queue, msg.offset, msg.group)
	if f.Spilled {
		if _, ok := m.disk.spilled[store.Place{Topic: m.p.config.Topic, Queue: uint16(msg.queue), Offset: msg.offset}]; !ok {
			f = Fate{State: Commit}
		}
	}
	if f.State != want {
		m.failf("the fate of %d/%d is %v, want %v", msg.queue, msg.offset, f.State, want)
	}
	if isNew := msg.state == Ready && !msg.passed; f.New != isNew {
		m.failf("the fate of %d/%d is new: %v, want %v", msg.queue, msg.offset, f.New, isNew)
	}
	switch msg.state {
	case Inflight, WaitingRetry, Parked:
		if f.Attempt != msg.attempt || !f.Due.Equal(msg.due) || f.Blocked != msg.blocked {
			m.failf("the fate of %d/%d has attempt %d, due %v, blocked %v; want %d, %v, %v", msg.queue, msg.offset, f.Attempt, f.Due, f.Blocked, msg.attempt, msg.due, msg.blocked)
		}
	}
	if f.State == Parked && f.Reason == "" {
		m.failf("the fate of %d/%d is parked without a reason", msg.queue, msg.offset)
	}
	if f.Head == nil {
		return
	}
	head := m.messages[f.Head.Queue][f.Head.Offset]
	if head.group != msg.group || !m.isHead(head) || !head.undone() || head == msg || m.isHead(msg) {
		m.failf("%d/%d waits for %d/%d, which is not the head of its message group", msg.queue, msg.offset, head.queue, head.offset)
	}
}

// The state machine, written out a second time, as a list.
// RocketMQ: consumption retry: "Retry process state machine: controls the state and the change
// logic of messages in the retry process"
func TestStateMachine(t *testing.T) {
	t.Parallel()
	exhaustions := []Exhaustion{AttemptsLeft, ThenDeadLetter, ThenPark, ThenBlock}
	type results [4]State // by Exhaustion, in that order
	always := func(to State) results { return results{to, to, to, to} }
	type pair struct {
		from State
		e    Event
	}
	// A pair that is not in want cannot happen, for any consumer and any number of attempts.
	want := map[pair]results{
		{Ready, EventDeliver}:           always(Inflight),
		{Ready, EventDeadLetter}:        {DeadLetter, DeadLetter, Parked, Ready},
		{Inflight, EventAck}:            always(Commit),
		{Inflight, EventReconsume}:      always(Commit),
		{Inflight, EventSnooze}:         always(WaitingRetry),
		{Inflight, EventFail}:           {WaitingRetry, DeadLetter, Parked, WaitingRetry},
		{Inflight, EventNegativeAck}:    {WaitingRetry, DeadLetter, Parked, WaitingRetry},
		{Inflight, EventTimeout}:        {Ready, DeadLetter, Parked, Ready},
		{Inflight, EventChange}:         always(Inflight),
		{Inflight, EventRelease}:        always(Ready),
		{Inflight, EventDeadLetter}:     {DeadLetter, DeadLetter, Parked, WaitingRetry},
		{WaitingRetry, EventDue}:        {Ready, DeadLetter, Parked, Ready},
		{WaitingRetry, EventDeadLetter}: {DeadLetter, DeadLetter, Parked, WaitingRetry},
		{Parked, EventRedrive}:          always(Ready),
		{Parked, EventDeadLetter}:       always(DeadLetter),
		{Held, EventPromote}:            always(Ready),
	}
	// The differences for push consumers: a timeout schedules a retry, as a failure does.
	wantPush := map[pair]results{
		{Inflight, EventTimeout}: {WaitingRetry, DeadLetter, Parked, WaitingRetry},
	}
	for from := Ready; from <= Held; from++ {
		for e := EventDeliver; e <= EventRedrive; e++ {
			for i, x := range exhaustions {
				for _, push := range []bool{false, true} {
					to, can := want[pair{from, e}]
					if other, ok := wantPush[pair{from, e}]; ok && push {
						to = other
					}
					if got, ok := from.Next(e, x, push); ok != can || ok && got != to[i] {
						t.Errorf("%v, event %v, exhaustion %d, push %v: %v, %v; want %v, %v", from, e, x, push, got, ok, to[i], can)
					}
				}
			}
		}
	}
}
