package broker

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/redelivery"
)

// What happens after the last attempt depends on the group.
func TestRulesOfAGroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  GroupConfig
		maximum int
		then    consume.Exhaustion
	}{
		{GroupConfig{}, 17, consume.ThenDeadLetter},
		{GroupConfig{FIFO: true}, 17, consume.ThenDeadLetter},
		{GroupConfig{FIFO: true, OnExhausted: OnExhaustedPark}, 17, consume.ThenPark},
		{GroupConfig{FIFO: true, OnExhausted: OnExhaustedBlock, MaxAttempts: 3}, 3, consume.ThenBlock},
		{GroupConfig{FIFO: true, OnExhausted: OnExhaustedPark, MaxAttempts: -1}, -1, consume.ThenPark},
	} {
		config := c.config.WithDefaults()
		if got := (policy{&config, &addressPolicy{}}).rules(); got.MaxAttempts != c.maximum || got.OnExhausted != c.then {
			t.Errorf("%+v: maximum %d, then %d; want %d, %d", c.config, got.MaxAttempts, got.OnExhausted, c.maximum, c.then)
		}
	}
}

// What address settings that say something of redelivery do not set has its default.
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
		settings AddressSettings
		want     redelivery.Rules
	}{
		{
			AddressSettings{DeadLetterAddress: new("")}, // as a more specific pattern takes it away
			redelivery.Rules{Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			AddressSettings{RedeliveryDelay: new(Milliseconds(100)), RedeliveryDelayMultiplier: new(3.0)},
			redelivery.Rules{Delay: 100 * ms, Longest: 1000 * ms, Multiplier: 3, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			AddressSettings{RedeliveryDelay: new(maxMilliseconds)},
			redelivery.Rules{Delay: maxMilliseconds.Duration(), Longest: maxMilliseconds.Duration(), Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			AddressSettings{
				RedeliveryDelay: new(Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(Milliseconds(15000)),
				RedeliveryCollisionAvoidanceFactor: new(0.5), MaxDeliveryAttempts: new(-1), DeadLetterAddress: new("DLA"),
				AutoCreateDeadLetterResources: new(true), DeadLetterQueuePrefix: new(""), DeadLetterQueueSuffix: new(".DLQ"),
			},
			redelivery.Rules{
				Delay: 5000 * ms, Longest: 15000 * ms, Multiplier: 2, Factor: 0.5, MaxAttempts: -1,
				DeadLetter: "DLA", AutoCreate: true, Suffix: ".DLQ",
			},
		},
	} {
		if got := newAddressPolicy(c.settings).redelivery; got == nil || *got != c.want {
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
	group := GroupConfig{}.WithDefaults()
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
		rules := policy{&group, newAddressPolicy(c.settings)}.rules()
		if got := rules.LastAttempt(c.attempt); got != c.exhausted {
			t.Errorf("%+v: attempt %d is the last one: %t", c.settings, c.attempt, got)
		}
	}
}

func TestRetryPolicy(t *testing.T) {
	t.Parallel()
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

// A retry topic's dead letters go to a topic that is named after the original topic.
func TestDeadLetterTopicsOfRetryTopics(t *testing.T) {
	t.Parallel()
	for naming, want := range map[RetryNaming]string{RetryNaming292: "t-g-DLQ", RetryNaming272: "g-DLQ", RetryNaming261: "g-dlq"} {
		rc := RetryTopicConfig{Enabled: true, Naming: naming}.WithDefaults()
		p := policy{&GroupConfig{RetryTopic: rc}, &addressPolicy{}}
		for _, topic := range []string{"t", rc.RetryName("t", "g")} {
			if got := p.deadLetterTopics("g", topic, false); !slices.Equal(got, []string{want}) {
				t.Errorf("naming %s: the dead letters of %s go to %q, want %q", naming, topic, got, want)
			}
		}
	}
}
