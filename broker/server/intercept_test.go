package server_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

type middleware = func(ctx context.Context, call server.Call, next func(context.Context) error) error

func TestIntercept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m middleware
		e := start(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return m(ctx, call, next)
		}})
		send := func(ctx context.Context, id string) (*rmqpb.SendMessageResponse, error) {
			return e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", id), msg("normal", id+"'")}})
		}
		stored := func() int64 {
			topic, err := e.b.Topic("normal")
			if err != nil {
				t.Fatal(err)
			}
			return topic.StoredMessages
		}

		var seen []server.Call
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			seen = append(seen, call)
			time.Sleep(time.Second)
			return next(ctx)
		}
		began := time.Now()
		if r, err := send(e.ctx(), "a"); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 2 {
			t.Fatal(r, err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("delayed by %v; want 1s", d)
		}
		if c := seen[0]; c.Op != "SendMessage" || c.ClientID != "client" || c.Topic != "normal" || c.Messages != 2 || !slices.Equal(c.MessageIDs, []string{"a", "a'"}) {
			t.Errorf("call %+v", c)
		}

		m = func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Second, Message: "enough"}
		}
		r, err := send(e.ctx(), "refused")
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeTooManyRequests, "530 TOO_MANY_REQUESTS: enough")
		if n := stored(); n != 2 {
			t.Errorf("%d messages stored after a refusal; want 2", n)
		}

		// The message is stored, but the response is lost.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			if err := next(ctx); err != nil {
				t.Error(err)
			}
			return server.ErrNoAnswer
		}
		ctx, cancel := context.WithTimeout(e.ctx(), 3*time.Second)
		defer cancel()
		began = time.Now()
		if _, err := send(ctx, "lost"); status.Code(err) != codes.DeadlineExceeded || time.Since(began) != 3*time.Second {
			t.Errorf("no response: %v after %v", err, time.Since(began))
		}
		if n := stored(); n != 4 {
			t.Errorf("%d messages stored after a lost response; want 4", n)
		}

		m = func(context.Context, server.Call, func(context.Context) error) error { return errors.New("cable cut") }
		if _, err := send(e.ctx(), "x"); status.Code(err) != codes.Unavailable {
			t.Errorf("killed: %v; want Unavailable", err)
		}
		m = func(context.Context, server.Call, func(context.Context) error) error { panic("ouch") }
		r, err = send(e.ctx(), "x")
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "ouch")
		m = func(context.Context, server.Call, func(context.Context) error) error { return nil }
		r, err = send(e.ctx(), "x")
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "next")

		// next reports the response that follows, and it stays unchanged.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			err := next(ctx)
			if !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Errorf("next returned %v; want an invalid handle", err)
			}
			return err
		}
		ack, err := e.AckMessage(e.ctx(), &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: "x"}}})
		if err != nil || len(ack.GetEntries()) != 1 {
			t.Fatal(ack, err)
		}
		refused(t, ack.GetStatus(), tidegate.CodeInvalidReceiptHandle)

		// A duplicate of a request.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			next(ctx)
			return next(ctx)
		}
		if r, err := send(e.ctx(), "twice"); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Fatal(r, err)
		}
		if n := stored(); n != 8 {
			t.Errorf("%d messages stored after a duplicate; want 8", n)
		}
	})
}

// Messages whose response was lost stay in flight until their invisible time ends.
func TestInterceptReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m middleware
		e := start(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return m(ctx, call, next)
		}})
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error { return next(ctx) }
		e.send(msg("normal", "1"))

		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op != "ReceiveMessage" || call.Group != "g" || call.Topic != "normal" || call.Messages != 32 {
				t.Errorf("call %+v", call)
			}
			if err := next(ctx); err != nil {
				t.Error(err)
			}
			return server.ErrNoAnswer
		}
		ctx, cancel := context.WithTimeout(e.ctx(), 10*time.Second)
		defer cancel()
		fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal", polling(5*time.Second), invisible(25*time.Second))))
		if status.Code(err) != codes.DeadlineExceeded || len(fs) != 0 {
			t.Errorf("%d frames, %v; want none before the deadline", len(fs), err)
		}
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error { return next(ctx) }
		began := time.Now()
		got := e.one(e.ctx(), receiveRequest("normal"))
		if d := time.Since(began); d != 15*time.Second || got.GetSystemProperties().GetDeliveryAttempt() != 2 {
			t.Errorf("attempt %d after %v; want 2 after 15s", got.GetSystemProperties().GetDeliveryAttempt(), d)
		}
		m = func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeForbidden, Message: "not you"}
		}
		st, ms := e.receive(e.ctx(), receiveRequest("normal"))
		refused(t, st, tidegate.CodeForbidden, "not you")
		if len(ms) != 0 {
			t.Errorf("%d messages", len(ms))
		}
	})
}

// A request without a response does not delay the end of the server.
func TestNoResponseAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Intercept: func(context.Context, server.Call, func(context.Context) error) error { return server.ErrNoAnswer }})
		go e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("normal")})
		synctest.Wait()
		began := time.Now()
		if err := e.s.Shutdown(t.Context()); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// If the rules change during a delayed receive, the receive does not wait: it returns empty, and
// the broker checks the next one by the new rules.
func TestNewRulesWhileAReceiveIsHeldUp(t *testing.T) {
	for name, rules := range map[string]server.AccessConfig{"without the key": {Keys: someAccess().Keys[:1]}, "as before": someAccess()} {
		synctest.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			e := start(t, server.Options{Access: someAccess(), Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op == "ReceiveMessage" {
					<-goOn
				}
				return next(ctx)
			}})
			type answer struct {
				st *rmqpb.Status
				ms []*rmqpb.Message
			}
			got := make(chan answer, 1)
			go func() {
				st, ms := e.receive(signed(t.Context(), "consumer"), receiveRequest("normal"))
				got <- answer{st, ms}
			}()
			synctest.Wait()
			if err := e.s.SetAccess(rules); err != nil {
				t.Fatal(err)
			}
			close(goOn)
			synctest.Wait()
			r, err := e.SendMessage(signed(t.Context(), "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}})
			if err != nil {
				t.Fatal(err)
			}
			refused(named{t, name}, r.GetStatus(), protocol.CodeOK)
			a := <-got
			if refused(named{t, name}, a.st, protocol.CodeMessageNotFound); len(a.ms) != 0 {
				t.Errorf("%s: %d messages are delivered", name, len(a.ms))
			}
		})
	}
}

// A request that ends with a gRPC status is logged with it.
func TestGRPCErrorText(t *testing.T) {
	err := error(&refusal.Cut{Status: status.Error(codes.Unavailable, "the broker is closed")})
	if want := "rpc error: code = Unavailable desc = the broker is closed"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
