package server_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// echo answers every send and stores nothing: the least that gRPC costs.
type echo struct {
	rmqpb.UnimplementedMessagingServiceServer
}

func (echo) SendMessage(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	ok := &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}
	out := &rmqpb.SendMessageResponse{Status: ok}
	for _, m := range r.Messages {
		out.Entries = append(out.Entries, &rmqpb.SendResultEntry{Status: ok, MessageId: m.SystemProperties.GetMessageId()})
	}
	return out, nil
}

// BenchmarkSend compares sends of 1 KiB to a broker that has each on disk
// before it answers with sends to a server that only answers, over loopback
// TCP, in turns within the same run. ratio is broker/echo; allocs/msg counts
// client and server.
func BenchmarkSend(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkSend(b, callers) })
	}
}

func benchmarkSend(b *testing.B, callers int) {
	echoLis, brokerLis := listen(b), listen(b)
	floor := grpc.NewServer()
	rmqpb.RegisterMessagingServiceServer(floor, echo{})
	go floor.Serve(echoLis)
	b.Cleanup(floor.Stop)

	engine, err := broker.Open(broker.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { engine.Close() })
	if _, err := engine.PutTopic(b.Context(), "t", broker.TopicConfig{}); err != nil {
		b.Fatal(err)
	}
	s, err := server.New(engine, server.Options{})
	if err != nil {
		b.Fatal(err)
	}
	go s.Serve(brokerLis)
	b.Cleanup(func() { s.Close() })

	toEcho, toBroker := newLoad(b, echoLis, callers), newLoad(b, brokerLis, callers)
	var echoTook, brokerTook time.Duration
	var allocs uint64
	sent := 0
	round := max(callers*20, 200)
	for b.Loop() {
		echoTook += toEcho.send(b, round)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		brokerTook += toBroker.send(b, round)
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
		sent += round
	}
	n := float64(sent)
	b.ReportMetric(n/echoTook.Seconds(), "echo-msg/s")
	b.ReportMetric(n/brokerTook.Seconds(), "msg/s")
	b.ReportMetric(echoTook.Seconds()/brokerTook.Seconds(), "ratio")
	b.ReportMetric(float64(allocs)/n, "allocs/msg")
	b.ReportMetric(0, "ns/op") // of a round of both: means nothing
}

func listen(b *testing.B) net.Listener {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return lis
}

// A load is callers in closed loops on up to four connections.
type load struct {
	clients []rmqpb.MessagingServiceClient
	callers int
	body    []byte
}

func newLoad(b *testing.B, lis net.Listener, callers int) *load {
	l := &load{callers: callers, body: make([]byte, 1024)}
	for range min(callers, 4) {
		cc, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { cc.Close() })
		l.clients = append(l.clients, rmqpb.NewMessagingServiceClient(cc))
	}
	l.send(b, callers) // connects
	return l
}

func (l *load) send(b *testing.B, n int) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	var wg sync.WaitGroup
	for c := range l.callers {
		wg.Go(func() {
			ctx := metadata.AppendToOutgoingContext(b.Context(), "x-mq-client-id", "bench", "x-mq-language", "GO")
			for left.Add(-1) >= 0 {
				r, err := l.clients[c%len(l.clients)].SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
					Topic: &rmqpb.Resource{Name: "t"}, Body: l.body,
					SystemProperties: &rmqpb.SystemProperties{
						MessageId: tidegate.NewMessageID(), BodyEncoding: rmqpb.Encoding_IDENTITY,
						MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.Now(), BornHost: "bench",
					},
				}}})
				if err != nil || r.Status.Code != rmqpb.Code_OK {
					b.Errorf("send: %v, %v", err, r.GetStatus())
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}
