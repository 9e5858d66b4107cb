// Package servertest has what the tests of transports on real servers share: a server that is killed
// under load, an authority of certificates, the tables of observed behaviour, and on Linux the
// benchmarks beside a bare client.
package servertest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// kills is the number of times that a server is killed, and between the number of messages that it
// accepts before each.
const (
	kills   = 2
	between = 500
)

// A Victim is a server with the transports to it. The caller closes them.
type Victim struct {
	Sender, Receiver transport.Transport
	Topic, Group     string // the group may begin at its first receive
	Kill             func() // as kill -9 does
	Restart          func(context.Context) error
}

// Losses count messages.
type Losses struct {
	Accepted int // all of them were received
	Extra    int // deliveries beyond the first
	InFlight int // attempts that ended with their connection
}

// Kill sends from 16 goroutines and consumes while it kills the server twice. No send fails for good,
// and every accepted message is received; otherwise the test fails.
func Kill(t *testing.T, s Victim) Losses {
	t.Helper()
	l := &ledger{accepted: map[string]bool{}, received: map[string]int{}, changed: make(chan struct{}, 1)}
	push := assert.Value(consumer.NewPush(s.Receiver, consumer.Subscription{Group: s.Group, Topic: s.Topic},
		func(_ context.Context, d *tidegate.Delivery) error {
			l.update(func() { l.received[d.ID]++ })
			return nil
		}, consumer.PushOptions{LongPolling: time.Second}))(t)
	ctx, stop := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() { consumed <- push.Run(ctx) }()
	defer func() {
		stop()
		assert.NoError(t, <-consumed, "Run")
	}()
	// Every kill can cost a message one of its three attempts. Times that a busy machine exceeds do
	// not count as failures.
	p := assert.Value(producer.New(s.Sender, producer.Options{
		AttemptTimeout: 30 * time.Second, MaxThrottles: producer.UntilContextEnds,
		OnAttempt: func(a producer.Attempt) {
			if e, ok := errors.AsType[*tidegate.Error](a.Err); ok && e.MaybeStored {
				l.update(func() { l.inFlight++ })
			}
		},
	}))(t)
	defer func() { assert.NoError(t, p.Close()) }()
	send := func(size int) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		r, err := p.Send(ctx, &tidegate.Message{Topic: s.Topic, Body: bytes.Repeat([]byte("x"), size)})
		return r.MessageID, err
	}
	// A server can discard messages before the group's first receive: they are not in the ledger.
	for begun := false; !begun; {
		assert.Must(t, assert.Err(send(1)))
		wait(t, 50*time.Millisecond)
		l.update(func() { begun = len(l.received) > 0 })
	}
	load, end := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer end()
	for range 16 {
		senders.Go(func() {
			for load.Err() == nil {
				id, err := send(500)
				if err != nil {
					t.Errorf("a send failed: %v", err)
					continue
				}
				l.update(func() { l.accepted[id] = true })
			}
		})
	}
	more := func() {
		t.Helper()
		goal := 0
		l.update(func() { goal = len(l.accepted) + between })
		l.await(t, "the server accepts messages", func() bool { return len(l.accepted) >= goal })
	}
	for range kills {
		more()
		s.Kill()
		assert.Must(t, s.Restart(t.Context()))
	}
	more()
	end()
	senders.Wait()
	l.await(t, "every accepted message is received", func() bool { return l.missing() == 0 })
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Losses{Accepted: len(l.accepted), InFlight: l.inFlight}
	for id := range l.accepted {
		r.Extra += l.received[id] - 1
	}
	assert.That(t, r.InFlight != 0, "no message was in flight when the server was killed: this run shows nothing")
	return r
}

// A ledger counts the messages of a test.
type ledger struct {
	mu       sync.Mutex
	accepted map[string]bool
	received map[string]int // deliveries
	inFlight int
	changed  chan struct{} // of one element: something was accepted or received
}

// update changes the ledger.
func (l *ledger) update(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// await waits until done returns true. Only the test's own deadline ends it earlier.
func (l *ledger) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for {
		l.mu.Lock()
		ok := done()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-l.changed:
		case <-time.After(2 * time.Minute):
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Fatalf("nothing has changed for 2 min: %s; %d of %d accepted messages are missing", what, l.missing(), len(l.accepted))
		}
	}
}

// missing returns the number of accepted messages that were not received. The lock is held.
func (l *ledger) missing() int {
	n := 0
	for id := range l.accepted {
		if l.received[id] == 0 {
			n++
		}
	}
	return n
}

func wait(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
