package rocketmq_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkSend compares a send of 1 KiB with the bare call below it, over TCP
// to a server that does nothing.
func BenchmarkSend(b *testing.B) {
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	s := &fakeServer{addr: l.Addr().String()}
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
	c := assert.Value(rocketmq.New(s.addr, rocketmq.Options{}))(b)
	defer c.Close()
	conn := assert.Value(grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
	defer conn.Close()
	bare := rmqpb.NewMessagingServiceClient(conn)

	for _, bb := range []struct {
		name string
		send func() error
	}{
		{"bare", func() error {
			_, err := bare.SendMessage(b.Context(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
				Topic: &rmqpb.Resource{Name: "t"}, Body: m.Body, SystemProperties: &rmqpb.SystemProperties{MessageId: m.ID, BornTimestamp: timestamppb.Now()},
			}}})
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

// BenchmarkSendLane sends 256 messages of 1 KiB in each request, to a server that does
// nothing, and reports the cost of one message. BenchmarkLane plans one message.
func BenchmarkSendLane(b *testing.B) {
	c := benchClient(b)
	const n = 256
	msgs := make([]*tidegate.Message, n)
	for i := range msgs {
		msgs[i] = message(tidegate.NewMessageID())
		msgs[i].Body = make([]byte, 1024)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lane, err := c.Lane(b.Context(), transport.LaneRequest{Topic: "t"})
			if err != nil || lane.MaxMessages < n {
				b.Error(lane, err)
				return
			}
			for _, r := range c.SendLane(b.Context(), lane, msgs) {
				if r.Err != nil {
					b.Error(r.Err)
					return
				}
			}
		}
	})
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "messages/s")
}

func BenchmarkLane(b *testing.B) {
	c := benchClient(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Lane(b.Context(), transport.LaneRequest{Topic: "t"}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// benchClient returns a client of a server over TCP that takes batches and does nothing.
func benchClient(b *testing.B) *rocketmq.Client {
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	s := &fakeServer{addr: l.Addr().String(), features: "batch"}
	s.route = func() *rmqpb.QueryRouteResponse {
		return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(s.addr, "b", 4)}
	}
	s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		return sentAll(r), nil
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		grpc.SetHeader(ctx, metadata.Pairs(wire.HeaderFeatures, s.features))
		return next(ctx, req)
	}))
	rmqpb.RegisterMessagingServiceServer(g, s)
	go g.Serve(l)
	b.Cleanup(g.Stop)
	c := assert.Value(rocketmq.New(s.addr, rocketmq.Options{}))(b)
	b.Cleanup(func() { c.Close() })
	assert.Must(b, c.Send(b.Context(), []*tidegate.Message{message("first")})[0].Err)
	return c
}
