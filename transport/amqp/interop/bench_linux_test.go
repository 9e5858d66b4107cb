package interop

import (
	"context"
	"strconv"
	"sync"
	"testing"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// BenchmarkSend sends from 64 goroutines, with the producer and with go-amqp alone.
func BenchmarkSend(b *testing.B) {
	s, address := benchServer(b)
	s.Send(b, func(topic string, n int) func() { return bareSend(b, address, topic, n) })
}

// BenchmarkConsume receives and acknowledges with 64 workers, with the push consumer and with
// go-amqp alone. Both may hold 1024 messages.
func BenchmarkConsume(b *testing.B) {
	s, address := benchServer(b)
	s.Consume(b, func(topic string, n int) func() { return bareConsume(b, address, topic, n) })
}

// BenchmarkMemory reports the memory of a million messages.
func BenchmarkMemory(b *testing.B) {
	s, _ := benchServer(b)
	s.Memory(b)
}

// benchServer starts a server whose addresses are never full, and returns its address.
func benchServer(b *testing.B) (servertest.Bench, string) {
	b.Helper()
	s := start(b, artemis.Options{Properties: map[string]string{
		`addressSettings."#".autoCreateAddresses`: "true", `addressSettings."#".maxSizeBytes`: "-1", "globalMaxSize": "-1",
	}})
	a := assert.Value(connect(b.Context(), s.Address()))(b)
	do := func(ctx context.Context, topic, operation string) (string, error) {
		return a.do(ctx, "queue."+topic+"."+servertest.Group, operation)
	}
	return servertest.Bench{
		PID: s.PID(), Peer: "go-amqp",
		Connect: func() transport.Transport { return assert.Value(amqp.New(s.Address(), amqp.Options{}))(b) },
		Create:  func(ctx context.Context, topic string) error { return a.createGroup(ctx, topic, servertest.Group) },
		Count: func(ctx context.Context, topic string) (int, error) {
			list, err := do(ctx, topic, "countMessages") // [20000]
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(list[1 : len(list)-1])
		},
		Remove: func(ctx context.Context, topic string) error { return assert.Err(do(ctx, topic, "removeAllMessages")) },
	}, s.Address()
}

// bareSend sends durable messages with duplicate detection, as the producer does.
func bareSend(b *testing.B, address, topic string, n int) (end func()) {
	session, end := dial(b, address)
	s := assert.Value(session.NewSender(b.Context(), topic, &goamqp.SenderOptions{SettlementMode: goamqp.SenderSettleModeUnsettled.Ptr()}))(b)
	servertest.InTurn(b, n, func() error {
		m := goamqp.NewMessage(servertest.Payload())
		m.Header = &goamqp.MessageHeader{Durable: true}
		id := tidegate.NewMessageID()
		m.Properties = &goamqp.MessageProperties{MessageID: id}
		m.ApplicationProperties = map[string]any{"_AMQ_DUPL_ID": id}
		return s.Send(b.Context(), m, nil)
	})
	return end
}

// bareConsume receives with one goroutine and acknowledges with 64.
func bareConsume(b *testing.B, address, topic string, n int) (end func()) {
	session, end := dial(b, address)
	r, err := session.NewReceiver(b.Context(), topic+"::"+topic+"."+servertest.Group, &goamqp.ReceiverOptions{
		Credit: 1024, SourceCapabilities: []string{"topic"},
	})
	assert.Must(b, err)
	messages := make(chan *goamqp.Message)
	var wg sync.WaitGroup
	for range servertest.Callers {
		wg.Go(func() {
			for m := range messages {
				assert.Equal(b, "a body of bytes", len(m.GetData()), len(servertest.Payload()))
				assert.NoError(b, r.AcceptMessage(b.Context(), m))
			}
		})
	}
	for range n {
		m := assert.Value(r.Receive(b.Context(), nil))(b)
		messages <- m
	}
	close(messages)
	wg.Wait()
	return end
}
