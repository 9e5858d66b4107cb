package interop

import (
	"context"
	"errors"
	"testing"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// BenchmarkSend sends from 64 goroutines, with the producer and with the client alone, both without
// batching.
func BenchmarkSend(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{})
	c := bare(b, server)
	s.Send(b, func(topic string, n int) func() {
		return bareSend(b, c, topic, n, client.ProducerOptions{DisableBatching: true})
	})
}

// BenchmarkSendBatched sends from 64 goroutines, with Options.Batching and with the default
// batching of the client alone.
func BenchmarkSendBatched(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{Batching: true})
	c := bare(b, server)
	s.Send(b, func(topic string, n int) func() { return bareSend(b, c, topic, n, client.ProducerOptions{}) })
}

// BenchmarkSendAsync is BenchmarkSend with sends from one goroutine that waits for no response.
func BenchmarkSendAsync(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{})
	c := bare(b, server)
	s.SendAsync(b, func(topic string, n int) func() {
		return bareSendAsync(b, c, topic, n, client.ProducerOptions{DisableBatching: true})
	})
}

// BenchmarkSendAsyncBatched is BenchmarkSendAsync with batching.
func BenchmarkSendAsyncBatched(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{Batching: true})
	c := bare(b, server)
	s.SendAsync(b, func(topic string, n int) func() { return bareSendAsync(b, c, topic, n, client.ProducerOptions{}) })
}

// BenchmarkConsume receives and acknowledges with 64 workers, with the push consumer and with the
// client alone, which also waits for the response to each acknowledgement.
func BenchmarkConsume(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{})
	c := bare(b, server)
	s.Consume(b, func(topic string, n int) func() { return bareConsume(b, c, topic, n, true) })
}

// BenchmarkConsumeUnconfirmed is BenchmarkConsume beside the client's default: it gathers
// acknowledgements for up to 100 ms, and gets no response to them.
func BenchmarkConsumeUnconfirmed(b *testing.B) {
	s, server := benchServer(b, pulsar.Options{})
	c := bare(b, server)
	s.Consume(b, func(topic string, n int) func() { return bareConsume(b, c, topic, n, false) })
}

// BenchmarkMemory reports the memory of a million messages.
func BenchmarkMemory(b *testing.B) {
	s, _ := benchServer(b, pulsar.Options{})
	s.Memory(b)
}

// benchServer starts a server.
func benchServer(b *testing.B, o pulsar.Options) (servertest.Bench, *standalone.Server) {
	b.Helper()
	s := start(b, standalone.Options{})
	a := s.Admin()
	o.RequestTimeout = requestTimeout
	return servertest.Bench{
		PID: s.PID(), Peer: "client",
		Connect: func() transport.Transport { return assert.Value(pulsar.New(s.URL(), o))(b) },
		Create: func(ctx context.Context, topic string) error {
			letters := topic + "-" + servertest.Group + "-DLQ"
			return errors.Join(
				a.CreateTopic(ctx, topic), a.CreateSubscription(ctx, topic, servertest.Group), a.CreateTopic(ctx, topic+"-"+servertest.Group+"-RETRY"),
				a.CreateTopic(ctx, letters), a.CreateSubscription(ctx, letters, "dead-letters"),
			)
		},
		Count: func(ctx context.Context, topic string) (int, error) {
			stats, err := a.TopicStats(ctx, topic)
			if stats.Subscriptions[servertest.Group].Backlog == 0 {
				return 0, err
			}
			return int(stats.Received), err
		},
		Remove: func(ctx context.Context, topic string) error {
			return a.DeleteSubscription(ctx, topic, servertest.Group)
		},
	}, s
}

// bareMessage returns a message with an ID, as the producer sends it.
func bareMessage() *client.ProducerMessage {
	return &client.ProducerMessage{Payload: servertest.Payload(), Properties: map[string]string{"UNIQ_KEY": tidegate.NewMessageID()}}
}

func bareProducer(b *testing.B, c client.Client, topic string, o client.ProducerOptions) client.Producer {
	b.Helper()
	o.Topic = topic
	return assert.Value(c.CreateProducer(o))(b)
}

func bareSend(b *testing.B, c client.Client, topic string, n int, o client.ProducerOptions) (end func()) {
	p := bareProducer(b, c, topic, o)
	servertest.InTurn(b, n, func() error { return assert.Err(p.Send(b.Context(), bareMessage())) })
	return p.Close
}

func bareSendAsync(b *testing.B, c client.Client, topic string, n int, o client.ProducerOptions) (end func()) {
	p := bareProducer(b, c, topic, o)
	for range n {
		p.SendAsync(b.Context(), bareMessage(), func(_ client.MessageID, _ *client.ProducerMessage, err error) { assert.NoError(b, err) })
	}
	assert.NoError(b, p.FlushWithCtx(b.Context()))
	return p.Close
}

// bareConsume receives and acknowledges with all goroutines.
func bareConsume(b *testing.B, c client.Client, topic string, n int, confirmed bool) (end func()) {
	consumer := assert.Value(c.Subscribe(client.ConsumerOptions{
		Topic: topic, SubscriptionName: servertest.Group, Type: client.Shared, AckWithResponse: confirmed,
	}))(b)
	servertest.InTurn(b, n, func() error {
		m, err := consumer.Receive(b.Context())
		if err != nil {
			return err
		}
		assert.Equal(b, "a body of bytes", len(m.Payload()), len(servertest.Payload()))
		return consumer.Ack(m)
	})
	return consumer.Close
}
