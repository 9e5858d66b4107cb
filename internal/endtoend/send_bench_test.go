package endtoend

import (
	"context"
	"crypto/tls"
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
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
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

// BenchmarkPushSDK consumes messages of 1 KiB with a push consumer, 64 workers and a handler that
// does nothing, from a broker on disk, until every acknowledgement is on disk: without an order,
// in 1 000 message groups of a FIFO group, and in 1 000 lite topics. In turns within the same run 64 callers send as many
// messages one by one to a server that only responds (echo). echo/ratio is the consumer's rate
// divided by theirs; allocs/msg counts client and server.
func BenchmarkPushSDK(b *testing.B) {
	for name, kind := range map[string]settings.TopicType{"unordered": settings.TopicNormal, "groups=1000": settings.TopicFIFO, "lite-topics=1000": settings.TopicLite} {
		b.Run(name, func(b *testing.B) {
			const messages, callers = 32 << 10, 64
			groups, group, sub := 1000, settings.Group{FIFO: true}, consumer.Subscription{Group: "g", Topic: "t"}
			switch kind {
			case settings.TopicNormal:
				groups, group.FIFO = 0, false
			case settings.TopicLite:
				group.Lite.Topic, sub.Lite = "t", true
			}
			c := newCountingClient(b, serveDiskWith(b, settings.Topic{Type: kind}, group))
			floor := rawCalls(b, serveEcho(b), callers)
			var took [2]time.Duration
			var allocs uint64
			n := 0
			for b.Loop() {
				took[0] += closedLoops(b, callers, messages, floor)
				c.fill(b, messages, []string{"t"}, groups, sub.Lite)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				d, _ := c.consume(b, messages, callers, sub)
				took[1] += d
				runtime.ReadMemStats(&after)
				allocs += after.Mallocs - before.Mallocs
				n += messages
			}
			b.ReportMetric(float64(n)/took[1].Seconds(), "msg/s")
			b.ReportMetric(float64(n)/took[0].Seconds(), "echo-msg/s")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "echo/ratio")
			b.ReportMetric(float64(c.messages.Load())/float64(max(c.receives.Load(), 1)), "msg/receive")
			b.ReportMetric(float64(allocs)/float64(n), "allocs/msg")
			b.ReportMetric(0, "ns/op") // of a round of filling and both: means nothing
		})
	}
}

// A countingClient is the SDK's client, and counts the received messages.
type countingClient struct {
	*rocketmq.Client
	receives, messages atomic.Int64
}

func newCountingClient(b *testing.B, address string) *countingClient {
	b.Helper()
	c := assert.Value(rocketmq.New(address, rocketmq.Options{}))(b)
	b.Cleanup(func() { c.Close() })
	return &countingClient{Client: c}
}

// Receive receives as the client does.
func (c *countingClient) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	c.count(len(ds))
	return ds, err
}

// ReceiveParts receives as the client does.
func (c *countingClient) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func([]*tidegate.Delivery, time.Time)) ([]*tidegate.Delivery, error) {
	n := 0
	ds, err := c.Client.ReceiveParts(ctx, r, func(part []*tidegate.Delivery, since time.Time) {
		n += len(part)
		deliver(part, since)
	})
	c.count(n + len(ds))
	return ds, err
}

func (c *countingClient) count(messages int) {
	if messages > 0 {
		c.receives.Add(1)
		c.messages.Add(int64(messages))
	}
}

// ReceiveOrWatch receives as the client does.
func (c *countingClient) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	ds, ready, err := c.Client.ReceiveOrWatch(ctx, r)
	c.count(len(ds))
	return ds, ready, err
}

// fill stores n messages, batches of each topic in turns, of so many message groups or lite topics in
// turns if there are any.
func (c *countingClient) fill(b *testing.B, n int, topics []string, groups int, lite bool) {
	const batch, senders = 64, 8
	body := make([]byte, 1<<10)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for from := int(next.Add(batch)) - batch; from < n; from = int(next.Add(batch)) - batch {
				msgs := make([]*tidegate.Message, min(batch, n-from))
				for i := range msgs {
					msgs[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topics[from/batch%len(topics)], Body: body}
					switch name := fmt.Sprint((from + i) % max(groups, 1)); {
					case lite:
						msgs[i].LiteTopic = name
					case groups > 0:
						msgs[i].MessageGroup = name
					}
				}
				for _, r := range c.Send(b.Context(), msgs) {
					if r.Err != nil {
						b.Error(r.Err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow() // consume would wait for the missing messages without end
	}
}

// consume consumes n messages, and returns the time until the last acknowledgement: took from the
// start, and steady from the first acknowledgement.
func (c *countingClient) consume(b *testing.B, n, workers int, sub consumer.Subscription) (took, steady time.Duration) {
	var settled, first atomic.Int64
	var start time.Time
	done := make(chan struct{})
	p := assert.Value(consumer.NewPush(c, sub,
		func(context.Context, *tidegate.Delivery) error { return nil },
		consumer.PushOptions{Concurrency: workers, OnDelivery: func(o consumer.Outcome) {
			if o.Disposition != consumer.Acked { // a helper with o as an argument would allocate
				b.Errorf("%+v", o)
			}
			switch settled.Add(1) {
			case 1:
				first.Store(int64(time.Since(start)))
			case int64(n):
				close(done)
			}
		}}))(b)
	for i := 0; sub.Lite && i < 1000; i++ {
		assert.Must(b, p.Subscribe(b.Context(), fmt.Sprint(i), transport.LiteStart{}))
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	start = time.Now()
	go func() { ended <- p.Run(ctx) }()
	<-done
	took = time.Since(start)
	stop()
	assert.NoError(b, <-ended)
	return took, took - time.Duration(first.Load())
}

// topicsMessages is the number of messages of a round of BenchmarkTopicsSDK and BenchmarkSecureSDK.
// A round takes seconds, so each contains collections of garbage and compactions of the broker.
const topicsMessages = 100_000

// BenchmarkTopicsSDK sends messages of 1 KiB to 100 and to 1 000 topics in turn, with SendAsync
// from one goroutine and with Send from 256, to a broker on disk. one/ratio is the rate divided by
// that of one topic in the same run.
func BenchmarkTopicsSDK(b *testing.B) {
	for _, topics := range []int{100, 1000} {
		for name, send := range map[string]func(*testing.B, *producer.Producer, int) round{"async": asyncTo, "callers=256": callersTo256} {
			b.Run(fmt.Sprintf("topics=%d/%s", topics, name), func(b *testing.B) {
				p := benchProducer(b, serveTopics(b, topics))
				alternate(b, send(b, p, topics), map[string]round{"one": send(b, p, 1)})
			})
		}
	}
}

// BenchmarkPushTopicsSDK consumes messages of 1 KiB of 100 and of 1 000 topics with one push
// consumer, 64 workers and a handler that does nothing, from a broker on disk, until every
// acknowledgement is on disk. one/ratio is the rate divided by that of one topic in the same run;
// the rates count from the first acknowledgement. start-ms is the time until then.
func BenchmarkPushTopicsSDK(b *testing.B) {
	for _, topics := range []int{100, 1000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			const messages, workers = 128 << 10, 64
			address := serveTopics(b, topics+1)
			loads := map[string][]string{"all": names(topics), "one": {fmt.Sprintf("t%d", topics)}}
			took, begin := map[string]time.Duration{}, map[string]time.Duration{}
			var receives int64
			for b.Loop() {
				for name, to := range loads {
					c := newCountingClient(b, address)
					c.fill(b, messages, to, 0, false)
					d, steady := c.consume(b, messages, workers, consumer.Subscription{Group: "g-" + name, Topics: all(to)})
					if name == "all" {
						receives += c.receives.Load()
					}
					took[name], begin[name] = took[name]+steady, begin[name]+d-steady
				}
			}
			b.ReportMetric(float64(b.N*messages)/took["all"].Seconds(), "msg/s")
			b.ReportMetric(took["one"].Seconds()/took["all"].Seconds(), "one/ratio")
			b.ReportMetric(float64(b.N*messages)/float64(receives), "msg/receive")
			b.ReportMetric(float64(begin["all"].Milliseconds())/float64(b.N), "start-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// all is a subscription to topics without filters.
func all(topics []string) map[string]tidegate.Filter {
	m := map[string]tidegate.Filter{}
	for _, t := range topics {
		m[t] = tidegate.Filter{}
	}
	return m
}

// serveTopics serves a broker on disk with the topics t0, t1 and so on.
func serveTopics(b *testing.B, n int) string {
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	for i := range n {
		assert.Must(b, assert.Err(engine.PutTopic(b.Context(), fmt.Sprintf("t%d", i), settings.Topic{})))
	}
	lis := listenTCP(b)
	s := assert.Value(server.New(engine, server.Options{Advertise: lis.Addr().String()}))(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func names(topics int) []string {
	list := make([]string, topics)
	for i := range list {
		list[i] = fmt.Sprintf("t%d", i)
	}
	return list
}

func asyncTo(b *testing.B, p *producer.Producer, topics int) round {
	const n = topicsMessages
	to, body := names(topics), make([]byte, 1024)
	return func() (int, time.Duration) {
		start := time.Now()
		for i := range n {
			assert.Must(b, p.SendAsync(b.Context(), &tidegate.Message{Topic: to[i%topics], Body: body}, func(_ tidegate.Receipt, err error) {
				assert.NoError(b, err)
			}))
		}
		assert.Must(b, p.Flush(b.Context()))
		return n, time.Since(start)
	}
}

func callersTo256(b *testing.B, p *producer.Producer, topics int) round {
	return callersTo(b, p, 256, topics)
}

func callersTo(b *testing.B, p *producer.Producer, callers, topics int) round {
	const n = topicsMessages
	to, body := names(topics), make([]byte, 1024)
	var next atomic.Int64
	return func() (int, time.Duration) {
		return n, closedLoops(b, callers, n, func() error {
			_, err := p.Send(b.Context(), &tidegate.Message{Topic: to[int(next.Add(1))%topics], Body: body})
			return err
		})
	}
}

// BenchmarkSecureSDK sends messages of 1 KiB to a broker on disk with TLS and signed requests: Send
// from 64 and from 256 goroutines, and SendAsync from one. plain/ratio is the rate divided by that
// of plain text without signatures in the same run.
func BenchmarkSecureSDK(b *testing.B) {
	credentials := tidegate.Credentials{AccessKey: "bench", SecretKey: "a secret of the benchmark"}
	address := serveSecure(b, credentials)
	secure := produceWith(b, address, rocketmq.Options{TLS: &tls.Config{InsecureSkipVerify: true}, Credentials: credentials})
	plain := benchProducer(b, serveTopics(b, 1))
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			alternate(b, callersTo(b, secure, callers, 1), map[string]round{"plain": callersTo(b, plain, callers, 1)})
		})
	}
	b.Run("async", func(b *testing.B) {
		alternate(b, asyncTo(b, secure, 1), map[string]round{"plain": asyncTo(b, plain, 1)})
	})
}

// serveSecure serves a broker on disk with the topic t0 that accepts only clients with credentials.
func serveSecure(b *testing.B, c tidegate.Credentials) string {
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	assert.Must(b, assert.Err(engine.PutTopic(b.Context(), "t0", settings.Topic{})))
	lis := listenTCP(b)
	rule := server.Rule{Actions: []server.Action{"send"}, Topics: []string{"*"}}
	s := assert.Value(server.New(engine, server.Options{Advertise: lis.Addr().String(), RequireTLS: true, Access: server.AccessConfig{
		Keys: []server.Key{{Name: c.AccessKey, Secrets: []server.Secret{server.NewSecret(c.SecretKey)}, Allow: []server.Rule{rule}}},
	}}))(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func produceWith(b *testing.B, address string, opts rocketmq.Options) *producer.Producer {
	c := assert.Value(rocketmq.New(address, opts))(b)
	b.Cleanup(func() { c.Close() })
	p := assert.Value(producer.New(c, producer.Options{}))(b)
	b.Cleanup(func() { p.Close() })
	return p
}
