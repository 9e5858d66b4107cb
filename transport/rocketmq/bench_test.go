package rocketmq

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// BenchmarkSend compares a send of 1 KiB with the bare call below it, over TCP
// to a server that does nothing.
func BenchmarkSend(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &server{addr: l.Addr().String()}
	s.route = func() *rmqpb.QueryRouteResponse {
		return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(s.addr, "b", 4)}
	}
	s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		return sentAll(r), nil
	}
	g := grpc.NewServer()
	rmqpb.RegisterMessagingServiceServer(g, s)
	go g.Serve(l)
	defer g.Stop()

	m := message("0123456789ABCDEF0123456789ABCDEF01")
	m.Body = make([]byte, 1024)
	c, err := New(s.addr, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	bare := rmqpb.NewMessagingServiceClient(conn)

	for _, bb := range []struct {
		name string
		send func() error
	}{
		{"bare", func() error {
			_, err := bare.SendMessage(b.Context(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{
				c.encodeMessage(m, queue{}, c.resource("t"), timestamppb.Now())}})
			return err
		}},
		{"client", func() error { return c.Send(b.Context(), []*tidegate.Message{m})[0].Err }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := bb.send(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
