package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// maxSettingsSize bounds what is remembered of each client, in bytes.
	maxSettingsSize = 64 << 10

	// receiveBatchSize is the most messages in one receive (RocketMQ: 32).
	receiveBatchSize = 32

	// maxChecks and maxCheckBytes bound what waits to be written to one stream.
	maxChecks     = 1024
	maxCheckBytes = 8 << 20
)

// A telemetry is one Telemetry stream. One goroutine reads; everything is
// written by the handler's own.
type telemetry struct {
	maySend func(topic string) bool // whether its client may, now

	again chan struct{} // capacity 1: a wish for the settings, once more
	kick  chan struct{} // capacity 1: there are checks

	mu     sync.Mutex
	checks []*rmqpb.RecoverOrphanedTransactionCommand // guarded by mu
	bytes  int                                        // guarded by mu: their size
}

func newTelemetry(maySend func(topic string) bool) *telemetry {
	return &telemetry{maySend: maySend, again: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
}

// push has a check of that size written to the stream, and returns false if
// too many wait already. It never blocks.
func (t *telemetry) push(c *rmqpb.RecoverOrphanedTransactionCommand, size int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.checks) >= maxChecks || len(t.checks) > 0 && t.bytes+size > maxCheckBytes {
		return false
	}
	t.checks, t.bytes = append(t.checks, c), t.bytes+size
	select {
	case t.kick <- struct{}{}:
	default:
	}
	return true
}

// taken returns the checks that wait, and forgets them.
func (t *telemetry) taken() []*rmqpb.RecoverOrphanedTransactionCommand {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.checks
	t.checks, t.bytes = nil, 0
	return out
}

// resend asks the stream for the settings once more. It never blocks: one
// wish at a time is enough.
func (t *telemetry) resend() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// Telemetry implements rmqpb.MessagingServiceServer.
func (v *service) Telemetry(stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]) (err error) {
	defer asStatus(&err)
	defer v.s.recovered("Telemetry", &err)
	// At once: RocketMQ's Rust client waits for the headers before it goes on.
	if err := stream.SendHeader(features); err != nil {
		return err
	}
	ctx := stream.Context()
	began, under := time.Now(), v.s.gate.current.Load()
	id, err := v.s.admit(ctx, rpcTelemetry, (*rmqpb.Settings)(nil))
	if err != nil {
		return refuseStream(stream, err)
	}
	t := newTelemetry(func(topic string) bool { return v.s.mayStillSend(ctx, began, topic) })
	defer v.s.sessions.detach(id, t)
	return v.s.converse(ctx, id, began, under, t, stream)
}

// refuseStream tells the client why its stream ends. gRPC's own words are not
// used: its ResourceExhausted would say that a message is too large.
func refuseStream(stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand], err error) error {
	e, _ := errors.AsType[*tidegate.Error](err)
	return stream.Send(&rmqpb.TelemetryCommand{Status: statusOf(e)})
}

// converse answers the client's settings until the stream or the server ends,
// or access rules hold that do not allow it.
func (s *Server) converse(ctx context.Context, id string, began time.Time, under *regime, t *telemetry,
	stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand],
) error {
	commands := make(chan *rmqpb.TelemetryCommand)
	var readErr error // written before commands is closed
	s.wg.Go(func() {
		defer close(commands)
		for {
			var cmd *rmqpb.TelemetryCommand
			if cmd, readErr = stream.Recv(); readErr != nil {
				return
			}
			select {
			case commands <- cmd:
			case <-ctx.Done(): // the handler returned
				return
			}
		}
	})
	language := header(ctx, headerLanguage)
	var settings *rmqpb.Settings // the last that it sent
	for {
		select {
		case cmd, ok := <-commands:
			switch {
			case !ok && errors.Is(readErr, io.EOF):
				return nil
			case !ok:
				return readErr
			}
			s.b.Touch(id)
			s.sessions.get(id)
			in := cmd.GetSettings()
			if in == nil {
				continue // an answer to a command that this server never gives, or nothing
			}
			if _, err := s.admitSince(ctx, began, rpcTelemetry, in); err != nil {
				return refuseStream(stream, err)
			}
			settings = in
			p, err := profileOf(in, language)
			if err != nil {
				return err
			}
			c, err := s.sessions.attach(id, t, p)
			if err != nil {
				return refuseStream(stream, err)
			}
			if err := s.sendSettings(ctx, c, p, stream); err != nil {
				return err
			}
		case <-t.again:
			c := s.sessions.get(id)
			if c == nil {
				continue
			}
			if p := c.profile.Load(); p != nil {
				if err := s.sendSettings(ctx, c, p, stream); err != nil {
					return err
				}
			}
		case <-t.kick:
			for _, c := range t.taken() {
				if err := stream.Send(&rmqpb.TelemetryCommand{
					Status: statusOK, Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{RecoverOrphanedTransactionCommand: c},
				}); err != nil {
					return err
				}
			}
		case <-under.over.Done():
			under = s.gate.current.Load()
			now, err := s.admitSince(ctx, began, rpcTelemetry, settings)
			if err != nil {
				return refuseStream(stream, err)
			}
			if now != id {
				return nil // it is another client's by these rules, and opens another stream
			}
		case <-s.draining:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (s *Server) sendSettings(ctx context.Context, c *session, p *profile,
	stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand],
) error {
	out, err := s.settings(ctx, p)
	if e, ok := errors.AsType[*tidegate.Error](err); ok && errors.Is(err, tidegate.ErrInvalid) {
		return status.Error(codes.InvalidArgument, textOf(e))
	} else if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	c.sent.Store(out)
	return stream.Send(&rmqpb.TelemetryCommand{Status: statusOK, Command: &rmqpb.TelemetryCommand_Settings{Settings: out}})
}

// profileOf checks a client's settings. Its error is a gRPC status, which ends
// the stream, as RocketMQ's proxy does.
func profileOf(in *rmqpb.Settings, language string) (*profile, error) {
	p := &profile{clientType: in.GetClientType(), language: language, settings: in}
	bad := func(format string, args ...any) (*profile, error) {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("settings: "+format, args...))
	}
	if n := proto.Size(in); n > maxSettingsSize {
		return bad("they have %d bytes, at most %d are allowed", n, maxSettingsSize)
	}
	var topics []*rmqpb.Resource
	switch pubSub := in.GetPubSub().(type) {
	case *rmqpb.Settings_Publishing:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_PRODUCER
		}
		if p.clientType != rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is publishing", p.clientType)
		}
		topics = pubSub.Publishing.GetTopics()
	case *rmqpb.Settings_Subscription:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_SIMPLE_CONSUMER
		}
		if p.clientType == rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is subscription", p.clientType)
		}
		p.group = pubSub.Subscription.GetGroup().GetName()
		if err := tidegate.ValidateGroup(p.group); err != nil {
			return bad("subscription.group: %s", err)
		}
		for _, e := range pubSub.Subscription.GetSubscriptions() {
			topics = append(topics, e.GetTopic())
		}
	default:
		return bad("there is no publishing or subscription data in them: set pub_sub")
	}
	for _, topic := range topics {
		if err := tidegate.ValidateTopic(topic.GetName()); err != nil {
			return bad("topics: %s", err)
		}
	}
	return p, nil
}

// settings returns the client's settings merged with what the server wants of it.
func (s *Server) settings(ctx context.Context, p *profile) (*rmqpb.Settings, error) {
	out := proto.CloneOf(p.settings)
	out.Metric = &rmqpb.Metric{} // off
	if pub := out.GetPublishing(); pub != nil {
		out.BackoffPolicy = &rmqpb.RetryPolicy{
			MaxAttempts: int32(min(s.o.ProducerMaxAttempts, math.MaxInt32)),
			Strategy:    exponential(s.o.ProducerBackoff.Initial, s.o.ProducerBackoff.Max, s.o.ProducerBackoff.Multiplier),
		}
		pub.MaxBodySize = int32(min(s.maxBody, math.MaxInt32))
		pub.ValidateMessageType = true
		return out, nil
	}
	c, err := s.b.EnsureGroup(ctx, p.group)
	if err != nil {
		return nil, err
	}
	sub := out.GetSubscription()
	sub.Fifo = &c.FIFO
	sub.ReceiveBatchSize = proto.Int32(receiveBatchSize)
	sub.LongPollingTimeout = durationpb.New(s.o.MaxLongPolling)
	topics := make([]string, len(sub.GetSubscriptions()))
	for i, e := range sub.GetSubscriptions() {
		topics[i] = e.GetTopic().GetName()
	}
	out.BackoffPolicy = retryPolicy(s.b.RetryPolicy(c, topics...), p.language)
	return out, nil
}

// retryPolicy returns a policy as a client of the language reads it.
// RocketMQ's Node client knows only exponential policies, the others read
// ladders (and Python nothing else).
func retryPolicy(p broker.RetryPolicy, language string) *rmqpb.RetryPolicy {
	steps := p.Ladder
	if len(steps) == 0 { // a ladder without steps: every delay is 0; clients refuse an empty list
		steps = []time.Duration{0}
	}
	out := &rmqpb.RetryPolicy{MaxAttempts: math.MaxInt32} // for ever
	if p.MaxAttempts > 0 {
		out.MaxAttempts = int32(min(p.MaxAttempts, math.MaxInt32))
	}
	if language == languageNode {
		multiplier := 2.0
		if len(steps) == 1 {
			multiplier = 1
		}
		out.Strategy = exponential(steps[0], max(steps[0], steps[len(steps)-1]), multiplier)
		return out
	}
	next := make([]*durationpb.Duration, len(steps))
	for i, d := range steps {
		next[i] = durationpb.New(d)
	}
	out.Strategy = &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: next}}
	return out
}

func exponential(initial, longest time.Duration, multiplier float64) *rmqpb.RetryPolicy_ExponentialBackoff {
	return &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{
		Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: float32(multiplier),
	}}
}
