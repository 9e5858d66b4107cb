package serve

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

var killRounds = flag.Int("kill.rounds", 2, "how often the process is killed")

// A ledger has the responses that clients got.
type ledger struct {
	mu       sync.Mutex
	grown    sync.Cond // on mu; sent or acked has grown
	sent     map[string]bool
	attempts map[string]int          // the highest delivered to the group
	before   map[string]int          // likewise, when the process was last started
	seen     map[string]map[int]bool // every one delivered to the group
	acked    map[string]int          // by which attempt
}

func newLedger() *ledger {
	l := &ledger{
		sent: map[string]bool{}, attempts: map[string]int{}, before: map[string]int{},
		seen: map[string]map[int]bool{}, acked: map[string]int{},
	}
	l.grown.L = &l.mu
	return l
}

// kill -9 during sends, receives and acknowledgements, repeatedly on one directory. Each group
// receives every confirmed message once, and no acknowledged message again. Attempt numbers
// continue, except that the process may lose a first delivery.
func TestKilledProcessLosesNothing(t *testing.T) {
	dir := t.TempDir()
	l := newLedger()
	for round := range *killRounds {
		p := start(t, "--data", dir, "--topic", "orders", "--min-invisible-duration", "0", "--min-long-polling", "0")
		ctx, stop := context.WithCancel(t.Context())
		c := dial(t, p)
		var wg sync.WaitGroup
		for s := range 4 {
			wg.Go(func() { l.send(ctx, c, fmt.Sprintf("%d-%d", round, s)) })
		}
		for range 2 {
			wg.Go(func() { l.consume(t, ctx, c) })
		}
		l.awaitMore(20+rand.IntN(180), 1+rand.IntN(20))
		p.kill()
		stop()
		wg.Wait()
		c.Close()
		l.killed()
	}
	p := start(t, "--data", dir, "--min-invisible-duration", "0", "--min-long-polling", "0")
	c := dial(t, p)
	defer c.Close()

	// A new group receives every confirmed message once.
	seen := map[string]int{}
	for {
		ds := l.receive(t, t.Context(), c, "auditor", time.Hour)
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			seen[d.ID]++
		}
	}
	for id := range l.sent {
		assert.That(t, seen[id] == 1, "%s was confirmed, and a new group received it %d times", id, seen[id])
	}
	// The first group receives the rest, with attempt numbers that continue.
	rest := 0
	for {
		ds := l.receive(t, t.Context(), c, "workers", time.Hour)
		if len(ds) == 0 {
			break
		}
		rest += len(ds)
		for _, d := range ds {
			l.check(t, d)
		}
	}
	for id := range l.sent {
		assert.That(t, l.attempts[id] != 0, "%s was confirmed, but the group never received it", id)
	}
	t.Logf("%d kills: %d messages sent, %d acknowledged, %d left for the group", *killRounds, len(l.sent), len(l.acked), rest)
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
}

func dial(t *testing.T, p *process) *rocketmq.Client {
	t.Helper()
	c := assert.Value(rocketmq.New(p.grpc, rocketmq.Options{}))(t)
	return c
}

// awaitMore waits until the given numbers of further messages were sent and acknowledged.
func (l *ledger) awaitMore(sent, acked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sent, acked = sent+len(l.sent), acked+len(l.acked); len(l.sent) < sent || len(l.acked) < acked; {
		l.grown.Wait()
	}
}

func (l *ledger) send(ctx context.Context, c *rocketmq.Client, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s-%d", name, i)
		r := c.Send(ctx, []*tidegate.Message{{ID: id, Topic: "orders", Body: []byte(id)}})[0]
		if r.Err != nil {
			continue
		}
		l.mu.Lock()
		l.sent[id] = true
		l.grown.Broadcast()
		l.mu.Unlock()
	}
}

// consume acknowledges half of its messages. The leases of the others time out.
func (l *ledger) consume(t *testing.T, ctx context.Context, c *rocketmq.Client) {
	for ctx.Err() == nil {
		for _, d := range l.receive(t, ctx, c, "workers", 100*time.Millisecond) {
			l.check(t, d)
			if rand.IntN(2) == 0 {
				continue
			}
			// An acknowledgement without a response may have worked. One with a response must have
			// worked.
			if err := c.Ack(ctx, []*tidegate.Delivery{d})[0]; err == nil {
				l.mu.Lock()
				l.acked[d.ID] = d.Attempt
				l.grown.Broadcast()
				l.mu.Unlock()
			}
		}
	}
}

func (l *ledger) receive(t *testing.T, ctx context.Context, c *rocketmq.Client, group string, invisible time.Duration) []*tidegate.Delivery {
	ds, err := c.Receive(ctx, transport.ReceiveRequest{
		Group: group, Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: invisible, Wait: 500 * time.Millisecond,
	})
	assert.That(t, err == nil || ctx.Err() != nil || group != "auditor", "receive: %v", err)
	return ds
}

// killed notes the attempts at the end of a process. A first delivery is not on disk at once, so a
// message that was delivered once and not acknowledged may be redelivered as attempt 1.
func (l *ledger) killed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = maps.Clone(l.attempts)
	for id, attempt := range l.attempts {
		if attempt == 1 && l.acked[id] == 0 {
			delete(l.before, id)
			delete(l.seen, id)
		}
	}
}

// check compares a delivery with the earlier responses.
func (l *ledger) check(t *testing.T, d *tidegate.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Two consumers can get here in another order than the broker delivered.
	if by := l.acked[d.ID]; by > 0 && d.Attempt > by {
		t.Errorf("%s was acknowledged in attempt %d, and came again with attempt %d", d.ID, by, d.Attempt)
	}
	assert.That(t, d.Attempt > l.before[d.ID] && !l.seen[d.ID][d.Attempt], "%s came with attempt %d after attempt %d", d.ID, d.Attempt, l.attempts[d.ID])
	if l.seen[d.ID] == nil {
		l.seen[d.ID] = map[int]bool{}
	}
	l.seen[d.ID][d.Attempt] = true
	l.attempts[d.ID] = max(l.attempts[d.ID], d.Attempt)
	assert.That(t, string(d.Body) == d.ID, "the body of %s is %q", d.ID, d.Body)
}
