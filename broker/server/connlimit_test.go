package server_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/connlimit"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A connection over gRPC makes room for a new one, except while a request of it is under way, and
// if its client is authenticated: with the rules that hold now.
func TestIdleGRPCConnectionsMakeRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		keys  bool
		first func(e *env, c rmqpb.MessagingServiceClient)
		stays bool
	}{
		{name: "only a hello", first: func(*env, rmqpb.MessagingServiceClient) {}},
		{name: "had a request with a response", first: func(e *env, c rmqpb.MessagingServiceClient) { queried(e.ctx(), e, c) }},
		{name: "has a stream", stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) { converses(e.ctx(), e, c) }},
		{name: "waits for a message", stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			if _, err := c.ReceiveMessage(e.ctx(), receiveRequest("normal")); err != nil {
				e.t.Fatal(err)
			}
		}},
		{name: "is authenticated", keys: true, stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			queried(signed(e.t.Context(), "producer"), e, c)
		}},
		{name: "was refused", keys: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			if _, err := c.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil {
				e.t.Fatal(err)
			}
		}},
		{name: "was authenticated before other rules held", keys: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			queried(signed(e.t.Context(), "producer"), e, c)
			if err := e.s.SetAccess(server.AccessConfig{Keys: []server.Key{{Name: "other", Secrets: []server.Secret{server.NewSecret("x")}}}}); err != nil {
				e.t.Fatal(err)
			}
			if r, err := c.QueryRoute(signed(e.t.Context(), "producer"), &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_UNAUTHORIZED {
				e.t.Fatalf("with a key that holds no more: %v, %v", r, err)
			}
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := server.Options{MaxLongPolling: 20 * time.Second}
			if c.keys {
				o.Access = someAccess()
			}
			e := start(t, o)
			pipe := bufconn.Listen(1 << 16)
			go e.s.Serve(connlimit.Limit(pipe, 1, func(bool) {}))
			dial := func(lost chan<- struct{}) rmqpb.MessagingServiceClient {
				conn, err := grpc.NewClient("passthrough:///limited", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						raw, err := pipe.DialContext(ctx)
						return &watched{raw, lost}, err
					}))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				conn.Connect()
				return rmqpb.NewMessagingServiceClient(conn)
			}
			lost := make(chan struct{}, 10)
			first := dial(lost)
			synctest.Wait()
			c.first(e, first)
			synctest.Wait()
			dial(nil)
			time.Sleep(5 * time.Second)
			if stayed := len(lost) == 0; stayed != c.stays {
				t.Errorf("%s: stayed %t, want %t", c.name, stayed, c.stays)
			}
		})
	}
}

// A watched connection reports its end.
type watched struct {
	net.Conn
	lost chan<- struct{}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil && w.lost != nil {
		w.lost <- struct{}{}
	}
	return n, err
}

func queried(ctx context.Context, e *env, c rmqpb.MessagingServiceClient) {
	e.t.Helper()
	if r, err := c.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatal(r, err)
	}
}

func converses(ctx context.Context, e *env, c rmqpb.MessagingServiceClient) {
	e.t.Helper()
	s, err := c.Telemetry(ctx)
	if err == nil {
		err = s.Send(command(consumer(rmqpb.ClientType_SIMPLE_CONSUMER)))
	}
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		e.t.Fatal(err)
	}
}
