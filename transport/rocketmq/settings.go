package rocketmq

import (
	"context"
	"runtime"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/headers"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/pushed"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
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
			Version:  headers.ClientVersion,
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
	return pushed.ProducerSettings(settings, ep.Capabilities()), nil
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
	// Servers push the same settings to push and simple consumers, so any session will do.
	ep, as := r.Readers[0].Server, role{group, true}
	if c.hasSession(ep, role{group, false}) {
		as.push = c.hasSession(ep, as)
	}
	settings, err := c.settingsOf(ctx, ep, as, topicName)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	return pushed.ConsumerSettings(settings, ep.Capabilities()), nil
}

func (c *Client) settingsOf(ctx context.Context, ep *remote.Server, as role, topicName string) (*rmqpb.Settings, *tidegate.Error) {
	s, since, err := c.session(opTelemetry, ep, as, topicName, nil)
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.await(ctx, since, opTelemetry, topicName)
}

func (c *Client) hasSession(ep *remote.Server, as role) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[sessionKey{ep.Key, as}] != nil
}
