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
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// BenchmarkSend compares sends of 1 KiB over loopback TCP, in turns within the same run, to three
// servers: a broker that has each message on disk before its response, a server that only writes
// messages to a file and syncs it (wal), and a server that only responds (echo). wal/ratio and
// echo/ratio are the broker's rate divided by theirs; allocs/msg counts client and server.
func BenchmarkSend(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkSend(b, callers, 1) })
	}
	b.Run("callers=8,batch=64", func(b *testing.B) { benchmarkSend(b, 8, 64) })
}

func benchmarkSend(b *testing.B, callers, batch int) {
	const ours = 2
	loads := [3]*load{
		newLoad(b, serveFloor(b, newWAL(b)), callers, batch), newLoad(b, serveFloor(b, echo{}), callers, batch),
		newLoad(b, serveBroker(b), callers, batch),
	}
	var took [3]time.Duration
	var allocs uint64
	requests := 0
	round := max(callers*20, 200)
	for b.Loop() {
		for i, l := range loads {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			took[i] += l.send(b, round)
			if runtime.ReadMemStats(&after); i == ours {
				allocs += after.Mallocs - before.Mallocs
			}
		}
		requests += round
	}
	n := float64(requests * batch)
	b.ReportMetric(n/took[ours].Seconds(), "msg/s")
	b.ReportMetric(took[0].Seconds()/took[ours].Seconds(), "wal/ratio")
	b.ReportMetric(took[1].Seconds()/took[ours].Seconds(), "echo/ratio")
	b.ReportMetric(float64(allocs)/n, "allocs/msg")
	b.ReportMetric(0, "ns/op") // of a round of all three: means nothing
}

// serveFloor serves s on a port of the loopback.
func serveFloor(b testing.TB, s rmqpb.MessagingServiceServer) string {
	lis := loopback(b)
	g := grpc.NewServer()
	rmqpb.RegisterMessagingServiceServer(g, s)
	go g.Serve(lis)
	b.Cleanup(g.Stop)
	return lis.Addr().String()
}

// serveBroker serves a broker on disk, with topic t.
func serveBroker(b testing.TB) string {
	engine, err := broker.Open(broker.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { engine.Close() })
	if _, err := engine.PutTopic(b.Context(), "t", settings.Topic{}); err != nil {
		b.Fatal(err)
	}
	s, err := server.New(engine, server.Options{})
	if err != nil {
		b.Fatal(err)
	}
	lis := loopback(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func loopback(b testing.TB) net.Listener {
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
	batch   int // messages in a request
	body    []byte
}

func newLoad(b testing.TB, address string, callers, batch int) *load {
	l := &load{callers: callers, batch: batch, body: make([]byte, 1024)}
	for range min(callers, 4) {
		l.clients = append(l.clients, connect(b, address))
	}
	l.send(b, callers) // connects
	return l
}

func connect(b testing.TB, address string) rmqpb.MessagingServiceClient {
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cc.Close() })
	return rmqpb.NewMessagingServiceClient(cc)
}

func identified(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "bench", "x-mq-language", "GO")
}

// send makes n requests.
func (l *load) send(b testing.TB, n int) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	var wg sync.WaitGroup
	for c := range l.callers {
		wg.Go(func() {
			ctx := identified(b.Context())
			for left.Add(-1) >= 0 {
				ms := make([]*rmqpb.Message, l.batch)
				for i := range ms {
					ms[i] = oneMessage(l.body)
				}
				r, err := l.clients[c%len(l.clients)].SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: ms})
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

func oneMessage(body []byte) *rmqpb.Message {
	return &rmqpb.Message{
		Topic: &rmqpb.Resource{Name: "t"}, Body: body,
		SystemProperties: &rmqpb.SystemProperties{
			MessageId: tidegate.NewMessageID(), BodyEncoding: rmqpb.Encoding_IDENTITY,
			MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.Now(), BornHost: "bench",
		},
	}
}
