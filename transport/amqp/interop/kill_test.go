package interop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// kills is the number of times that the server is killed, and between the number of messages that
// it accepts before each.
const (
	kills   = 2
	between = 500
)

// A ledger of a server that is killed under load, with and without journal-datasync: no send fails,
// and every accepted message is received. An acknowledgement has no response, so messages can be
// redelivered.
func TestKilledServerLosesNoAcceptedMessage(t *testing.T) {
	for _, datasync := range []string{"true", "false"} {
		t.Run("datasync "+datasync, func(t *testing.T) { killUnderLoad(t, datasync) })
	}
}

// A ledger counts the messages of a test.
type ledger struct {
	mu       sync.Mutex
	accepted map[string]bool
	received map[string]int // deliveries
	lost     int            // attempts that ended with their connection
	changed  chan struct{}  // of one element: something was accepted or received
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
			t.Fatalf("nothing has changed for 2 min: %s", what)
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

func killUnderLoad(t *testing.T, datasync string) {
	s := start(t, artemis.Options{Properties: map[string]string{
		"journalDatasync": datasync, `addressSettings."#".autoCreateAddresses`: "true",
	}})
	l := &ledger{accepted: map[string]bool{}, received: map[string]int{}, changed: make(chan struct{}, 1)}
	consume(t, clientOf(t, s.Address()), consumer.Subscription{Group: "billing", Topic: "orders"},
		func(_ context.Context, d *tidegate.Delivery) error {
			l.update(func() { l.received[d.ID]++ })
			return nil
		}, consumer.PushOptions{})
	// Every kill can cost a message one of its three attempts. Times that a busy machine exceeds do
	// not count as failures.
	p := sends(t, client(t, s.Address(), amqp.Options{}), producer.Options{
		AttemptTimeout: 30 * time.Second, MaxThrottles: producer.UntilContextEnds,
		OnAttempt: func(a producer.Attempt) {
			if e, ok := errors.AsType[*tidegate.Error](a.Err); ok && e.MaybeStored {
				l.update(func() { l.lost++ })
			}
		},
	})
	send := func(m *tidegate.Message) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		_, err := p.Send(ctx, m)
		return err
	}
	// Artemis discards messages before the group's first receive, which creates its queue: they are
	// not in the ledger.
	for begun := false; !begun; {
		assert.Must(t, send(message("orders", 1)))
		wait(t, 50*time.Millisecond)
		l.update(func() { begun = len(l.received) > 0 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				m := message("orders", 500)
				if err := send(m); err != nil {
					t.Errorf("a send failed: %v", err)
					continue
				}
				l.update(func() { l.accepted[m.ID] = true })
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
	cancel()
	wg.Wait()
	l.await(t, "every accepted message is received", func() bool { return l.missing() == 0 })
	l.mu.Lock()
	defer l.mu.Unlock()
	extra := 0
	for id := range l.accepted {
		extra += l.received[id] - 1
	}
	t.Logf("journal-datasync %s: %d messages accepted and received, %d extra deliveries; %d attempts ended with their connection",
		datasync, len(l.accepted), extra, l.lost)
	assert.That(t, l.lost != 0, "no message was in flight when the server was killed: this run shows nothing")
}
