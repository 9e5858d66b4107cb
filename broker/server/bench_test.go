package server_test

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// BenchmarkConsume compares receiving 32 messages of 1 KiB and acknowledging them, in turns within
// the same run, on three servers: a broker on disk, a server that has one response for each request
// (echo), and a server that delivers from memory and syncs acknowledgements to a file (wal).
// echo/ratio and wal/ratio are the broker's rate divided by theirs.
func BenchmarkConsume(b *testing.B) {
	for _, consumers := range []int{1, 16} {
		b.Run(fmt.Sprintf("consumers=%d", consumers), func(b *testing.B) {
			const messages = 64 * 256
			addresses := [3]string{serveFloor(b, newCanned(make([]byte, 1024))), serveFloor(b, newRelay(b)), serveBroker(b)}
			var took [3]time.Duration
			var fillers [3]*load
			var receivers [3]receiving
			for i, address := range addresses {
				fillers[i], receivers[i] = newLoad(b, address, 8, 64), newConsumers(b, address, consumers)
			}
			n := 0
			for b.Loop() {
				for i, f := range fillers {
					f.send(b, messages/64+consumers) // more than is received: no receive waits
					took[i] += receivers[i].consume(b, messages)
				}
				n += messages
			}
			b.ReportMetric(float64(n)/took[2].Seconds(), "msg/s")
			b.ReportMetric(took[0].Seconds()/took[2].Seconds(), "echo/ratio")
			b.ReportMetric(took[1].Seconds()/took[2].Seconds(), "wal/ratio")
			b.ReportMetric(0, "ns/op") // of a round of filling and all three: means nothing
		})
	}
}

// receiving is consumers that receive and acknowledge in closed loops.
type receiving []rmqpb.MessagingServiceClient

func newConsumers(b *testing.B, address string, n int) receiving {
	cs := make(receiving, n)
	for i := range cs {
		if cs[i] = connect(b, address); i >= 4 {
			cs[i] = cs[i%4]
		}
	}
	return cs
}

func (cs receiving) consume(b *testing.B, n int) time.Duration {
	var got atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			for got.Load() < int64(n) && !b.Failed() {
				ms, err := receiveOnce(b.Context(), c, nil)
				if err != nil {
					b.Error(err)
					return
				}
				got.Add(int64(ms))
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

var (
	benchGroup = &rmqpb.Resource{Name: "g"}
	benchTopic = &rmqpb.Resource{Name: "t"}
)

// receiveOnce receives up to 32 messages, calls seen with them, and acknowledges them in one
// request.
func receiveOnce(ctx context.Context, c rmqpb.MessagingServiceClient, seen func(*rmqpb.Message)) (int, error) {
	ctx = identified(ctx)
	stream, err := c.ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: benchGroup, MessageQueue: &rmqpb.MessageQueue{Topic: benchTopic, Id: -1}, BatchSize: 32,
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(time.Second),
	})
	if err != nil {
		return 0, err
	}
	ack := &rmqpb.AckMessageRequest{Group: benchGroup, Topic: benchTopic}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if m := r.GetMessage(); m != nil {
			if seen != nil {
				seen(m)
			}
			ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{
				MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			})
		}
	}
	if len(ack.Entries) == 0 {
		return 0, nil
	}
	r, err := c.AckMessage(ctx, ack)
	if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
		return 0, fmt.Errorf("acknowledging: %w, %v", err, r.GetStatus())
	}
	return len(ack.Entries), nil
}

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
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	assert.Must(b, assert.Err(engine.PutTopic(b.Context(), "t", settings.Topic{})))
	s := assert.Value(server.New(engine, server.Options{}))(b)
	lis := loopback(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func loopback(b testing.TB) net.Listener {
	lis := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
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
	cc := assert.Value(grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
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

// The floors are gRPC servers that do the least that a broker must. Everything above them is the
// broker's own cost.

var answerOK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

// echo responds to every send and stores nothing: it has the minimal cost of gRPC.
type echo struct {
	rmqpb.UnimplementedMessagingServiceServer
}

func (echo) SendMessage(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	out := &rmqpb.SendMessageResponse{Status: answerOK}
	for _, m := range r.Messages {
		out.Entries = append(out.Entries, &rmqpb.SendResultEntry{Status: answerOK, MessageId: m.SystemProperties.GetMessageId()})
	}
	return out, nil
}

// wal responds to a send once the message is in a file and synced. One sync serves all sends that
// arrived during the previous sync.
type wal struct {
	echo
	file *os.File

	mu      sync.Mutex
	writing bool
	next    *round
}

// A round has the messages that one write and sync make durable.
type round struct {
	buf  []byte
	done chan struct{}
	err  error
}

func newWAL(b testing.TB) *wal {
	f := assert.Value(os.CreateTemp(b.TempDir(), "wal"))(b)
	b.Cleanup(func() { f.Close() })
	return &wal{file: f, next: &round{done: make(chan struct{})}}
}

func (w *wal) SendMessage(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	record, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	if err := w.append(record); err != nil {
		return nil, err
	}
	return w.echo.SendMessage(ctx, r)
}

// append returns when the record is on disk.
func (w *wal) append(record []byte) error {
	w.mu.Lock()
	mine := w.next
	mine.buf = append(mine.buf, record...)
	first := !w.writing
	w.writing = true
	w.mu.Unlock()
	if first {
		go w.write()
	}
	<-mine.done
	return mine.err
}

func (w *wal) write() {
	for {
		w.mu.Lock()
		c := w.next
		if len(c.buf) == 0 {
			w.writing = false
			w.mu.Unlock()
			return
		}
		w.next = &round{done: make(chan struct{})}
		w.mu.Unlock()
		if _, c.err = w.file.Write(c.buf); c.err == nil {
			c.err = datasync(w.file)
		}
		close(c.done)
	}
}

// A relay is the least durable broker: a message is in a file and synced before the response to its
// send, and then in memory until a receive takes it. An acknowledgement is in a second file and
// synced before its response. A relay has no groups, no leases, no retries and no limits, and never
// reads its files.
type relay struct {
	*wal
	acks   *wal
	stored chan *rmqpb.Message
}

func newRelay(b testing.TB) *relay {
	return &relay{newWAL(b), newWAL(b), make(chan *rmqpb.Message, 1<<20)}
}

func (y *relay) SendMessage(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	out, err := y.wal.SendMessage(ctx, r)
	if err != nil {
		return nil, err
	}
	stored := timestamppb.Now()
	for _, m := range r.Messages {
		sys := m.SystemProperties
		sys.ReceiptHandle, sys.DeliveryAttempt = new(cannedHandle), proto.Int32(1)
		sys.StoreTimestamp, sys.StoreHost, sys.BodyDigest = stored, "bench", digest(m.Body)
		y.stored <- m
	}
	return out, nil
}

func (y *relay) ReceiveMessage(r *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: answerOK}}); err != nil {
		return err
	}
	var m *rmqpb.Message
	select {
	case m = <-y.stored:
	case <-time.After(r.LongPollingTimeout.AsDuration()):
		return nil
	case <-stream.Context().Done():
		return context.Cause(stream.Context())
	}
	for n := int32(1); ; n++ {
		m.SystemProperties.InvisibleDuration = r.InvisibleDuration
		if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}}); err != nil {
			return err
		}
		more := n < r.BatchSize
		if more {
			select {
			case m = <-y.stored:
			default:
				more = false
			}
		}
		if !more {
			return stream.Send(deliveredAt(time.Now()))
		}
	}
}

// deliveredAt is the last frame of a response with messages.
func deliveredAt(at time.Time) *rmqpb.ReceiveMessageResponse {
	return &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.New(at)}}
}

func (y *relay) AckMessage(_ context.Context, r *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	if err := y.acks.append(make([]byte, 20*len(r.Entries))); err != nil {
		return nil, err
	}
	return acknowledged(r), nil
}

func acknowledged(r *rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
	out := &rmqpb.AckMessageResponse{Status: answerOK}
	for _, e := range r.Entries {
		out.Entries = append(out.Entries, &rmqpb.AckMessageResultEntry{Status: answerOK, MessageId: e.MessageId, ReceiptHandle: e.ReceiptHandle})
	}
	return out
}

// cannedHandle is about as long as the broker's receipt handles.
var cannedHandle = strings.Repeat("h", 40)

func digest(body []byte) *rmqpb.Digest {
	return &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(body))}
}

// canned responds to every receive with the same 32 messages of 1 KiB, whose digests it need not
// compute, and to every acknowledgement with OK.
type canned struct {
	echo
	messages []*rmqpb.ReceiveMessageResponse
}

func newCanned(body []byte) *canned {
	c := &canned{}
	for i := range 32 {
		m := &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: "t"}, Body: body,
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprintf("01A%031X", i), BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_NORMAL,
				BornTimestamp: timestamppb.Now(), StoreTimestamp: timestamppb.Now(), BornHost: "bench", StoreHost: "bench",
				ReceiptHandle:   new(cannedHandle),
				DeliveryAttempt: proto.Int32(1), InvisibleDuration: durationpb.New(time.Minute),
				BodyDigest: digest(body),
			},
		}
		c.messages = append(c.messages, &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}})
	}
	return c
}

func (c *canned) ReceiveMessage(_ *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: answerOK}}); err != nil {
		return err
	}
	for _, m := range c.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return stream.Send(deliveredAt(time.Now()))
}

func (c *canned) AckMessage(_ context.Context, r *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	return acknowledged(r), nil
}

// A rate divided by a floor's is the cost of a broker's work only if the floor's responses cost
// gRPC and the client as much as the broker's: the same frames, and messages with the same fields.
func TestFloorsRespondAsTheBrokerDoes(t *testing.T) {
	want := framesOf(t, serveBroker(t))
	for name, floor := range map[string]rmqpb.MessagingServiceServer{"relay": newRelay(t), "canned": newCanned(make([]byte, 1024))} {
		got := framesOf(t, serveFloor(t, floor))
		got = slices.CompactFunc(got, slices.Equal) // the canned responses have 32 messages
		assert.That(t, slices.EqualFunc(got, want, slices.Equal), "%s responds with\n%v, want\n%v", name, got, want)
	}
}

// framesOf sends and receives a message, and returns the fields that are set in each frame of the
// response.
func framesOf(t *testing.T, address string) (frames [][]protoreflect.FullName) {
	client := newLoad(t, address, 1, 1).clients[0] // it has sent a message
	stream, err := client.ReceiveMessage(identified(t.Context()), &rmqpb.ReceiveMessageRequest{
		Group: benchGroup, MessageQueue: &rmqpb.MessageQueue{Topic: benchTopic, Id: -1}, BatchSize: 32,
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(time.Second),
	})
	for err == nil {
		var r *rmqpb.ReceiveMessageResponse
		if r, err = stream.Recv(); err == nil {
			fields := fieldsOf(r.ProtoReflect())
			slices.Sort(fields)
			frames = append(frames, fields)
		}
	}
	assert.MustThat(t, errors.Is(err, io.EOF), "%v", err)
	return frames
}

// fieldsOf returns the fields that are set in a message and in the messages of the protocol in it.
// It omits the number of the queue and the offset, which are zero for the first message.
func fieldsOf(m protoreflect.Message) (names []protoreflect.FullName) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() == "queue_id" || f.Name() == "queue_offset" {
			return true
		}
		names = append(names, f.FullName())
		if d := f.Message(); d != nil && !f.IsMap() && !f.IsList() && d.ParentFile() == m.Descriptor().ParentFile() {
			names = append(names, fieldsOf(v.Message())...)
		}
		return true
	})
	return names
}
