package server

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// maxReported bounds the queues of watches in one command: a client reads commands of up to 4 MiB.
const maxReported = 1000

// forgotten asks a client for its settings.
var forgotten = &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, Message: "the broker has no settings of this client; send them again"}

type telemetryStream = grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]

// telemetry serves Telemetry.
func (s *Server) telemetry(raw grpc.ServerStream) (err error) {
	defer asStatus(&err)
	defer s.recovered(requests.RPCTelemetry, &err)
	stream := telemetryStream(&grpc.GenericServerStream[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]{ServerStream: raw})
	// At once: RocketMQ's Rust client waits for the headers before it continues.
	if err := stream.SendHeader(s.features()); err != nil {
		return err
	}
	ctx := stream.Context()
	began, under := time.Now(), s.gate.Regime()
	id, err := s.admitSettings(ctx, began, nil)
	if err != nil {
		return refuseStream(stream, err)
	}
	place, err := s.park(ctx, 0)
	if err != nil {
		return refuseStream(stream, err)
	}
	defer place.Release()
	t := session.NewStream(s.gate.Sender(ctx, began))
	if requests.Announces(ctx, wire.FeatureWatch) {
		t.TakeWatches(s.watches)
	}
	if requests.Announces(ctx, wire.FeatureHeartbeats) {
		t.SharesHeartbeats(admission.LinkInfoOf(ctx).Link)
	}
	defer t.End()
	defer s.sessions.Detach(id, t)
	return s.converse(ctx, id, began, under, t, stream)
}

// refuseStream ends a stream with the reason, as the status of a command and of gRPC: RocketMQ's
// Node client reads the first, and its Java and Go clients show the second.
func refuseStream(stream telemetryStream, err error) error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok { // the gRPC status of a broken stream
		return err
	}
	st := requests.StatusOf(e)
	if err := stream.Send(&rmqpb.TelemetryCommand{Status: st}); err != nil {
		return err
	}
	return requests.EndOf(st)
}

// admitSettings returns the ID of a client that may have these settings by the
// rules that hold now; nil are those of a stream that begins.
func (s *Server) admitSettings(ctx context.Context, began time.Time, in *rmqpb.Settings) (id string, err error) {
	from, err := s.gate.Authenticate(ctx, began, requests.RPCTelemetry)
	if err != nil {
		return "", err
	}
	return s.gate.Admit(ctx, requests.RPCTelemetry, from, in)
}

// receiveCommand reads the next command of the client.
func receiveCommand(ctx context.Context, in *requests.Intake) (*rmqpb.TelemetryCommand, error) {
	cmd := &rmqpb.TelemetryCommand{}
	err := read(ctx, in, cmd)
	if g, ok := errors.AsType[*refusal.Cut](err); ok {
		return nil, g.Status
	}
	return cmd, err
}

// converse responds to the client's settings until the stream or the server ends,
// or access rules hold that do not allow it.
func (s *Server) converse(ctx context.Context, id string, began time.Time, under *auth.Regime, t *session.Stream, stream telemetryStream) error {
	commands := make(chan *rmqpb.TelemetryCommand)
	var readErr error // written before commands is closed
	in := s.intake(ctx)
	in.Streams = true
	s.wg.Go(func() {
		defer close(commands)
		defer in.Hold.Release()
		for {
			var cmd *rmqpb.TelemetryCommand
			if cmd, readErr = receiveCommand(ctx, in); readErr != nil {
				return
			}
			select {
			case commands <- cmd:
			case <-ctx.Done(): // the handler returned
				return
			}
		}
	})
	language, version, packed := requests.Header(ctx, wire.HeaderLanguage), requests.Header(ctx, wire.HeaderClientVersion), requests.Announces(ctx, wire.FeaturePacked)
	refuse := func(err error, unserved bool) error {
		if _, ok := errors.AsType[*tidegate.Error](err); ok {
			s.sessions.Refuse(id, s.origin(ctx, id), err, unserved)
		}
		return refuseStream(stream, err)
	}
	var last *session.Profile // its last command
	stopLite := func() {}     // else it ends with ctx
	for {
		select {
		case cmd, ok := <-commands:
			switch {
			case !ok && errors.Is(readErr, io.EOF):
				return nil
			case !ok:
				return refuseStream(stream, readErr)
			}
			s.engine.Touch(id)
			s.sessions.Get(id)
			in := cmd.GetSettings()
			if in == nil {
				continue // an answer to a command that this server never gives, or nothing
			}
			if _, err := s.admitSettings(ctx, began, in); err != nil {
				return refuse(err, false)
			}
			if err := session.Serves(in.GetClientType()); err != nil {
				return refuse(err, true)
			}
			p, err := session.ProfileOf(in, language, version, packed)
			if err != nil {
				return refuse(err, false)
			}
			last = p
			c, err := s.sessions.Attach(id, s.origin(ctx, id), t, p, in.GetPublishing().GetTopics())
			if err != nil {
				return refuse(err, false)
			}
			c.At(requests.PeerAddress(ctx))
			if err := s.sendSettings(ctx, c, p, stream, false); err != nil {
				return refuse(err, false)
			}
		case <-t.Again():
			t.WakeWatches() // a change of the group can add its retry topics
			c := s.sessions.Find(id)
			if c == nil {
				continue
			}
			if p := c.Profile(); p != nil {
				if err := s.sendSettings(ctx, c, p, stream, true); err != nil {
					return refuseStream(stream, err)
				}
			} else if requests.Announces(ctx, wire.FeatureHeartbeats) { // the heartbeats of the others report it
				if err := stream.Send(&rmqpb.TelemetryCommand{Status: forgotten}); err != nil {
					return err
				}
			}
		case <-t.Kick():
			for _, c := range t.Taken() {
				if err := stream.Send(&rmqpb.TelemetryCommand{
					Status: wire.OK, Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{RecoverOrphanedTransactionCommand: c},
				}); err != nil {
					return err
				}
			}
			for due := range slices.Chunk(t.Due(), maxReported) {
				if err := stream.Send(wire.ReadyCommand(due)); err != nil {
					return err
				}
			}
			for _, name := range t.EndedLite() {
				if err := stream.Send(unsubscribeLite(name)); err != nil {
					return err
				}
			}
			if c, ok := t.BeginLite(); ok {
				stopLite()
				stopLite = s.serveLite(ctx, t, c)
			}
		case <-under.Over().Done():
			under = s.gate.Regime()
			t.WakeWatches() // their receives may not be allowed any more
			in, err := last.Settings()
			if err != nil {
				return err
			}
			now, err := s.admitSettings(ctx, began, in)
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

// sendSettings responds to the client's settings, or pushes changed ones. An error ends the stream.
func (s *Server) sendSettings(ctx context.Context, c *session.Client, p *session.Profile, stream telemetryStream, push bool) error {
	out, err := s.settings(ctx, p)
	e, known := errors.AsType[*tidegate.Error](err)
	switch {
	case err == nil:
	case push && known && e.Code == protocol.CodeConsumerGroupNotFound:
		return nil // the group was deleted, and the next receive cannot create it and reports that
	case !known || e.Code == 0 || errors.Is(err, tidegate.ErrUnavailable):
		return status.Error(codes.Unavailable, err.Error()) // it may come back
	default:
		return err
	}
	c.Sends(out)
	return stream.Send(&rmqpb.TelemetryCommand{Status: wire.OK, Command: &rmqpb.TelemetryCommand_Settings{Settings: out}})
}

// packedBatchSize is the most messages in one receive of clients that read packed deliveries: a
// receive costs them and the broker as much as some 20 messages of 1 KiB.
const packedBatchSize = 128

// batchSize returns the most messages in one receive of a client.
func batchSize(packed bool) int32 {
	if packed {
		return packedBatchSize
	}
	return refusal.MaxReceive
}

// settings returns the client's settings, merged with those of the server.
func (s *Server) settings(ctx context.Context, p *session.Profile) (*rmqpb.Settings, error) {
	out, err := p.Settings()
	if err != nil {
		return nil, err
	}
	out.Metric = &rmqpb.Metric{} // off
	if pub := out.GetPublishing(); pub != nil {
		out.BackoffPolicy = &rmqpb.RetryPolicy{
			MaxAttempts: int32(min(s.o.ProducerMaxAttempts, math.MaxInt32)),
			Strategy:    requests.Exponential(s.o.ProducerBackoff.Initial, s.o.ProducerBackoff.Max, s.o.ProducerBackoff.Multiplier),
		}
		pub.MaxBodySize = int32(min(s.maxBody, math.MaxInt32))
		pub.ValidateMessageType = true
		return out, nil
	}
	c, err := s.engine.GroupSettings(ctx, p.Group)
	if err != nil {
		return nil, err
	}
	sub := out.GetSubscription()
	if p.IsLite() {
		c = asLite(c, sub)
	}
	sub.Fifo = &c.FIFO
	sub.ReceiveBatchSize = new(batchSize(p.Packed))
	sub.LongPollingTimeout = durationpb.New(s.o.MaxLongPolling)
	topics := make([]string, len(sub.GetSubscriptions()))
	for i, e := range sub.GetSubscriptions() {
		topics[i] = e.GetTopic().GetName()
	}
	out.BackoffPolicy = requests.RetryPolicy(s.engine.RetryPolicy(c, topics...), p.Language)
	return out, nil
}

// queryRoute returns the queues of a topic. All of them are on this broker.
func (s *Server) queryRoute(ctx context.Context, client string, req *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	// RocketMQ's Java client tries its start three times, with the stream of the first time, and
	// reports only the last failure: "Stream is already completed". Each time it asks for a route
	// before.
	if requests.Header(ctx, wire.HeaderLanguage) == requests.LanguageJava {
		if why := s.sessions.Reason(client); why != nil {
			return nil, why
		}
	}
	if err := shortRoute(req.GetTopic(), req.GetEndpoints()); err != nil {
		return nil, err
	}
	c, err := s.engine.TopicSettings(req.GetTopic().GetName())
	if err != nil {
		return nil, err
	}
	at := s.brokerAt(ctx, req.GetEndpoints())
	accept := []rmqpb.MessageType{messageTypes[c.Type]}
	out := &rmqpb.QueryRouteResponse{Status: wire.OK, MessageQueues: make([]*rmqpb.MessageQueue, c.Queues)}
	for i := range out.MessageQueues {
		out.MessageQueues[i] = &rmqpb.MessageQueue{
			Topic: req.GetTopic(), Id: int32(i), Permission: rmqpb.Permission_READ_WRITE, Broker: at, AcceptMessageTypes: accept,
		}
	}
	return out, nil
}

const (
	// maxAddresses and maxHost bound the addresses in the request of a client, because the response
	// repeats them for each queue: their number, and the bytes of one.
	maxAddresses = 64
	maxHost      = 255
)

// shortRoute rejects a request whose response would repeat too long an address.
func shortRoute(topic *rmqpb.Resource, at *rmqpb.Endpoints) error {
	if err := requests.CheckNamespace(topic); err != nil {
		return err
	}
	if n := len(at.GetAddresses()); n > maxAddresses {
		return refusal.New(tidegate.CodeIllegalAccessPoint, "endpoints", "the endpoints have %d addresses; the limit is %d", n, maxAddresses)
	}
	for _, a := range at.GetAddresses() {
		if n := len(a.GetHost()); n > maxHost {
			return refusal.TooLong(tidegate.CodeIllegalAccessPoint, "endpoints' host", n, maxHost)
		}
	}
	return nil
}

// messageTypes are the message types that topics of each type accept. RocketMQ's clients reject
// other messages before the send.
var messageTypes = map[settings.TopicType]rmqpb.MessageType{
	settings.TopicNormal: rmqpb.MessageType_NORMAL, settings.TopicFIFO: rmqpb.MessageType_FIFO,
	settings.TopicDelay: rmqpb.MessageType_DELAY, settings.TopicTransaction: rmqpb.MessageType_TRANSACTION,
	settings.TopicPriority: rmqpb.MessageType_PRIORITY, settings.TopicLite: rmqpb.MessageType_LITE,
}

// queryAssignment returns the queues that a push consumer receives from: each queue for a FIFO
// group, and all queues in one receive for other groups, for topics whose queues are ranked and for
// those with lite topics. It creates no group, because the number of auto-created groups is limited.
func (s *Server) queryAssignment(ctx context.Context, _ string, req *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
	if err := shortRoute(req.GetTopic(), req.GetEndpoints()); err != nil {
		return nil, err
	}
	topic, err := s.engine.TopicSettings(req.GetTopic().GetName())
	if err != nil {
		return nil, err
	}
	if err := tidegate.ValidateGroup(req.GetGroup().GetName()); err != nil {
		return nil, err
	}
	fifo := false // as the group will be that its first receive makes
	if group, err := s.engine.GroupSettings(ctx, req.GetGroup().GetName()); err == nil && topic.Type != settings.TopicPriority && topic.Type != settings.TopicLite {
		fifo = group.FIFO
	}
	at := s.brokerAt(ctx, req.GetEndpoints())
	assign := func(queue int) *rmqpb.Assignment {
		return &rmqpb.Assignment{MessageQueue: &rmqpb.MessageQueue{
			Topic: req.GetTopic(), Id: int32(queue), Permission: rmqpb.Permission_READ_WRITE, Broker: at,
		}}
	}
	out := &rmqpb.QueryAssignmentResponse{Status: wire.OK}
	if !fifo {
		out.Assignments = []*rmqpb.Assignment{assign(anyQueue)}
		return out, nil
	}
	for i := range topic.Queues {
		out.Assignments = append(out.Assignments, assign(i))
	}
	return out, nil
}

// anyQueue is the queue ID that means all queues of a broker.
const anyQueue = -1

func (s *Server) brokerAt(ctx context.Context, asked *rmqpb.Endpoints) *rmqpb.Broker {
	at := s.advertise
	if at == nil {
		var local net.Addr
		if p, ok := peer.FromContext(ctx); ok {
			local = p.LocalAddr
		}
		at = requests.EndpointsFor(asked, local)
	}
	return &rmqpb.Broker{Name: s.o.BrokerName, Id: 0, Endpoints: at} // clients take ID 0 for the master
}

// recallMessage takes a delayed message back before its delivery time.
func (s *Server) recallMessage(ctx context.Context, _ string, req *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
	id, err := s.messages.Recall(ctx, req.GetTopic().GetName(), req.GetRecallHandle())
	if err != nil {
		return nil, err
	}
	return &rmqpb.RecallMessageResponse{Status: wire.OK, MessageId: id}, nil
}

// heartbeat records a heartbeat. If the client announces it, the heartbeat counts for all clients
// on the connection.
func (s *Server) heartbeat(ctx context.Context, client string, req *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	s.engine.Touch(client) // the client is alive, known or not, and keeps its deliveries
	if requests.Announces(ctx, wire.FeatureHeartbeats) {
		admission.LinkInfoOf(ctx).Link.Beat(time.Now())
	}
	if err := session.Serves(req.GetClientType()); err != nil {
		s.sessions.Refuse(client, s.origin(ctx, client), err, true)
		return nil, err
	}
	c := s.sessions.Get(client)
	if c == nil || c.Profile() == nil {
		return nil, refusal.New(protocol.CodeUnrecognizedClientType, client,
			"the broker has no settings of this client; open a Telemetry stream and send them")
	}
	if group := req.GetGroup().GetName(); group != "" {
		if err := tidegate.ValidateGroup(group); err != nil {
			return nil, err
		}
	}
	p := c.Profile()
	if p == nil {
		return &rmqpb.HeartbeatResponse{Status: wire.OK}, nil
	}
	if p.Language == requests.LanguageNode {
		// RocketMQ's Node client can lose the first settings, and then waits for others.
		s.sessions.Resend(c)
	} else if now, err := s.settings(ctx, p); err == nil && !c.Sent(now) {
		s.sessions.Resend(c) // the group was changed since
	}
	return &rmqpb.HeartbeatResponse{Status: wire.OK}, nil
}

// notifyClientTermination removes the client, ends its parked receives, and takes its lite topics.
func (s *Server) notifyClientTermination(_ context.Context, client string, _ *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	if c := s.sessions.Find(client); c != nil && c.Lite() != nil {
		s.engine.EndLite(*c.Lite())
	}
	s.sessions.Terminate(client)
	return &rmqpb.NotifyClientTerminationResponse{Status: wire.OK}, nil
}
