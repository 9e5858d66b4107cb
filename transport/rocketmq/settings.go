package rocketmq

import (
	"context"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// settingsCommand tells what the session does.
func (s *session) settingsCommand() *rmqpb.TelemetryCommand {
	c := s.c
	clientType := s.role.clientType()
	settings := &rmqpb.Settings{
		ClientType:     &clientType,
		AccessPoint:    c.access.pb,
		RequestTimeout: durationpb.New(c.opts.RequestTimeout),
		UserAgent: &rmqpb.UA{
			Language: rmqpb.Language_GOLANG,
			Version:  clientVersion,
			Platform: runtime.GOOS + "/" + runtime.GOARCH,
			Hostname: c.host,
		},
	}
	topics := s.takeTopics()
	names := slices.Sorted(maps.Keys(topics))
	if s.role.group == "" {
		p := new(rmqpb.Publishing)
		for _, name := range names {
			p.Topics = append(p.Topics, c.resource(name))
		}
		settings.PubSub = &rmqpb.Settings_Publishing{Publishing: p}
	} else {
		sub := &rmqpb.Subscription{Group: c.resource(s.role.group)}
		for _, name := range names {
			sub.Subscriptions = append(sub.Subscriptions,
				&rmqpb.SubscriptionEntry{Topic: c.resource(name), Expression: topics[name]})
		}
		settings.PubSub = &rmqpb.Settings_Subscription{Subscription: sub}
	}
	return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}
}

// ProducerSettings returns what the server of the topic's queues pushed last;
// the first call for a server opens a session with it, which then stays. Send
// needs none.
func (c *Client) ProducerSettings(ctx context.Context, topicName string) (transport.ProducerSettings, error) {
	t, r, err := c.route(ctx, opTelemetry, topicName)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	if len(r.byGroup) == 0 {
		c.doubt(t)
		return transport.ProducerSettings{}, noQueue(opTelemetry, topicName, c.access.key, "written")
	}
	settings, err := c.settingsOf(ctx, r.byGroup[0].ep, role{}, topicName)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	return producerSettings(settings), nil
}

// ConsumerSettings returns what a server of the topic's queues pushed last; the
// first call for a server and group opens a session with it, which then stays.
func (c *Client) ConsumerSettings(ctx context.Context, group, topicName string) (transport.ConsumerSettings, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return transport.ConsumerSettings{}, err
	}
	t, r, err := c.consumerRoute(ctx, opTelemetry, topicName)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	if len(r.readers) == 0 {
		c.doubt(t)
		return transport.ConsumerSettings{}, noQueue(opTelemetry, topicName, c.access.key, "read")
	}
	// Servers tell both kinds of consumers the same: any session will do.
	ep, as := r.readers[0].ep, role{group, true}
	if c.hasSession(ep, role{group, false}) {
		as.push = c.hasSession(ep, as)
	}
	settings, err := c.settingsOf(ctx, ep, as, topicName)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	return consumerSettings(settings), nil
}

func (c *Client) settingsOf(ctx context.Context, ep *endpoint, as role, topicName string) (*rmqpb.Settings, *tidegate.Error) {
	s, err := c.session(opTelemetry, ep, as, topicName, nil)
	if err != nil {
		return nil, err
	}
	return s.await(ctx, opTelemetry, topicName)
}

func (c *Client) hasSession(ep *endpoint, as role) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[sessionKey{ep.key, as}] != nil
}

func producerSettings(s *rmqpb.Settings) transport.ProducerSettings {
	p := transport.ProducerSettings{
		MaxAttempts: positive(s.GetBackoffPolicy().GetMaxAttempts()),
		MaxBodySize: positive(s.GetPublishing().GetMaxBodySize()),
	}
	// The policy on the wire has no jitter, but producers that were refused
	// together must not come back together.
	if d := delayer(s.GetBackoffPolicy(), backoff.Default().Jitter); d != nil {
		p.Backoff = d
	}
	return p
}

func consumerSettings(s *rmqpb.Settings) transport.ConsumerSettings {
	sub := s.GetSubscription()
	c := transport.ConsumerSettings{
		FIFO:             sub.GetFifo(),
		MaxAttempts:      deliveries(s.GetBackoffPolicy().GetMaxAttempts()),
		ReceiveBatchSize: positive(sub.GetReceiveBatchSize()),
		LongPolling:      durationOf(sub.GetLongPollingTimeout()),
	}
	if d := delayer(s.GetBackoffPolicy(), 0); d != nil {
		c.Retry = d
	}
	return c
}

// delayer returns the policy's delays, nil if it has none that make sense.
func delayer(p *rmqpb.RetryPolicy, jitter float64) transport.Delayer {
	if e := p.GetExponentialBackoff(); e != nil {
		x := backoff.Exponential{
			Initial:    durationOf(e.GetInitial()),
			Max:        durationOf(e.GetMax()),
			Multiplier: float64(e.GetMultiplier()),
			Jitter:     jitter,
		}
		if x.Initial == 0 || x.Validate() != nil {
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
	if len(steps) == 0 || steps.Validate() != nil {
		return nil
	}
	return steps
}

// durationOf returns 0 for a duration that is missing, illegal or negative.
func durationOf(d *durationpb.Duration) time.Duration {
	if d.CheckValid() != nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

func positive(n int32) int { return int(max(n, 0)) }

// deliveries returns -1 for no limit, which servers say with a negative number
// or the largest one.
func deliveries(n int32) int {
	if n < 0 || n == math.MaxInt32 {
		return -1
	}
	return int(n)
}
