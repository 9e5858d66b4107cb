package rocketmq

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// The tests in this file call functions without effects, and others whose cases a server cannot
// cause at will. All other tests use the API and a server.

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
			assert.That(t, lo == want[0] && hi == want[1], "%s: delay %d between %v and %v, want %v", tt.name, n, lo, hi, want)
			d := got.Delay(n)
			assert.That(t, d >= lo && d <= hi, "%s: delay %d is %v, not between %v and %v", tt.name, n, d, lo, hi)
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
		got := consumerSettings(s, tt.can).Retry
		assert.That(t, reflect.DeepEqual(got, tt.want), "%s: %v, want %v", tt.name, got, tt.want)
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
		got := consumerSettings(s, transport.Capabilities{})
		assert.That(t, got == (transport.ConsumerSettings{}), "%s: consumer %+v", name, got)
	}
	for wire, want := range map[int32]int{0: 0, 17: 17, -1: -1, math.MaxInt32: -1} {
		got := consumerSettings(&rmqpb.Settings{BackoffPolicy: policy(wire, nil)}, transport.Capabilities{}).MaxAttempts
		assert.That(t, got == want, "max_attempts %d: %d, want %d", wire, got, want)
	}
}

// The counted bytes are at least the transmitted bytes.
func TestNamedSize(t *testing.T) {
	for _, f := range []*rmqpb.FilterExpression{nil, tagFilter("*"), {Type: rmqpb.FilterType_SQL, Expression: strings.Repeat("x", 20000)}} {
		for _, topic := range []string{"t", strings.Repeat("t", 127), strings.Repeat("t", 128)} {
			for _, ns := range []string{"", "ns", strings.Repeat("n", 200)} {
				res := &rmqpb.Resource{Name: topic, ResourceNamespace: ns}
				travels := proto.Size(&rmqpb.Subscription{Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: res, Expression: f}}})
				if f == nil {
					travels = proto.Size(&rmqpb.Publishing{Topics: []*rmqpb.Resource{res}})
				}
				if got := namedSize(topic, ns, f); got < travels || got > travels+24 {
					t.Errorf("topic of %d, namespace of %d bytes: %d, want %d", len(topic), len(ns), got, travels)
				}
			}
		}
	}
}

// A client without Options.Logger logs nothing.
func TestDefaults(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil || o.Logger.Enabled(t.Context(), slog.LevelError) || !headerSafe(o.ClientID) || o.RequestTimeout != 3*time.Second ||
		o.MaxReceiveSize != 32<<20 || o.ConnectBackoff.Max != 120*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	p, _ := (Options{}).withDefaults()
	assert.That(t, p.ClientID != o.ClientID, "two clients have the ID %s", p.ClientID)
}

// The capabilities of a server may change while Send divides its messages. Each message group stays
// in one part.
func TestGroupsStayTogetherWhileCapabilitiesChange(t *testing.T) {
	ep, link := &conn.Server{Key: "127.0.0.1:8081"}, &conn.Connection{}
	ep.Link.Store(new(conn.Link))
	ep.Link.Load().Saw(link)
	s := &sending{t: &topic{}, r: &conn.Route{ByGroup: []conn.Queue{{Server: ep}}, Interleaved: []conn.Queue{{Server: ep}}}}
	for i := range 200 {
		s.msgs = append(s.msgs, &tidegate.Message{MessageGroup: fmt.Sprint("g", i%3)}, &tidegate.Message{})
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			link.Features.Store(&conn.Features{Capabilities: transport.Capabilities{Batch: true}})
			link.Features.Store(&conn.Features{})
		}
	}()
	defer func() { <-done }()
	defer stop.Store(true)
	for range 2000 {
		at := map[string]int{} // the part of a group
		for i, p := range s.split() {
			for _, m := range p.indexes {
				group := s.msgs[m].MessageGroup
				before, ok := at[group]
				assert.MustThat(t, !ok || before == i || group == "", "group %q is in two parts", group)
				at[group] = i
			}
		}
	}
}

// The SDK derives two names from a consumer group: the client ID of each kind of consumer, by which
// servers keep settings, and the topic of its dead letters. Each derived name belongs to that group
// alone, with any legal characters in the name of the group.
func TestNamesOfGroupsAreDistinct(t *testing.T) {
	c := assert.Value(New("127.0.0.1:8081", Options{}))(t)
	defer c.Close()
	groups, words := []string{}, []string{"a", "b", "-", "_", "|", "%", "simple", "DLQ", "RETRY"}
	for _, x := range words {
		groups = append(groups, x)
		for _, y := range words {
			groups = append(groups, x+y)
			for _, z := range words {
				groups = append(groups, x+y+z)
			}
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	ids, letters := map[string]role{fmt.Sprint(c.identity(role{})): {}}, map[string]string{}
	for _, group := range groups {
		assert.Must(t, tidegate.ValidateGroup(group))
		for _, as := range []role{{group: group}, {group: group, push: true}, liteRole(group, "a"), liteRole(group, "@simple"), liteRole(group, "lite@a")} {
			id := fmt.Sprint(c.identity(as))
			other, ok := ids[id]
			assert.That(t, !ok, "%+v and %+v have the identity %s", as, other, id)
			ids[id] = as
		}
		topic := tidegate.DeadLetterTopic(group)
		other, ok := letters[topic]
		assert.That(t, !ok, "groups %s and %s have the dead letter topic %s", group, other, topic)
		letters[topic] = group
	}
	for _, group := range []string{"a@simple", "a@b"} { // of which a client ID could be that of another group
		assert.That(t, tidegate.ValidateGroup(group) != nil, "group %s is legal", group)
	}
}

func TestReceiveHasBytesByDefault(t *testing.T) {
	for maxBytes, want := range map[int]int{0: defaultReceiveBytes, -1: defaultReceiveBytes, 1: 1} {
		g := (&Client{}).collector(nil, &transport.ReceiveRequest{MaxBytes: maxBytes}, 1)
		assert.That(t, g.maxBytes == want, "MaxBytes %d: %d, want %d", maxBytes, g.maxBytes, want)
	}
}

// Without a stream a session accepts no watch. The server could leave one on a stream that it
// believes to be open.
func TestNoWatchWithoutAStream(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	s, queue := &session{ctx: ctx}, wire.Queue{Topic: "t", Queue: -1}
	assert.That(t, s.watch(t.Context(), queue) == nil, "a session without a stream has a watch")
	if s.ready = true; s.watch(t.Context(), queue) == nil {
		t.Error("a session with a stream has no watch")
	}
	if end(); s.watch(t.Context(), queue) != nil {
		t.Error("a closed session has a watch")
	}
}
