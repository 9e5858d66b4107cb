package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
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
		t.SharesHeartbeats(tlssniff.InfoOf(ctx).Link)
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
	case push && known && e.Code == tidegate.CodeConsumerGroupNotFound:
		return nil // the group was deleted, and the next receive cannot create it and reports that
	case !known || e.Code == 0 || errors.Is(err, tidegate.ErrUnavailable):
		return status.Error(codes.Unavailable, err.Error()) // it may come back
	default:
		return err
	}
	c.Sends(out)
	return stream.Send(&rmqpb.TelemetryCommand{Status: wire.OK, Command: &rmqpb.TelemetryCommand_Settings{Settings: out}})
}
