package engine

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
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
		if got := rules.LastAttempt(c.attempt); got != c.exhausted {
			t.Errorf("%+v: attempt %d is the last one: %t", c.settings, c.attempt, got)
		}
	}
}

// A retry topic's dead letters go to a topic that is named after the original
func TestDeadLetterTopicsOfRetryTopics(t *testing.T) {
	t.Parallel()
	for naming, want := range map[settings.RetryNaming]string{settings.RetryNaming292: "t-g-DLQ", settings.RetryNaming272: "g-DLQ", settings.RetryNaming261: "g-dlq"} {
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
	if len(fields) != 10 {
		t.Fatalf("%d fields", len(fields))
	}
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
		if got := (change{Set: set, Configured: was}).over(is); got != set {
			t.Errorf("%v, configured as before: %+v, want %+v", f, got, set)
		}
		put(&is, 3)
		if got := (change{Set: set, Configured: was}).over(is); got != is {
			t.Errorf("%v, configured anew: %+v, want %+v", f, got, is)
		}
	}
	quota := func(rate float64, burst int) settings.Limits {
		return settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: rate, Burst: burst}}
	}
	c := change{Set: quota(10, 50), Configured: quota(5, 0)}
	if got := c.over(quota(0, 0)); got != quota(0, 0) {
		t.Errorf("a quota without a rate: %+v", got)
	}
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
