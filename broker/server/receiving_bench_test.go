package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

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

// BenchmarkEndToEnd sends 5 000 messages of 1 KiB a second, five each millisecond by 64 senders. It
// measures the time from the due time of each message to its receipt by one of 4 consumers, which
// acknowledge. It does so with a broker on disk and, in turns, with the least durable one (wal).
// The ratios are the latencies of the broker divided by those of wal.
func BenchmarkEndToEnd(b *testing.B) {
	addresses := [2]string{serveFloor(b, newRelay(b)), serveBroker(b)}
	var late [2][]float64
	var senders [2]*load
	var receivers [2]receiving
	for i, address := range addresses {
		senders[i], receivers[i] = newLoad(b, address, 64, 1), newConsumers(b, address, 4)
	}
	for b.Loop() {
		for i := range addresses {
			late[i] = append(late[i], endToEnd(b, senders[i], receivers[i], 5000, 2*time.Second)...)
		}
	}
	quantile := func(i int, q float64) float64 {
		slices.Sort(late[i])
		return late[i][int(q*float64(len(late[i])))]
	}
	b.ReportMetric(quantile(1, .5), "p50-ms")
	b.ReportMetric(quantile(1, .99), "p99-ms")
	b.ReportMetric(quantile(1, .5)/quantile(0, .5), "p50-wal/ratio")
	b.ReportMetric(quantile(1, .99)/quantile(0, .99), "p99-wal/ratio")
	b.ReportMetric(0, "ns/op")
}

// endToEnd returns how late each message was received, in milliseconds.
func endToEnd(b *testing.B, sender *load, receivers receiving, rate int, length time.Duration) (late []float64) {
	total := int(float64(rate) * length.Seconds())
	var mu sync.Mutex
	var got atomic.Int64
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	dueOf := make(map[string]time.Time, total)
	var wg sync.WaitGroup
	for _, c := range receivers {
		wg.Go(func() {
			for got.Load() < int64(total) && ctx.Err() == nil {
				_, err := receiveOnce(ctx, c, func(m *rmqpb.Message) {
					now := time.Now()
					mu.Lock()
					defer mu.Unlock()
					if due, ok := dueOf[m.GetSystemProperties().GetMessageId()]; ok {
						late = append(late, now.Sub(due).Seconds()*1000)
						got.Add(1)
					}
				})
				if err != nil {
					b.Error(err)
					cancel()
				}
			}
		})
	}
	due := make(chan *rmqpb.Message, total)
	for i := range sender.callers {
		wg.Go(func() {
			c := sender.clients[i%len(sender.clients)]
			for m := range due {
				r, err := c.SendMessage(identified(ctx), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
				if err != nil || r.Status.Code != rmqpb.Code_OK {
					b.Errorf("send: %v, %v", err, r.GetStatus())
					cancel()
				}
			}
		})
	}
	start := time.Now()
	for tick := range int(length / time.Millisecond) {
		at := start.Add(time.Duration(tick) * time.Millisecond)
		<-time.After(time.Until(at))
		for range rate / 1000 {
			m := oneMessage(sender.body)
			mu.Lock()
			dueOf[m.SystemProperties.MessageId] = at
			mu.Unlock()
			due <- m
		}
	}
	close(due)
	wg.Wait()
	return late
}
