package amqp

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
)

// A gated connection writes nothing before its gate is closed, if it has one.
type gated struct {
	net.Conn
	gate *atomic.Pointer[chan struct{}]
}

func (g *gated) Write(b []byte) (int, error) {
	if gate := g.gate.Load(); gate != nil {
		<-*gate
	}
	return g.Conn.Write(b)
}

// An acknowledgement without an error was written to the connection.
func TestAckIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(int, byte) amqppeer.Reaction { return amqppeer.Responds }}
		var gate atomic.Pointer[chan struct{}]
		c, err := New("orders.example:5672", Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := p.Dial(ctx, addr)
			return &gated{conn, &gate}, err
		}})
		assert.Must(t, err)
		defer c.Close()
		ds := delivered(t, c)
		synctest.Wait() // all frames so far are written
		open := make(chan struct{})
		gate.Store(&open)
		acked := make(chan []error, 1)
		go func() { acked <- c.Ack(t.Context(), ds) }()
		select {
		case errs := <-acked:
			t.Errorf("Ack returned %v before its frame was written", errs)
			close(open)
			return
		case <-time.After(time.Second):
		}
		close(open)
		if errs := <-acked; errs[0] != nil {
			t.Errorf("Ack: %v", errs[0])
		}
	})
}
