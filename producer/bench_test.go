package producer_test

import (
	"context"
	"sync"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// instant is a transport that costs nothing: the benchmarks show the producer itself.
type instant struct{ most int }

func (instant) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return make([]transport.SendResult, len(msgs))
}

func (instant) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func (i instant) Lane(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{Endpoint: "a:1", MaxMessages: i.most, MaxBytes: 4 << 20}, nil
}

func (instant) SendLane(_ context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return make([]transport.SendResult, len(msgs))
}

func benchmarkEach(b *testing.B, run func(b *testing.B, p *producer.Producer)) {
	b.Helper()
	for name, t := range map[string]producer.Transport{
		"no-lanes": struct{ producer.Transport }{instant{}}, "single": instant{1}, "shared": instant{1000},
	} {
		b.Run(name, func(b *testing.B) {
			p := assert.Value(producer.New(t, producer.Options{}))(b)
			defer p.Close()
			b.ReportAllocs()
			run(b, p)
		})
	}
}

func benchMessage() *tidegate.Message {
	return &tidegate.Message{ID: "id", Topic: "orders", Body: make([]byte, 1024)}
}

func BenchmarkSend(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, p *producer.Producer) {
		msg := benchMessage()
		for b.Loop() {
			_, err := p.Send(b.Context(), msg)
			assert.MustThat(b, err == nil, "%v", err)
		}
	})
}

func BenchmarkSendParallel(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, p *producer.Producer) {
		msg := benchMessage()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := p.Send(b.Context(), msg); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkSendAsync(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, p *producer.Producer) {
		msg := benchMessage()
		var wg sync.WaitGroup
		for b.Loop() {
			wg.Add(1)
			assert.Must(b, p.SendAsync(b.Context(), msg, func(_ tidegate.Receipt, err error) {
				assert.NoError(b, err)
				wg.Done()
			}))
		}
		wg.Wait()
	})
}

func BenchmarkSendBatch(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, p *producer.Producer) {
		msgs := make([]*tidegate.Message, 64)
		for i := range msgs {
			msgs[i] = benchMessage()
		}
		for b.Loop() {
			for _, r := range p.SendBatch(b.Context(), msgs) {
				assert.MustThat(b, r.Err == nil, "%v", r.Err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(msgs)), "ns/message")
	})
}
