package rocketmq

import (
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

func wireExponential(initial, longest time.Duration, multiplier float32) *rmqpb.RetryPolicy {
	return &rmqpb.RetryPolicy{Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{
		Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: multiplier,
	}}}
}

func wireSteps(attempts int32, seconds ...int64) *rmqpb.RetryPolicy {
	c := new(rmqpb.CustomizedBackoff)
	for _, s := range seconds {
		c.Next = append(c.Next, &durationpb.Duration{Seconds: s})
	}
	return &rmqpb.RetryPolicy{MaxAttempts: attempts, Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: c}}
}

// A server without features can lengthen the backoff of "RocketMQ: sending retry and throttling"
// but not shorten it. A server with features can do both.
func TestPushedThrottleBackoff(t *testing.T) {
	ours := transport.Capabilities{PushBack: true}
	type bounds [2]time.Duration
	const s = time.Second
	for _, tt := range []struct {
		name   string
		pushed *rmqpb.RetryPolicy
		can    transport.Capabilities
		want   map[int]bounds // nil: the client's default
	}{
		{"RocketMQ's own", wireExponential(10*time.Millisecond, s, 2), transport.Capabilities{}, nil},
		{"the same of ours", wireExponential(10*time.Millisecond, s, 2), ours, map[int]bounds{0: {8 * time.Millisecond, 12 * time.Millisecond}, 9: {800 * time.Millisecond, 1200 * time.Millisecond}}},
		{"longer from the start", wireExponential(10*s, 100*s, 2), transport.Capabilities{}, map[int]bounds{0: {8 * s, 12 * s}, 1: {16 * s, 24 * s}, 40: {96 * s, 144 * s}}},
		{"longer in the end", wireExponential(s/10, 1000*s, 4), transport.Capabilities{}, map[int]bounds{0: {800 * time.Millisecond, 1200 * time.Millisecond}, 40: {800 * s, 1200 * s}}},
		{"longer at the end, but shorter at every step", wireExponential(10*time.Millisecond, 5*s, 2), transport.Capabilities{}, nil},
		{"the same as the seed's", wireExponential(s, 120*s, 1.6), transport.Capabilities{}, nil},
		{"shorter for long, longer in the end", wireExponential(10*time.Millisecond, 121*s, 1.1), transport.Capabilities{},
			map[int]bounds{0: {800 * time.Millisecond, 1200 * time.Millisecond}, 300: {96800 * time.Millisecond, 145200 * time.Millisecond}}},
		{"flat and short", wireExponential(s/2, 1000*s, 1), transport.Capabilities{}, nil},
		{"flat and long", wireExponential(2*s, 2*s, 1), transport.Capabilities{}, map[int]bounds{0: {1600 * time.Millisecond, 2400 * time.Millisecond}}},
		{"steps that end below", wireSteps(0, 1, 1, 2, 4, 6, 10, 16, 26, 42, 68, 109, 119), transport.Capabilities{}, nil},
		{"steps that end above", wireSteps(0, 1, 1, 2, 4, 6, 10, 16, 26, 42, 68, 109, 120, 120, 121), transport.Capabilities{}, map[int]bounds{13: {96800 * time.Millisecond, 145200 * time.Millisecond}}},
		{"short steps", wireSteps(0, 0, 1), transport.Capabilities{}, nil},
		{"long steps", wireSteps(0, 0, 300), transport.Capabilities{}, map[int]bounds{0: {800 * time.Millisecond, 1200 * time.Millisecond}, 1: {240 * s, 360 * s}}},
		{"steps of ours", wireSteps(0, 0, 10), ours, map[int]bounds{0: {0, 0}, 1: {8 * s, 12 * s}, 9: {8 * s, 12 * s}}},
		{"nothing", nil, transport.Capabilities{}, nil},
		{"nothing of ours", nil, ours, nil},
	} {
		got := producerSettings(&rmqpb.Settings{BackoffPolicy: tt.pushed}, tt.can).Backoff
		if (got == nil) != (tt.want == nil) {
			t.Errorf("%s: %#v", tt.name, got)
			continue
		}
		for n, want := range tt.want {
			lo, hi := got.(policy).Range(n)
			if lo != want[0] || hi != want[1] {
				t.Errorf("%s: delay %d between %v and %v, want %v", tt.name, n, lo, hi, want)
			}
			if d := got.Delay(n); d < lo || d > hi {
				t.Errorf("%s: delay %d is %v, not between %v and %v", tt.name, n, d, lo, hi)
			}
		}
	}
}

// RocketMQ's table is read as RocketMQ's broker reads it; every other schedule does not change.
func TestPushedLadder(t *testing.T) {
	whole := wireSteps(17, 1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200) // of RocketMQ 5.2
	asIs := append(backoff.Steps{time.Second, 5 * time.Second}, backoff.RetryLadder()...)
	for _, tt := range []struct {
		name   string
		pushed *rmqpb.RetryPolicy
		fifo   bool
		can    transport.Capabilities
		want   backoff.Policy
	}{
		{"RocketMQ's table", whole, false, transport.Capabilities{}, backoff.RetryLadder()},
		{"in order", whole, true, transport.Capabilities{}, backoff.Steps{3 * time.Second}},
		{"of ours", whole, false, transport.Capabilities{Suspend: true}, asIs},
		{"of ours, in order", whole, true, transport.Capabilities{Suspend: true}, asIs},
		{"the group's own", wireSteps(4, 1, 5, 10), false, transport.Capabilities{}, backoff.Steps{time.Second, 5 * time.Second, 10 * time.Second}},
		{"the group's own, in order", wireSteps(4, 2), true, transport.Capabilities{}, backoff.Steps{2 * time.Second}},
		{"exponential", wireExponential(5*time.Second, time.Hour, 2), false, transport.Capabilities{},
			backoff.Exponential{Initial: 5 * time.Second, Max: time.Hour, Multiplier: 2, Jitter: backoff.NoJitter}},
		{"nothing", nil, false, transport.Capabilities{}, nil},
	} {
		s := &rmqpb.Settings{BackoffPolicy: tt.pushed, PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{Fifo: &tt.fifo}}}
		if got := consumerSettings(s, tt.can).Retry; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Missing and invalid settings of a server are ignored.
func TestSettingsIncomplete(t *testing.T) {
	policy := func(n int32, e *rmqpb.ExponentialBackoff) *rmqpb.RetryPolicy {
		return &rmqpb.RetryPolicy{MaxAttempts: n, Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: e}}
	}
	second := durationpb.New(time.Second)
	for name, s := range map[string]*rmqpb.Settings{
		"nothing":       {},
		"no multiplier": {BackoffPolicy: policy(0, &rmqpb.ExponentialBackoff{Initial: second, Max: second})},
		"negative":      {BackoffPolicy: policy(0, &rmqpb.ExponentialBackoff{Initial: durationpb.New(-1), Max: second, Multiplier: 2})},
		"empty ladder":  {BackoffPolicy: &rmqpb.RetryPolicy{Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{}}},
		"bad ladder": {BackoffPolicy: &rmqpb.RetryPolicy{Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{
			CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: []*durationpb.Duration{second, durationpb.New(-1)}}}}},
	} {
		if got := producerSettings(s, transport.Capabilities{}); got != (transport.ProducerSettings{}) {
			t.Errorf("%s: producer %+v", name, got)
		}
		if got := consumerSettings(s, transport.Capabilities{}); got != (transport.ConsumerSettings{}) {
			t.Errorf("%s: consumer %+v", name, got)
		}
	}
	for wire, want := range map[int32]int{0: 0, 17: 17, -1: -1, math.MaxInt32: -1} {
		if got := consumerSettings(&rmqpb.Settings{BackoffPolicy: policy(wire, nil)}, transport.Capabilities{}).MaxAttempts; got != want {
			t.Errorf("max_attempts %d: %d, want %d", wire, got, want)
		}
	}
}
