package rocketmq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// RequestTimeout bounds a request also if the caller's deadline is later, except for a send.
func TestRequestTimeoutHoldsBesideADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, func(o *Options) { o.RequestTimeout = 4 * time.Second })
		if _, err := sendOne(t.Context(), c, message("0")); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		defer close(release)
		s.assign = func() *rmqpb.QueryAssignmentResponse {
			<-release
			return &rmqpb.QueryAssignmentResponse{Status: ok}
		}
		s.send = silent
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		if _, err := c.Queues(ctx, "g", "t"); !errors.Is(err, tidegate.ErrUnavailable) || time.Since(begin) != 4*time.Second {
			t.Errorf("Queues: %v after %v, want unavailable after 4s", err, time.Since(begin))
		}
		if _, err := sendOne(ctx, c, message("1")); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 10*time.Second {
			t.Errorf("Send: %v after %v, want the end of ctx after 10s", err, time.Since(begin))
		}
	})
}

// A check that returns its resolution at the end of ctx has decided: the resolution is sent.
func TestResolutionsAreSentAfterTheEndOfCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		ask := make(chan struct{})
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			go func() {
				<-ask
				m := delivered(nil)
				st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{
					RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{TransactionId: "1", Message: m}}})
			}()
			return s.answerSettings(st)
		}
		c := newClient(t, n, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan error, 1)
		go func() {
			served <- c.ServeChecks(ctx, []string{"t"}, func(ctx context.Context, _ transport.TransactionCheck) transport.Resolution {
				<-ctx.Done()
				return transport.Rollback
			})
		}()
		time.Sleep(time.Second)
		close(ask)
		synctest.Wait()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if ends := s.of("EndTransaction"); len(ends) != 1 || ends[0].req.(*rmqpb.EndTransactionRequest).GetResolution() != rmqpb.TransactionResolution_ROLLBACK {
			t.Errorf("the server received %v, want one rollback", ends)
		}
	})
}

// After a lost response the first message of a group may be stored. The later ones were not sent.
func TestMessagesThatWereNotSentAreNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return nil, status.Error(codes.Internal, "lost")
		}
		c := newClient(t, n, nil)
		msgs := several(2)
		for _, m := range msgs {
			m.MessageGroup = "g"
		}
		results := c.Send(t.Context(), msgs)
		first, _ := errors.AsType[*tidegate.Error](results[0].Err)
		second, _ := errors.AsType[*tidegate.Error](results[1].Err)
		if first == nil || !first.MaybeStored {
			t.Errorf("the first message: %+v, want it perhaps stored", results[0].Err)
		}
		if second == nil || second.MaybeStored || !strings.Contains(second.Message, "not sent") || tidegate.Classify(second) != tidegate.ClassTransient {
			t.Errorf("the second message: %+v, want a transient error of a message that was not sent", results[1].Err)
		}
		if got := len(s.of("SendMessage")); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
	})
}

// Only a request that changes something can have taken effect although it failed.
func TestFailedReadsStoreNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		if _, err := sendOne(t.Context(), c, message("0")); err != nil {
			t.Fatal(err)
		}
		failed := &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR}
		s.assign = func() *rmqpb.QueryAssignmentResponse { return &rmqpb.QueryAssignmentResponse{Status: failed} }
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: failed}, nil
		}
		_, err := c.Queues(t.Context(), "g", "t")
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeInternalServerError || e.MaybeStored {
			t.Errorf("Queues: %#v, want 50001 without MaybeStored", err)
		}
		if _, err := sendOne(t.Context(), c, message("1")); err == nil || !err.MaybeStored {
			t.Errorf("Send: %#v, want 50001 with MaybeStored", err)
		}
	})
}

// The routes of all topics in use are refreshed, also of more topics than are queried at a time.
func TestAllRoutesAreRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, func(o *Options) { o.RouteRefresh = time.Minute })
		const topics, rounds = 3 * parallelRefreshes, 4
		for range rounds {
			for i := range topics {
				m := message("m")
				m.Topic = "topic-" + string(rune('a'+i))
				if _, err := sendOne(t.Context(), c, m); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		// The first send of a topic queries its route, and so does each refresh.
		if got, want := len(s.of("QueryRoute")), topics*(1+rounds); got != want {
			t.Errorf("%d route queries, want %d", got, want)
		}
	})
}
