package amqp

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The version of go-amqp in go.mod has the field that deliveryID reads.
func TestDeliveryID(t *testing.T) {
	assert.That(t, deliveryIDs,
		"an amqp.Message has no field deliveryID of type uint32: each acknowledgement gets a frame of its own")
}

// Acknowledgements of adjacent messages share a frame, and end these messages only. Without the IDs
// of the deliveries each has a frame of its own.
func TestAcknowledgementsShareFrames(t *testing.T) {
	for _, ids := range []bool{true, false} {
		t.Run(fmt.Sprint("ids=", ids), func(t *testing.T) {
			defer func(was bool) { deliveryIDs = was }(deliveryIDs)
			deliveryIDs = ids
			synctest.Test(t, func(t *testing.T) { acknowledge(t, ids) })
		})
	}
}

func acknowledge(t *testing.T, ids bool) {
	t.Helper()
	var frames atomic.Int64
	p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
		if frame == amqppeer.Disposition {
			frames.Add(1)
		}
		return amqppeer.Responds
	}}
	c := clientOf(t, p)
	request := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 100, InvisibleDuration: time.Minute, Wait: time.Second,
	}
	receive := func() []*tidegate.Delivery {
		return assert.Value(c.Receive(t.Context(), request))(t)
	}
	receive() // creates the queue
	for i := range 50 {
		m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
	}
	ds := receive()
	assert.MustEqual(t, "received messages", len(ds), 50)
	kept := ds[20]
	rest := append(append([]*tidegate.Delivery{}, ds[:20]...), ds[21:]...)
	for i, err := range c.Ack(t.Context(), rest) {
		if err != nil {
			t.Errorf("the acknowledgement of %s: %v", rest[i].ID, err)
		}
	}
	synctest.Wait()
	want := int64(2)
	if !ids {
		want = 49
	}
	assert.Equal(t, "frames for the acknowledgements of 0 to 19 and 21 to 49", frames.Load(), want)
	assert.NoError(t, assert.Err(c.Settle(t.Context(), kept, transport.Verdict{Kind: transport.Retry, Reason: "again"})))
	if ds := receive(); len(ds) != 1 || ds[0].ID != kept.ID {
		t.Errorf("received %d messages after the acknowledgements and a retry, want message %s only", len(ds), kept.ID)
	}
}

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

// A lost connection costs a message at most one attempt, and none if the message was not written:
// the next attempt waits for another connection.
func TestLostConnectionCostsOneAttempt(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame byte
		cost  int // counted attempts for each lost connection
	}{
		{"before the connection is open", amqppeer.Open, 0},
		{"before the session is open", amqppeer.Begin, 0},
		{"before the link is open", amqppeer.Attach, 0},
		{"after the transfer", amqppeer.Transfer, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, down := range []int{0, 3} {
				synctest.Test(t, func(t *testing.T) { lose(t, c.frame, c.cost, down) })
			}
		})
	}
}

// lose sends messages to a peer that breaks two connections, and refuses others after each.
func lose(t *testing.T, at byte, cost, down int) {
	const losses = 2
	var p *amqppeer.Peer
	p = &amqppeer.Peer{Script: func(n int, frame byte) amqppeer.Reaction {
		if n > losses || frame != at {
			return amqppeer.Responds
		}
		p.RefuseNext(down)
		return amqppeer.Cuts
	}}
	c := clientOf(t, p)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
			counted := 0
			for start := time.Now(); ; {
				err := c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{m})[0].Err
				if err == nil {
					break
				}
				e, ok := err.(*tidegate.Error)
				if !ok || tidegate.Classify(err) != tidegate.ClassTransient || e.NotConnected == e.MaybeStored {
					t.Errorf("got %#v, want a transient error with either NotConnected or MaybeStored", err)
					return
				}
				if !e.NotConnected {
					counted++
				}
				if time.Since(start) > time.Minute {
					t.Errorf("the message is not stored after a minute: %v", err)
					return
				}
			}
			assert.That(t, counted <= cost*losses, "%d counted attempts failed, want at most %d", counted, cost*losses)
		})
	}
	wg.Wait()
}

// The first error of a connection ends it, although a write hangs: no later message gets it.
func TestFirstErrorEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(n int, frame byte) amqppeer.Reaction {
			if n == 1 && frame == amqppeer.Transfer {
				return amqppeer.Hangs
			}
			return amqppeer.Responds
		}}
		c := assert.Value(New("orders.example:5672", Options{Dialer: p.Dial, IdleTimeout: 20 * time.Second, RequestTimeout: time.Hour}))(t)
		defer c.Close()
		send := func() *tidegate.Error {
			m := &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: []byte("x")}
			e, _ := c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{m})[0].Err.(*tidegate.Error)
			return e
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 { // the peer reads the first, and the write of the second hangs
			wg.Go(func() {
				e := send()
				if e == nil || !e.MaybeStored || time.Since(start) > 20*time.Second {
					t.Errorf("after %v: %v, want an error with MaybeStored after IdleTimeout", time.Since(start), e)
				} else if !strings.Contains(e.Error(), "read pipe: i/o timeout") { // not the write that this ended
					t.Errorf("got %v, want the timeout of the read", e)
				}
			})
			synctest.Wait()
		}
		time.Sleep(20*time.Second + time.Millisecond)
		if e := send(); e != nil || time.Since(start) > 21*time.Second {
			t.Errorf("after %v: %v, want success on the next connection", time.Since(start), e)
		}
		wg.Wait()
	})
}
