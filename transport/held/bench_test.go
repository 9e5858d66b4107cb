package held_test

import (
	"context"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// A pump is a system that pushes the messages it was asked for from a goroutine.
type pump struct {
	feed    *held.Feed
	granted chan int
}

func (p *pump) Open(_ context.Context, f *held.Feed) (held.Link, error) {
	p.feed, p.granted = f, make(chan int, 1000)
	go p.push()
	return p, nil
}

func (p *pump) push() {
	for n := range p.granted {
		for range n {
			p.feed.Deliver(newDelivery(), nil)
		}
	}
}

func newDelivery() *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{ID: "id", Topic: "orders", Body: make([]byte, 1024)}, Attempt: 1}
}

func (p *pump) Grant(n int)                                     { p.granted <- n }
func (*pump) Settle(context.Context, []held.Settlement) []error { return nil }
func (p *pump) Close()                                          { close(p.granted) }

func newPump(b *testing.B) *held.Table {
	b.Helper()
	t := held.New(&pump{}, held.Options{})
	b.Cleanup(func() { t.Close() })
	return t
}

// BenchmarkReceive measures one message, with receives and acknowledgements of up to 32 messages.
func BenchmarkReceive(b *testing.B) {
	t := newPump(b)
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 32, InvisibleDuration: time.Minute, Wait: time.Minute}
	b.ReportAllocs()
	for n := 0; n < b.N; {
		ds, err := t.Receive(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		t.Ack(b.Context(), ds)
	}
}

// BenchmarkReceiveOne measures receives and acknowledgements of one message.
func BenchmarkReceiveOne(b *testing.B) {
	t := newPump(b)
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 1, InvisibleDuration: time.Minute, Wait: time.Minute}
	b.ReportAllocs()
	for b.Loop() {
		ds, err := t.Receive(b.Context(), r)
		if err != nil || len(ds) != 1 {
			b.Fatal(len(ds), err)
		}
		t.Ack(b.Context(), ds)
	}
}

// BenchmarkChannel measures a message through a plain channel, which BenchmarkReceive is compared
// with.
func BenchmarkChannel(b *testing.B) {
	c := make(chan *tidegate.Delivery, 32)
	go func() {
		for range b.N {
			c <- newDelivery()
		}
		close(c)
	}()
	b.ReportAllocs()
	for range c {
	}
}

// BenchmarkRenew measures the change of a lease among 1000 others.
func BenchmarkRenew(b *testing.B) {
	t := newPump(b)
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 32, InvisibleDuration: time.Hour, Wait: time.Minute}
	var d *tidegate.Delivery
	for n := 0; n < 1000; {
		ds, err := t.Receive(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		d = ds[0]
	}
	b.ReportAllocs()
	for b.Loop() {
		h, err := t.Extend(b.Context(), d, time.Hour, false)
		if err != nil {
			b.Fatal(err)
		}
		d.Handle = h
	}
}
