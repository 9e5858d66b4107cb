package producer

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

type null struct{ results []transport.SendResult }

func (n null) Send(context.Context, []*tidegate.Message) []transport.SendResult { return n.results }

func (null) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

// What the producer itself costs: the transport does nothing.
func BenchmarkSend(b *testing.B) {
	p, err := New(null{make([]transport.SendResult, 1)}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	msg := &tidegate.Message{ID: "id", Topic: "orders", Body: make([]byte, 1024)}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Send(b.Context(), msg); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
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
