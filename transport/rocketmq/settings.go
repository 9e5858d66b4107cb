package rocketmq

import (
	"cmp"
	"context"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// settingsCommand returns the settings of the session. They list the topics used recently, up to
// the size that servers accept.
func (s *session) settingsCommand() *rmqpb.TelemetryCommand {
	c := s.c
	clientType := s.role.clientType()
	settings := &rmqpb.Settings{
		ClientType:     &clientType,
		AccessPoint:    c.access.PB,
		RequestTimeout: durationpb.New(c.opts.RequestTimeout),
		UserAgent: &rmqpb.UA{
			Language: rmqpb.Language_GOLANG,
			Version:  conn.ClientVersion,
			Platform: runtime.GOOS + "/" + runtime.GOARCH,
			Hostname: c.host,
		},
	}
	topics := s.takeTopics()
	if s.role.group == "" {
		p := new(rmqpb.Publishing)
		for _, t := range topics {
			p.Topics = append(p.Topics, c.resource(t.topic))
		}
		settings.PubSub = &rmqpb.Settings_Publishing{Publishing: p}
	} else {
		sub := &rmqpb.Subscription{Group: c.resource(s.role.group)}
		for _, t := range topics {
			sub.Subscriptions = append(sub.Subscriptions,
				&rmqpb.SubscriptionEntry{Topic: c.resource(t.topic), Expression: t.filter})
		}
		settings.PubSub = &rmqpb.Settings_Subscription{Subscription: sub}
	}
	return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}
}

// ProducerSettings returns the settings that the server of the topic's queues pushed last.
//
// The first call for a server opens a session with it. The client ends a session that no call has
// used for twice [Options].SettingsSync. Send needs no session.
//
// A server without features pushes one backoff for all retries. ProducerSettings returns the longer
// delay of this backoff and of backoff.Default() for each retry. If the pushed delays are never
// longer, Backoff is nil, and the producer uses backoff.Default().
func (c *Client) ProducerSettings(ctx context.Context, topicName string) (transport.ProducerSettings, error) {
	t, r, err := c.route(ctx, opTelemetry, topicName)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	if len(r.ByGroup) == 0 {
		c.doubt(t)
		return transport.ProducerSettings{}, noQueue(opTelemetry, topicName, c.access.Key, "written")
	}
	ep := r.ByGroup[0].Server
	settings, err := c.settingsOf(ctx, ep, role{}, topicName)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	return producerSettings(settings, ep.Capabilities()), nil
}

// ConsumerSettings returns the settings that a server of the topic's queues pushed last.
//
// The first call for a server and group opens a session with it. The client ends a session that no
// call has used for twice [Options].SettingsSync, once no delivery received in it can still be
// settled.
//
// If a server without features pushes RocketMQ's table of 18 delays, Retry is that table from its
// third step on (RocketMQ: consumption retry), and 3 s for a FIFO group.
func (c *Client) ConsumerSettings(ctx context.Context, group, topicName string) (transport.ConsumerSettings, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return transport.ConsumerSettings{}, err
	}
	t, r, err := c.consumerRoute(ctx, opTelemetry, topicName)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	if len(r.Readers) == 0 {
		c.doubt(t)
		return transport.ConsumerSettings{}, noQueue(opTelemetry, topicName, c.access.Key, "read")
	}
	// Servers push the same settings to all consumers of a group, so any session will do.
	ep, as := r.Readers[0].Server, role{group: group, push: true}
	switch {
	case r.Accepts[rmqpb.MessageType_LITE]:
		as = c.liteRoleOf(ep.Key, group, topicName)
	case c.hasSession(ep, role{group: group}):
		as.push = c.hasSession(ep, as)
	}
	settings, err := c.settingsOf(ctx, ep, as, topicName)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	return consumerSettings(settings, ep.Capabilities()), nil
}

func (c *Client) settingsOf(ctx context.Context, ep *conn.Server, as role, topicName string) (*rmqpb.Settings, *tidegate.Error) {
	s, since, err := c.session(opTelemetry, ep, as, topicName, nil)
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.await(ctx, since, opTelemetry, topicName)
}

func (c *Client) hasSession(ep *conn.Server, as role) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[sessionKey{ep.Key, as}] != nil
}

// producerSettings converts the server's settings for a producer. can are the features that the
// server announced.
func producerSettings(s *rmqpb.Settings, can transport.Capabilities) transport.ProducerSettings {
	p := transport.ProducerSettings{
		MaxAttempts: positive(s.GetBackoffPolicy().GetMaxAttempts()),
		MaxBodySize: positive(s.GetPublishing().GetMaxBodySize()),
	}
	// The policy on the wire has no jitter, but producers that were throttled
	// together must not come back together.
	if d := delayer(s.GetBackoffPolicy(), backoff.Default().Jitter); d != nil {
		p.Backoff = throttleBackoff(d, can)
	}
	return p
}

// consumerSettings converts the server's settings for a consumer. can are the features that the
// server announced.
func consumerSettings(s *rmqpb.Settings, can transport.Capabilities) transport.ConsumerSettings {
	sub := s.GetSubscription()
	c := transport.ConsumerSettings{
		FIFO:             sub.GetFifo(),
		MaxAttempts:      deliveries(s.GetBackoffPolicy().GetMaxAttempts()),
		ReceiveBatchSize: positive(sub.GetReceiveBatchSize()),
		LongPolling:      durationOf(sub.GetLongPollingTimeout()),
	}
	if d := delayer(s.GetBackoffPolicy(), backoff.NoJitter); d != nil {
		c.Retry = retryLadder(d, c.FIFO, can)
	}
	return c
}

// A policy is a retry policy that a server can push.
type policy interface {
	backoff.Policy
	Range(n int) (lo, hi time.Duration)
}

// throttleBackoff returns the wait after a throttled attempt, or nil for the client's default, the
// backoff of "RocketMQ: sending retry and throttling". No shorter wait is used: RocketMQ pushes one
// policy for all retries, 10 ms doubled up to 1 s, and three attempts would end 40 ms after the
// first throttle. The policy of a server with features is used unchanged.
func throttleBackoff(pushed policy, can transport.Capabilities) backoff.Policy {
	if can != (transport.Capabilities{}) {
		return pushed
	}
	shortest := backoff.Default()
	if !exceeds(pushed, shortest) {
		return nil
	}
	return atLeast{pushed, shortest}
}

// exceeds reports whether any delay of p, without jitter, is longer than that of least.
func exceeds(p policy, least backoff.Exponential) bool {
	delay, steps := p.Delay, 0
	switch p := p.(type) {
	case backoff.Exponential:
		if p.Multiplier > 1 && p.Max > least.Max {
			return true // in the end
		}
		delay = p.Base
	case spreadSteps:
		delay, steps = p.steps.Delay, len(p.steps)
	}
	// From where least is at its longest, no exponential delay is longer that was not before.
	for n := 0; n < steps || least.Base(n-1) < least.Max; n++ {
		if delay(n) > least.Base(n) {
			return true
		}
	}
	return false
}

// atLeast has the delays of one policy where they are not shorter than the other's.
type atLeast struct{ policy, least policy }

func (a atLeast) Delay(n int) time.Duration { return max(a.policy.Delay(n), a.least.Delay(n)) }

func (a atLeast) Range(n int) (lo, hi time.Duration) {
	lo, hi = a.policy.Range(n)
	leastLo, leastHi := a.least.Range(n)
	return max(lo, leastLo), max(hi, leastHi)
}

// delayLevels is RocketMQ's table of delays, which it pushes to every group
// that has none of its own.
var delayLevels = append(backoff.Steps{time.Second, 5 * time.Second}, backoff.RetryLadder()...)

// fifoRetryInterval is the fixed interval of RocketMQ for ordered messages.
const fifoRetryInterval = 3 * time.Second

// retryLadder returns the delays between deliveries. RocketMQ's broker itself begins with the third
// step of its table (RocketMQ: consumption retry: 10 s), but pushes the whole table. It also pushes
// the table to FIFO groups, whose interval is fixed.
func retryLadder(pushed policy, fifo bool, can transport.Capabilities) backoff.Policy {
	steps, ok := pushed.(backoff.Steps)
	switch {
	case can != (transport.Capabilities{}) || !ok || !slices.Equal(steps, delayLevels):
		return pushed
	case fifo:
		return backoff.Steps{fifoRetryInterval}
	}
	return backoff.RetryLadder()
}

// delayer returns the policy's delays, nil if it has none that make sense.
func delayer(p *rmqpb.RetryPolicy, jitter float64) policy {
	if e := p.GetExponentialBackoff(); e != nil {
		x := backoff.Exponential{
			Initial:    durationOf(e.GetInitial()),
			Max:        durationOf(e.GetMax()),
			Multiplier: decimal(e.GetMultiplier()),
			Jitter:     jitter,
		}
		// A field that the server left out is a policy without sense, and not ours.
		if x.Initial == 0 || x.Max == 0 || x.Multiplier == 0 || x.Validate() != nil {
			return nil
		}
		return x
	}
	var steps backoff.Steps
	for _, d := range p.GetCustomizedBackoff().GetNext() {
		if d.CheckValid() != nil {
			return nil
		}
		steps = append(steps, d.AsDuration())
	}
	switch {
	case len(steps) == 0 || steps.Validate() != nil:
		return nil
	case jitter > 0:
		return spreadSteps{steps, jitter}
	}
	return steps
}

// spreadSteps are steps with jitter, a share of each.
type spreadSteps struct {
	steps  backoff.Steps
	jitter float64
}

func (s spreadSteps) step(n int) backoff.Exponential {
	d := s.steps.Delay(n)
	return backoff.Exponential{Initial: d, Multiplier: 1, Jitter: s.jitter, Max: d}
}

func (s spreadSteps) Delay(n int) time.Duration {
	if s.steps.Delay(n) == 0 {
		return 0
	}
	return s.step(n).Delay(0)
}

func (s spreadSteps) Range(n int) (lo, hi time.Duration) {
	if s.steps.Delay(n) == 0 {
		return 0, 0
	}
	return s.step(n).Range(0)
}

// decimal returns the number that was meant by f: 1.6, where float64(f) is a little more.
func decimal(f float32) float64 {
	d, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64) // a number's own text
	return d
}

// durationOf returns 0 for a duration that is missing, illegal or negative.
func durationOf(d *durationpb.Duration) time.Duration {
	if d.CheckValid() != nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

func positive(n int32) int { return int(max(n, 0)) }

// deliveries returns -1 for no limit. Servers send a negative number or the largest one for it.
func deliveries(n int32) int {
	if n < 0 || n == math.MaxInt32 {
		return -1
	}
	return int(n)
}

// maxNamedBytes bounds the encoded topics in the settings of a session. It is three quarters of the
// size that a tidegate broker accepts for all settings. The broker ends a stream with larger
// settings, and the session could then never open.
const maxNamedBytes = 48 << 10

// A namedTopic is a topic in the settings of a session.
type namedTopic struct {
	filter *rmqpb.FilterExpression // nil for producers
	usedAt time.Time
}

// chooseTopics returns the sorted names of the topics for the settings: the topics used within
// maxIdle before now, the most recently used first, up to limit bytes. The most recently used topic
// is always among them. The others can be left out, because each request names its topic. forget
// lists the topics that were not used within maxIdle.
func chooseTopics(topics map[string]namedTopic, namespace string, now time.Time, maxIdle time.Duration, limit int) (names, forget []string) {
	latest := slices.SortedFunc(maps.Keys(topics), func(a, b string) int {
		return cmp.Or(topics[b].usedAt.Compare(topics[a].usedAt), cmp.Compare(a, b))
	})
	size, full := 0, false
	for i, name := range latest {
		t := topics[name]
		if i > 0 && now.Sub(t.usedAt) > maxIdle {
			return sorted(names), latest[i:]
		}
		size += namedSize(name, namespace, t.filter)
		if full = full || i > 0 && size > limit; !full {
			names = append(names, name)
		}
	}
	return sorted(names), nil
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// namedSize returns an upper bound of the encoded size of a topic in settings.
func namedSize(name, namespace string, filter *rmqpb.FilterExpression) int {
	const around = 24 // tags and lengths
	return len(name) + len(namespace) + proto.Size(filter) + around
}

// name adds a topic to the settings. If the topic or its filter is new, the settings are sent
// again. The call counts as a use of the session.
func (s *session) name(topic string, f *rmqpb.FilterExpression) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.usedAt = now
	old, ok := s.topics[topic]
	if ok && (f == nil || old.filter.GetType() == f.GetType() && old.filter.GetExpression() == f.GetExpression()) {
		s.topics[topic] = namedTopic{old.filter, now}
		return
	}
	if f == nil && s.role.group != "" {
		f = tagFilter("*")
	}
	s.topics[topic] = namedTopic{f, now}
	s.unsent = true
	s.poke()
}

// A naming is a topic to be named in the settings.
type naming struct {
	topic  string
	filter *rmqpb.FilterExpression
}

// takeTopics returns the topics to send, and removes the topics that were not used for long.
func (s *session) takeTopics() []naming {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = false
	names, forget := chooseTopics(s.topics, s.c.opts.Namespace, time.Now(), 2*s.c.opts.SettingsSync, maxNamedBytes)
	for _, name := range forget {
		delete(s.topics, name)
	}
	list := make([]naming, len(names))
	for i, name := range names {
		list[i] = naming{name, s.topics[name].filter}
	}
	return list
}
