package rocketmq

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/readiness"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/failure"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
)

type telemetryStream = grpc.BidiStreamingClient[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]

// stream opens a Telemetry stream, sends the settings and serves the stream until it ends. It
// returns the error that ended the stream, or nil if the session is idle.
func (s *session) stream() *tidegate.Error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	limit := settingsTimeout + s.c.opts.RequestTimeout
	var late atomic.Bool
	patience := time.AfterFunc(limit, func() { // for the connection and the first response
		late.Store(true)
		cancel()
	})
	defer patience.Stop()

	err := s.serve(ctx, cancel, patience)
	switch {
	case s.ctx.Err() != nil:
		return closedError(opTelemetry, s.role.group)
	case late.Load() && !s.isReady():
		e := fail(opTelemetry, s.role.group, 0, "the server did not respond to the settings within "+limit.String())
		e.Endpoint, e.Err = s.ep.Key, tidegate.ErrUnavailable
		e.NotConnected = s.ep.Link.Load().Missing()
		return e
	}
	return err
}

func (s *session) serve(ctx context.Context, cancel context.CancelFunc, patience *time.Timer) *tidegate.Error {
	on := s.ep.Link.Load()
	st, err := on.API().Telemetry(s.c.headers.Outgoing(ctx, s.id, remote.FeaturesKey, watchHeader(s.role.group != "")+", "+heartbeatsFeature))
	if err != nil {
		e := s.streamError(err)
		on.Lack(e, err)
		return e
	}
	commands := make(chan *rmqpb.TelemetryCommand)
	var recvErr error // valid once commands is closed
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before Wait
	wg.Go(func() {
		defer close(commands)
		for {
			cmd, err := st.Recv()
			if err != nil {
				recvErr = err
				return
			}
			select {
			case commands <- cmd:
			case <-ctx.Done():
				recvErr = ctx.Err()
				return
			}
		}
	})
	repeat := time.NewTicker(s.c.opts.SettingsSync)
	defer repeat.Stop()
	send := true
	for {
		if send {
			// An error of Send has no details. The error of Recv follows and has them.
			_ = st.Send(s.settingsCommand())
		}
		send = false
		select {
		case cmd, ok := <-commands:
			if !ok {
				return s.streamError(recvErr)
			}
			if stop, err := s.obey(on, st, cmd); stop {
				return err
			}
			if s.isReady() {
				patience.Stop()
			}
		case <-s.kick:
			s.mu.Lock()
			send = s.unsent
			s.mu.Unlock()
		case <-repeat.C:
			if s.retire() {
				return nil
			}
			send = true
		}
	}
}

func (s *session) streamError(err error) *tidegate.Error {
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the server ended the Telemetry stream")
	}
	if fault := s.ep.Link.Load().Misconfigured(); fault != nil && status.Code(err) == codes.Unavailable {
		return request{ep: s.ep, op: opTelemetry, subject: s.role.group}.setupError(fault, err)
	}
	return failure.OfCall(s.ctx, opTelemetry, s.role.group, s.ep.Key, err, false, false)
}

// obey executes a server's command. It reports whether the stream must end.
func (s *session) obey(on *remote.Link, st telemetryStream, cmd *rmqpb.TelemetryCommand) (stop bool, _ *tidegate.Error) {
	log := s.c.opts.Logger.With("endpoint", s.ep.Key, "group", s.role.group)
	if code := cmd.GetStatus().GetCode(); code != 0 && code != rmqpb.Code_OK {
		err := failure.OfStatus(opTelemetry, s.role.group, s.ep.Key, cmd.GetStatus(), nil)
		if !s.isReady() {
			return true, err
		}
		if err.Code == protocol.CodeUnrecognizedClientType && s.ep.SharesHeartbeats() {
			s.resendIf(err) // other servers may respond to the settings with the same code
			return false, nil
		}
		s.c.rejected.log(log, slog.LevelWarn, "rocketmq: the server rejected a command", "error", err)
		return false, nil
	}
	if queues := readiness.Queues(cmd); len(queues) > 0 {
		s.wake(queues...)
		return false, nil
	}
	switch {
	case cmd.GetSettings() != nil:
		s.learn(st, cmd.GetSettings())
	case cmd.GetReconnectEndpointsCommand() != nil:
		s.c.reconnect(s.ep, on)
		e := fail(opTelemetry, s.role.group, 0, "the server asked for a new connection")
		e.Endpoint, e.Err = s.ep.Key, tidegate.ErrUnavailable
		return true, e
	case cmd.GetPrintThreadStackTraceCommand() != nil:
		// Servers must not read stack traces of the process.
		_ = st.Send(refusal(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ThreadStackTrace{
			ThreadStackTrace: &rmqpb.ThreadStackTrace{Nonce: cmd.GetPrintThreadStackTraceCommand().GetNonce()}}}))
	case cmd.GetVerifyMessageCommand() != nil:
		_ = st.Send(refusal(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageResult{
			VerifyMessageResult: &rmqpb.VerifyMessageResult{Nonce: cmd.GetVerifyMessageCommand().GetNonce()}}}))
	case cmd.GetRecoverOrphanedTransactionCommand() != nil:
		if err := s.c.asked(s.ep, cmd.GetRecoverOrphanedTransactionCommand()); err != nil {
			s.c.unchecked.log(log, slog.LevelWarn, "rocketmq: transaction check skipped; the server will repeat it", "error", err,
				"transaction_id", cmd.GetRecoverOrphanedTransactionCommand().GetTransactionId())
		}
	default:
		log.Debug("rocketmq: unknown command ignored", "command", cmd.String())
	}
	return false, nil
}

func refusal(cmd *rmqpb.TelemetryCommand) *rmqpb.TelemetryCommand {
	cmd.Status = &rmqpb.Status{Code: rmqpb.Code_UNSUPPORTED, Message: "not supported by this client"}
	return cmd
}

// learn stores the server's settings.
func (s *session) learn(st telemetryStream, settings *rmqpb.Settings) {
	// The header has arrived, because a response has. A stream without the header proves nothing:
	// the server may have pushed its settings before it read the client's.
	if header, err := st.Header(); err == nil && len(header.Get(remote.FeaturesKey)) > 0 {
		p, _ := peer.FromContext(st.Context())
		s.ep.Learn(remote.ConnectionOf(p), header)
	}
	var back bool
	s.update(func() {
		back = s.lost
		s.ready, s.lost, s.settings = true, false, settings
	})
	if back {
		s.c.opts.Logger.Info("rocketmq: session restored", "endpoint", s.ep.Key, "group", s.role.group)
	}
}
