package latency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// groupOf returns the message group of a message of a FIFO topic.
func groupOf(sequence int) string { return fmt.Sprint("group-", sequence%1000) }

// systems starts all servers, and the consumers on them.
func (r *run) systems(b testing.TB) []*system {
	broker, floor := serveApart(b, "broker"), serveApart(b, "floor")
	all := []*system{
		{"floor", r.floorSystem(b, floor), floor},
		{"sdk", r.sdk(b, broker, "sdk", false), broker},
		{"sdk-groups", r.sdk(b, broker, "sdk-fifo", true), broker},
		{"bare", r.bare(b, broker, "bare", false), broker},
		{"bare-groups", r.bare(b, broker, "bare-fifo", true), broker},
	}
	for _, sync := range []string{"nats-always", "nats-default"} {
		server := serveApart(b, sync)
		all = append(all, &system{sync, r.nats(b, server), server})
	}
	return all
}

func (r *run) floorSystem(b testing.TB, server *process) func(context.Context, int, []byte) error {
	stream := assert.Value(dial(b, server.address).NewStream(b.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, floorMethod))(b)
	var mu sync.Mutex
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var m wrapperspb.BytesValue
			if err := stream.RecvMsg(&m); err != nil {
				return
			}
			r.seen(m.Value)
		}
	}()
	b.Cleanup(func() { <-ended })
	return func(_ context.Context, _ int, body []byte) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.SendMsg(wrapperspb.Bytes(body))
	}
}

// sdk consumes a topic with a push consumer of 64 workers.
func (r *run) sdk(b testing.TB, server *process, topic string, fifo bool) func(context.Context, int, []byte) error {
	client := assert.Value(rocketmq.New(server.address, rocketmq.Options{}))(b)
	b.Cleanup(func() { client.Close() })
	p := assert.Value(producer.New(client, producer.Options{}))(b)
	b.Cleanup(func() { p.Close() })
	push := assert.Value(consumer.NewPush(client, consumer.Subscription{Group: topic, Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		r.seen(d.Body)
		return nil
	}, consumer.PushOptions{Concurrency: 64}))(b)
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- push.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		assert.NoError(b, <-ended)
	})
	return func(ctx context.Context, sequence int, body []byte) error {
		m := &tidegate.Message{Topic: topic, Body: body}
		if fifo {
			m.MessageGroup = groupOf(sequence)
		}
		_, err := p.Send(ctx, m)
		return err
	}
}

// bare sends one message in each request, on four connections, and consumes with four receives that
// each acknowledge before the next one.
func (r *run) bare(b testing.TB, server *process, topic string, fifo bool) func(context.Context, int, []byte) error {
	var clients []rmqpb.MessagingServiceClient
	for range 4 {
		clients = append(clients, rmqpb.NewMessagingServiceClient(dial(b, server.address)))
	}
	ctx, stop := context.WithCancel(b.Context())
	var consumers sync.WaitGroup
	for _, c := range clients {
		consumers.Go(func() {
			for ctx.Err() == nil {
				if err := r.receiveOnce(ctx, c, topic); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.Cleanup(func() {
		stop()
		consumers.Wait()
	})
	return func(ctx context.Context, sequence int, body []byte) error {
		return sendBare(ctx, clients[sequence%len(clients)], topic, sequence, body, fifo)
	}
}

func sendBare(ctx context.Context, c rmqpb.MessagingServiceClient, topic string, sequence int, body []byte, fifo bool) error {
	sys := &rmqpb.SystemProperties{
		MessageId: tidegate.NewMessageID(), BodyEncoding: rmqpb.Encoding_IDENTITY,
		MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.Now(), BornHost: "bench",
	}
	if fifo {
		group := groupOf(sequence)
		sys.MessageType, sys.MessageGroup = rmqpb.MessageType_FIFO, &group
	}
	res, err := c.SendMessage(identified(ctx), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: topic}, Body: body, SystemProperties: sys,
	}}})
	if err == nil && res.GetStatus().GetCode() != rmqpb.Code_OK {
		err = fmt.Errorf("status %v", res.GetStatus())
	}
	return err
}

// receiveOnce receives up to 32 messages and acknowledges them in one request.
func (r *run) receiveOnce(ctx context.Context, c rmqpb.MessagingServiceClient, topic string) error {
	ctx = identified(ctx)
	name := &rmqpb.Resource{Name: topic}
	stream, err := c.ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: name, MessageQueue: &rmqpb.MessageQueue{Topic: name, Id: -1}, BatchSize: 32,
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(20 * time.Second),
	})
	if err != nil {
		return err
	}
	ack := &rmqpb.AckMessageRequest{Group: name, Topic: name}
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m := res.GetMessage(); m != nil {
			r.seen(m.Body)
			ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{
				MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			})
		}
	}
	if len(ack.Entries) == 0 {
		return nil
	}
	res, err := c.AckMessage(ctx, ack)
	if err == nil && res.GetStatus().GetCode() != rmqpb.Code_OK {
		err = fmt.Errorf("acknowledging: %v", res.GetStatus())
	}
	return err
}

func identified(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "bench", "x-mq-language", "GO")
}

func dial(b testing.TB, address string) *grpc.ClientConn {
	b.Helper()
	cc := assert.Value(grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
	b.Cleanup(func() { cc.Close() })
	return cc
}

// bareTrip returns a function that returns the median time of a request of 1 KiB to a server that
// only responds, in milliseconds.
func bareTrip(b testing.TB, pace time.Duration) func() float64 {
	client := rmqpb.NewMessagingServiceClient(dial(b, serveApart(b, "echo").address))
	body := make([]byte, 1024)
	return paced(b, pace, func() { assert.Must(b, sendBare(b.Context(), client, "t", 0, body, false)) })
}

// nats publishes on four connections, and consumes with four pull consumers, which acknowledge each
// message without a response, as is their default.
func (r *run) nats(b testing.TB, server *process) func(context.Context, int, []byte) error {
	var streams []jetstream.JetStream
	for range 4 {
		c := assert.Value(nats.Connect(server.address))(b)
		b.Cleanup(c.Close)
		streams = append(streams, assert.Value(jetstream.New(c))(b))
	}
	s := assert.Value(streams[0].CreateStream(b.Context(), jetstream.StreamConfig{Name: "t", Subjects: []string{"t"}, Storage: jetstream.FileStorage}))(b)
	assert.Must(b, assert.Err(s.CreateOrUpdateConsumer(b.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})))
	for _, js := range streams {
		c := assert.Value(js.Consumer(b.Context(), "t", "c"))(b)
		consuming := assert.Value(c.Consume(func(m jetstream.Msg) {
			r.seen(m.Data())
			assert.NoError(b, m.Ack())
		}, jetstream.PullMaxMessages(256)))(b)
		b.Cleanup(func() {
			consuming.Stop()
			<-consuming.Closed()
		})
	}
	return func(ctx context.Context, sequence int, body []byte) error {
		_, err := streams[sequence%len(streams)].Publish(ctx, "t", body)
		return err
	}
}
