package engine

import (
	"cmp"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
)

// The end after the last attempt depends on the group.
func TestRulesOfAGroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  settings.Group
		maximum int
		then    consume.Exhaustion
	}{
		{settings.Group{}, 17, consume.ThenDeadLetter},
		{settings.Group{FIFO: true}, 17, consume.ThenDeadLetter},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark}, 17, consume.ThenPark},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedBlock, MaxAttempts: 3}, 3, consume.ThenBlock},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, MaxAttempts: -1}, -1, consume.ThenPark},
	} {
		config := c.config.WithDefaults()
		if got := (Policy{&config, &AddressPolicy{}}).Rules(); got.MaxAttempts != c.maximum || got.OnExhausted != c.then {
			t.Errorf("%+v: maximum %d, then %d; want %d, %d", c.config, got.MaxAttempts, got.OnExhausted, c.maximum, c.then)
		}
	}
}

// Fields that address settings with a part for redelivery leave out have their defaults.
//
// Artemis: undelivered messages: "Each time a message is redelivered the delay period will be equal
// to the previous delay * `redelivery-delay-multiplier`. A `max-redelivery-delay` can be set to
// prevent the delay from becoming too large. The `max-redelivery-delay` is defaulted to
// `redelivery-delay` \* 10."
// Artemis: undelivered messages: "default is 1.0"
// Artemis: undelivered messages: "default is 0.0"
// Artemis: undelivered messages: "`dead-letter-queue-suffix`|(empty string)"
// Artemis: undelivered messages: "default is redelivery-delay * 10"
func TestRedeliveryDefaults(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		settings settings.Address
		want     consume.RetryRules
	}{
		{
			settings.Address{DeadLetterAddress: new("")}, // as a more specific pattern takes it away
			consume.RetryRules{Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{RedeliveryDelay: new(settings.Milliseconds(100)), RedeliveryDelayMultiplier: new(3.0)},
			consume.RetryRules{Delay: 100 * ms, Longest: 1000 * ms, Multiplier: 3, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{RedeliveryDelay: new(maxMilliseconds)},
			consume.RetryRules{Delay: maxMilliseconds.Duration(), Longest: maxMilliseconds.Duration(), Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{
				RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
				RedeliveryCollisionAvoidanceFactor: new(0.5), MaxDeliveryAttempts: new(-1), DeadLetterAddress: new("DLA"),
				AutoCreateDeadLetterResources: new(true), DeadLetterQueuePrefix: new(""), DeadLetterQueueSuffix: new(".DLQ"),
			},
			consume.RetryRules{
				Delay: 5000 * ms, Longest: 15000 * ms, Multiplier: 2, Factor: 0.5, MaxAttempts: -1,
				DeadLetter: "DLA", AutoCreate: true, Suffix: ".DLQ",
			},
		},
	} {
		if got := newAddressPolicy(c.settings).Redelivery; got == nil || *got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// Artemis: undelivered messages: "By default, messages are redelivered 10 times at the maximum. Set
// `max-delivery-attempts` to -1 for infinite redeliveries."
//
// The default of max-delivery-attempts is 10, and it counts deliveries: the
// seed's 3 are "3 unsuccessful delivery attempts".
func TestMaxDeliveryAttempts(t *testing.T) {
	t.Parallel()
	group := settings.Group{}.WithDefaults()
	for _, c := range []struct {
		settings  settings.Address
		attempt   int
		exhausted bool
	}{
		{settings.Address{RedeliveryDelay: new(settings.Milliseconds(0))}, 9, false},
		{settings.Address{RedeliveryDelay: new(settings.Milliseconds(0))}, 10, true},
		{settings.Address{MaxDeliveryAttempts: new(3)}, 2, false},
		{settings.Address{MaxDeliveryAttempts: new(3)}, 3, true},
		{settings.Address{MaxDeliveryAttempts: new(-1)}, math.MaxInt, false},
		{settings.Address{}, 16, false}, // the group's own: 16 retries
		{settings.Address{}, 17, true},
		{settings.Address{ExpiryDelay: new(settings.Milliseconds(5)), PersistDeliveryCountBeforeDelivery: new(true)}, 16, false}, // without a setting of redelivery
	} {
		rules := Policy{&group, newAddressPolicy(c.settings)}.Rules()
		got := rules.LastAttempt(c.attempt)
		assert.That(t, got == c.exhausted, "%+v: attempt %d is the last one: %t", c.settings, c.attempt, got)
	}
}

// A retry topic's dead letters go to a topic that is named after the original
func TestDeadLetterTopicsOfRetryTopics(t *testing.T) {
	t.Parallel()
	for naming, want := range map[string]string{"2.9.2": "t-g-DLQ", "2.7.2": "g-DLQ", "2.6.1": "g-dlq"} {
		rc := settings.RetryTopic{Enabled: true, Naming: naming}.WithDefaults()
		p := Policy{&settings.Group{RetryTopic: rc}, &AddressPolicy{}}
		for _, topic := range []string{"t", rc.RetryName("t", "g")} {
			if got := p.DeadLetterTopics("g", topic, false); !slices.Equal(got, []string{want}) {
				t.Errorf("naming %s: the dead letters of %s go to %q, want %q", naming, topic, got, want)
			}
		}
	}
}

// Each limit follows its configured value if that has changed, and else its set value. A quota is
// one limit.
func TestEachLimitFollowsItsLastChange(t *testing.T) {
	t.Parallel()
	fields := leaves(reflect.TypeFor[settings.Limits](), nil)
	assert.MustEqual(t, "fields", len(fields), 10)
	for _, f := range fields {
		var was, set, is settings.Limits
		at := func(l *settings.Limits) reflect.Value { return reflect.ValueOf(l).Elem().FieldByIndex(f) }
		put := func(l *settings.Limits, n int64) {
			if v := at(l); v.CanFloat() {
				v.SetFloat(float64(n))
			} else {
				v.SetInt(n)
			}
		}
		put(&was, 1)
		put(&set, 2)
		put(&is, 1)
		got := (change{Set: set, Configured: was}).over(is)
		assert.That(t, got == set, "%v, configured as before: %+v, want %+v", f, got, set)
		put(&is, 3)
		got = (change{Set: set, Configured: was}).over(is)
		assert.That(t, got == is, "%v, configured anew: %+v, want %+v", f, got, is)
	}
	quota := func(rate float64, burst int) settings.Limits {
		return settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: rate, Burst: burst}}
	}
	c := change{Set: quota(10, 50), Configured: quota(5, 0)}
	assert.Equal(t, "a quota without a rate", c.over(quota(0, 0)), quota(0, 0))
}

// leaves returns the indices of all fields that are not structs.
func leaves(t reflect.Type, at []int) (out [][]int) {
	if t.Kind() != reflect.Struct {
		return [][]int{at}
	}
	for i := range t.NumField() {
		out = append(out, leaves(t.Field(i).Type, append(slices.Clip(at), i))...)
	}
	return out
}

// All stored settings of a topic or group are rejected, or can be used.
func FuzzStoredSettings(f *testing.F) {
	f.Add([]byte(`{"id":1,"type":"FIFO","queues":3,"duplicate_window":"1s"}`))
	f.Add([]byte(`{"id":1,"max_attempts":3,"retry":["1s","2s"],"fifo":true}`))
	f.Add([]byte(`{"queues":-1}`))
	f.Fuzz(func(t *testing.T, v []byte) {
		if st, err := decodeRecord("t", v); err == nil {
			tp := newTopic(TopicConfig{ID: st.ID, Name: "t"}, st.Topic)
			if tp.Pick("g") == nil || tp.Settings().IDWindow() < 0 {
				t.Fatalf("the settings are %+v", *tp.Settings())
			}
		}
		if st, err := decodeGroupRecord("g", v); err == nil {
			c := newGroup("g", st.ID, st.Group).Settings()
			for _, attempt := range []int{1, 17, 1 << 20} {
				d := c.Interval(attempt)
				assert.MustThat(t, d >= 0, "the interval after delivery %d is %v", attempt, d)
			}
		}
	})
}

// All valid settings, stored or sent, make a policy within its bounds.
func FuzzAddressSettings(f *testing.F) {
	f.Add(`{"redelivery-delay":5000,"redelivery-delay-multiplier":2,"max-redelivery-delay":15000}`, 3)
	f.Add(`{"redelivery-delay":"876000h","redelivery-collision-avoidance-factor":1,"max-delivery-attempts":-1}`, 1<<30)
	f.Add(`{"redelivery-delay-multiplier":1e308,"redelivery-delay":1}`, -1)
	f.Fuzz(func(t *testing.T, text string, attempt int) {
		var s settings.Address
		if json.Unmarshal([]byte(text), &s) != nil || s.Validate() != nil {
			return
		}
		r := newAddressPolicy(s).Redelivery
		if r == nil {
			return
		}
		for _, d := range []consume.Draw{{}, {Negative: true, Number: .999}, {Number: .999}} {
			if got := r.After(attempt, d); got < 0 || got > r.Longest {
				t.Errorf("%s: after attempt %d with %+v: %v, the maximum is %v", text, attempt, d, got, r.Longest)
			}
		}
		for _, name := range (Policy{&settings.Group{}, newAddressPolicy(s)}).DeadLetterTopics("g", "orders", false) {
			assert.That(t, name != "orders" && tidegate.ValidateTopic(name) == nil, "%s: dead letters go to %q", text, name)
		}
	})
}

// Any text is rejected or is the position of offsets that are not negative; the position has the
// same text again.
func FuzzCursor(f *testing.F) {
	s := &scan{query: &status.MessageQuery{}, readers: []*reader{{from: 7}, {from: 1 << 40}}}
	f.Add(s.cursor(), byte(forward))
	f.Add("AQ", byte(backward))
	f.Fuzz(func(t *testing.T, text string, direction byte) {
		at, err := parse(text, direction)
		if err != nil {
			return
		}
		s := &scan{query: &status.MessageQuery{}}
		for _, n := range at {
			assert.MustThat(t, n >= 0, "%q has the offset %d", text, n)
			s.readers = append(s.readers, &reader{from: n})
		}
		again, err := parse(s.cursor(), forward)
		assert.MustThat(t, err == nil && len(again) == len(at), "%v becomes %v, %v", at, again, err)
	})
}

func TestOwners(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	o.Touch("stranger", start)
	o.Own("a", OwnerPlace{1, 1}, start)
	o.Own("b", OwnerPlace{1, 1}, start)
	o.Own("c", OwnerPlace{1, 1}, start)
	o.Touch("a", start.Add(memory))
	o.Forget("c")
	o.Own("d", OwnerPlace{1, 1}, start.Add(memory+time.Second)) // removes b, whose last heartbeat is too long ago
	for owner, want := range map[string]time.Time{
		"stranger": {}, "a": start.Add(memory), "b": {}, "c": {}, "d": start.Add(memory + time.Second),
	} {
		at, ok := o.Last(owner)
		assert.That(t, at == want && ok != want.IsZero(), "Last(%q) = %v, %t, want %v", owner, at, ok, want)
	}
	assert.That(t, len(o.seen) == 2, "%d clients are remembered, want 2: %v", len(o.seen), o.seen)
}

// The end of a client concerns the places at which it received, each once.
func TestPlacesOfAClient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	for range 2 {
		for _, p := range []OwnerPlace{{1, 1}, {1, 2}, {2, 2}} {
			o.Own("a", p, now)
		}
		o.Own("b", OwnerPlace{3, 1}, now)
	}
	for _, c := range []struct {
		client string
		want   []OwnerPlace
	}{{"stranger", nil}, {"b", []OwnerPlace{{3, 1}}}, {"a", []OwnerPlace{{1, 1}, {1, 2}, {2, 2}}}, {"a", nil}} {
		got, many := o.Forget(c.client)
		slices.SortFunc(got, func(a, b OwnerPlace) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic)) })
		assert.That(t, slices.Equal(got, c.want) && !many, "Forget(%q) = %v, %t; want %v", c.client, got, many, c.want)
	}
}

// The places of a client are bounded.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var o Owners
	for _, n := range []int{mostPlaces, mostPlaces + 1, 3 * mostPlaces} {
		for i := range uint32(n) {
			o.Own("a", OwnerPlace{Group: i, Topic: 1}, time.Time{})
		}
		remembered := len(o.seen["a"].more)
		if got, many := o.Forget("a"); many != (n > mostPlaces) || !many && len(got) != n || many && remembered > 0 {
			t.Errorf("of %d places %d are remembered, and Forget returns %d and %t", n, remembered, len(got), many)
		}
	}
}
