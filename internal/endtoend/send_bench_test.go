package endtoend

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"
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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// An echo accepts every message, and stores none.
type echo struct {
	rmqpb.UnimplementedMessagingServiceServer
}

func (echo) SendMessage(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	ok := &rmqpb.Status{Code: rmqpb.Code_OK}
	res := &rmqpb.SendMessageResponse{Status: ok}
	for _, m := range r.GetMessages() {
		res.Entries = append(res.Entries, &rmqpb.SendResultEntry{Status: ok, MessageId: m.GetSystemProperties().GetMessageId()})
	}
	return res, nil
}

func serveEcho(b *testing.B) string {
	lis := listenTCP(b)
	g := grpc.NewServer()
	rmqpb.RegisterMessagingServiceServer(g, echo{})
	go g.Serve(lis)
	b.Cleanup(g.Stop)
	return lis.Addr().String()
}

// serveDisk serves a broker with a directory, as tidegate serve --data does.
func serveDisk(b *testing.B) string { return serveDiskWith(b, settings.Topic{}, settings.Group{}) }

// serveDiskWith is serveDisk with the settings of the topic t and the group g.
func serveDiskWith(b *testing.B, topic settings.Topic, group settings.Group) string {
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	assert.Must(b, assert.Err(engine.PutTopic(b.Context(), "t", topic)))
	assert.Must(b, assert.Err(engine.PutGroup(b.Context(), "g", group)))
	lis := listenTCP(b)
	s := assert.Value(server.New(engine, server.Options{Advertise: lis.Addr().String()}))(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func listenTCP(b *testing.B) net.Listener {
	return assert.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
}

// rawCalls are sends of one message by the generated client, on up to four connections.
func rawCalls(b *testing.B, address string, callers int) func() error {
	call := generated(b, address, callers)
	ctx := metadata.AppendToOutgoingContext(b.Context(), "x-mq-client-id", "bench", "x-mq-language", "GO")
	return func() error { return call(ctx) }
}

// clientCalls are rawCalls as a client of the protocol makes them: with the headers that official
// clients send, and with a deadline.
func clientCalls(b *testing.B, address string, callers int) func() error {
	call := generated(b, address, callers)
	var requests atomic.Int64
	return func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		return call(metadata.AppendToOutgoingContext(ctx,
			"x-mq-client-id", "bench", "x-mq-language", "GO", "x-mq-client-version", "5.1.4", "x-mq-protocol", "v2",
			"x-mq-request-id", strconv.FormatInt(requests.Add(1), 36), "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z")))
	}
}

func generated(b *testing.B, address string, callers int) func(context.Context) error {
	var clients []rmqpb.MessagingServiceClient
	for range min(callers, 4) {
		cc := assert.Value(grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
		b.Cleanup(func() { cc.Close() })
		clients = append(clients, rmqpb.NewMessagingServiceClient(cc))
	}
	body := make([]byte, 1024)
	var calls atomic.Int64
	return func(ctx context.Context) error {
		r, err := clients[calls.Add(1)%int64(len(clients))].SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
			Topic: &rmqpb.Resource{Name: "t"}, Body: body,
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: tidegate.NewMessageID(), BodyEncoding: rmqpb.Encoding_IDENTITY,
				MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.Now(), BornHost: "bench",
			},
		}}})
		if err == nil && r.GetStatus().GetCode() != rmqpb.Code_OK {
			err = fmt.Errorf("status %v", r.GetStatus())
		}
		return err
	}
}

func benchProducer(b *testing.B, address string) *producer.Producer {
	c := assert.Value(rocketmq.New(address, rocketmq.Options{}))(b)
	b.Cleanup(func() { c.Close() })
	p := assert.Value(producer.New(c, producer.Options{}))(b)
	b.Cleanup(func() { p.Close() })
	return p
}

// closedLoops makes n calls from so many callers.
func closedLoops(b *testing.B, callers, n int, call func() error) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// BenchmarkSendSDK compares Send of 1 KiB to a broker on disk with calls of the generated client
// with one message each: to the same kind of broker, without a deadline and with the necessary
// headers only (raw) or as clients of the protocol call (client), and to a server that only
// responds (echo). All run in turns over loopback TCP, from as many callers. The ratios are the
// SDK's rate divided by theirs. allocs/msg counts client and server.
func BenchmarkSendSDK(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			p := benchProducer(b, serveDisk(b))
			body := make([]byte, 1024)
			n := callers * 100 // the first calls of all callers meet an idle server
			loops := func(call func() error) round {
				return func() (int, time.Duration) { return n, closedLoops(b, callers, n, call) }
			}
			alternate(b, loops(func() error {
				_, err := p.Send(b.Context(), &tidegate.Message{Topic: "t", Body: body})
				return err
			}), map[string]round{
				"echo":   loops(rawCalls(b, serveEcho(b), callers)),
				"raw":    loops(rawCalls(b, serveDisk(b), callers)),
				"client": loops(clientCalls(b, serveDisk(b), callers)),
			})
		})
	}
}

// BenchmarkSendAsyncSDK compares SendAsync from one goroutine, with all results awaited,
// with one-message calls from 256 callers to a server that only responds (echo).
func BenchmarkSendAsyncSDK(b *testing.B) {
	p := benchProducer(b, serveDisk(b))
	body := make([]byte, 1024)
	const n = 20_000
	raw := rawCalls(b, serveEcho(b), 256)
	alternate(b, func() (int, time.Duration) {
		start := time.Now()
		for range n {
			assert.Must(b, p.SendAsync(b.Context(), &tidegate.Message{Topic: "t", Body: body}, func(_ tidegate.Receipt, err error) {
				assert.NoError(b, err)
			}))
		}
		assert.Must(b, p.Flush(b.Context()))
		return n, time.Since(start)
	}, map[string]round{
		"echo": func() (int, time.Duration) { return n / 4, closedLoops(b, 256, n/4, raw) },
	})
}

// A round sends messages and returns how many, and the time that they took.
type round func() (int, time.Duration)

// alternate runs ours and the others one after the other, and reports the rate of ours and
// its ratio to each of the others.
func alternate(b *testing.B, ours round, others map[string]round) {
	sent, took := map[string]int{}, map[string]time.Duration{}
	var allocs uint64
	add := func(name string, r round) {
		n, d := r()
		sent[name] += n
		took[name] += d
	}
	ours() // connects
	for _, r := range others {
		r()
	}
	for b.Loop() {
		for name, r := range others {
			add(name, r)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		add("", ours)
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
	}
	rate := func(name string) float64 { return float64(sent[name]) / took[name].Seconds() }
	b.ReportMetric(rate(""), "msg/s")
	for name := range others {
		b.ReportMetric(rate("")/rate(name), name+"/ratio")
	}
	b.ReportMetric(float64(allocs)/float64(sent[""]), "allocs/msg")
	b.ReportMetric(0, "ns/op") // of a round of all: means nothing
}
