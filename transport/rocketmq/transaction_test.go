package rocketmq

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// SendHalf sends a half message once, with any result, as a message of type TRANSACTION.
func TestSendHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			out := sentAll(r)
			out.Entries[0].TransactionId = "tx"
			return out, nil
		}
		r := c.SendHalf(t.Context(), message("1"))
		if want := (tidegate.Receipt{MessageID: "1", Topic: "t", Queue: -1, Offset: -1, Endpoint: testAddr, TransactionID: "tx"}); r.Err != nil || r.Receipt != want {
			t.Errorf("%+v, want %+v", r, want)
		}
		sent := s.of("SendMessage")[0].req.(*rmqpb.SendMessageRequest).GetMessages()[0]
		if sent.GetSystemProperties().GetMessageType() != rmqpb.MessageType_TRANSACTION {
			t.Errorf("sent %v", sent)
		}
		late := message("2")
		late.DeliverAt = time.Now()
		for _, m := range []*tidegate.Message{inGroup("2", "g"), late} {
			if r := c.SendHalf(t.Context(), m); !errors.Is(r.Err, tidegate.ErrInvalid) {
				t.Errorf("%+v: %v, want a refusal", m, r.Err)
			}
		}
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			go s.stop()
			return silent(ctx, r)
		}
		r = c.SendHalf(t.Context(), message("3"))
		if e, _ := errors.AsType[*tidegate.Error](r.Err); e == nil || !e.MaybeStored || len(s.of("SendMessage")) != 2 {
			t.Errorf("%v after %d requests, want a failure after two", r.Err, len(s.of("SendMessage")))
		}
	})
}

// ServeChecks handles checks across lost sessions and restarts of servers, also if nothing else
// uses the client.
func TestServeChecksKeepsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		ask := make(chan string)
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			go func() {
				for {
					select {
					case id := <-ask:
						m := delivered(nil)
						m.SystemProperties.ReceiptHandle = nil
						m.Topic = &rmqpb.Resource{Name: "t"}
						st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{
							RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{TransactionId: id, Message: m}}})
					case <-st.Context().Done():
						return
					}
				}
			}()
			return s.answerSettings(st)
		}
		c := newClient(t, n, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan error, 1)
		var asked atomic.Int64
		go func() {
			served <- c.ServeChecks(ctx, []string{"t"}, func(_ context.Context, q transport.TransactionCheck) transport.Resolution {
				asked.Add(1)
				switch q.Transaction.ID {
				case "panics":
					panic("check")
				case "unknown":
					return transport.ResolutionUnknown
				}
				return transport.Commit
			})
		}()
		ends := func() int { return len(s.of("EndTransaction")) }
		time.Sleep(time.Second)
		for _, id := range []string{"panics", "unknown", "1"} {
			ask <- id
			synctest.Wait()
		}
		if asked.Load() != 3 || ends() != 1 {
			t.Errorf("%d questions and %d ends, want 3 and 1", asked.Load(), ends())
		}
		end := s.of("EndTransaction")[0].req.(*rmqpb.EndTransactionRequest)
		if end.GetTransactionId() != "1" || end.GetResolution() != rmqpb.TransactionResolution_COMMIT ||
			end.GetSource() != rmqpb.TransactionSource_SOURCE_SERVER_CHECK || end.GetTopic().GetName() != "t" {
			t.Errorf("%v", end)
		}
		time.Sleep(time.Hour) // much longer than an unused session stays
		ask <- "2"
		synctest.Wait()
		s.stop()
		time.Sleep(time.Minute)
		s.start()
		time.Sleep(time.Minute)
		ask <- "3"
		synctest.Wait()
		if ends() != 3 {
			t.Errorf("%d ends, want 3", ends())
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("%v, want nil after the end of ctx", err)
		}
		time.Sleep(time.Hour)
		if c.openSessions() != 0 {
			t.Errorf("%d sessions are left", c.openSessions())
		}
		if err := c.ServeChecks(t.Context(), nil, nil); !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("%v without topics", err)
		}
	})
}

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		var code atomic.Int32
		route := s.route
		s.route = func() *rmqpb.QueryRouteResponse {
			if n := code.Load(); n != 0 {
				return &rmqpb.QueryRouteResponse{Status: &rmqpb.Status{Code: rmqpb.Code(n)}}
			}
			return route()
		}
		for _, tt := range []struct {
			code         rmqpb.Code
			plain, topic error
		}{
			{0, nil, nil},
			{rmqpb.Code_TOPIC_NOT_FOUND, nil, tidegate.ErrTopicNotFound},
			{rmqpb.Code_FORBIDDEN, nil, tidegate.ErrForbidden},
			{rmqpb.Code_UNAUTHORIZED, tidegate.ErrUnauthorized, tidegate.ErrUnauthorized},
			{rmqpb.Code_INTERNAL_SERVER_ERROR, tidegate.ErrUnavailable, tidegate.ErrUnavailable},
		} {
			code.Store(int32(tt.code))
			if err := c.Ping(t.Context()); !errors.Is(err, tt.plain) {
				t.Errorf("%s: %v, want %v", tt.code, err, tt.plain)
			}
			if err := c.Ping(t.Context(), "t"); !errors.Is(err, tt.topic) {
				t.Errorf("%s: the topic: %v, want %v", tt.code, err, tt.topic)
			}
		}
		code.Store(0)
		s.stop()
		synctest.Wait()
		time.AfterFunc(10*time.Second, s.start)
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("it does not wait for the server: %v", err)
		}
		if err := c.Ping(t.Context(), "no topic"); !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("%v of an illegal topic", err)
		}
	})
}
