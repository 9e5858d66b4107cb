package amqp

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

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
