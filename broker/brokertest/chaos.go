package brokertest

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Chaos has the probabilities of the disturbances of a [ChaosClient]. Every disturbance is
// permitted by at-least-once delivery, so a correct handler withstands it. The zero value disturbs
// nothing.
type Chaos struct {
	// Seed chooses the disturbances. They depend on the seed, the consumer group, and the topic,
	// queue and offset of the message, so a run with the same messages repeats them. Zero is a
	// valid seed.
	Seed uint64

	// Duplicate is the probability, from 0 to 1, that the acknowledgement of a message is lost: the
	// acknowledgement returns no error, and the broker delivers the message again. This happens at
	// most once for each message. Zero means never.
	Duplicate float64

	// Late is the probability, from 0 to 1, that a delivery is postponed by up to Lateness, without
	// counting an attempt. Its message group waits for it. Zero means never.
	Late float64

	// Lateness is the maximum delay of a late delivery. Default: 1 minute.
	Lateness time.Duration

	// Reorder is the probability, from 0 to 1, that the messages of one receive arrive in random
	// order. Messages of one message group keep their order. Zero means never.
	Reorder float64
}

// A ChaosClient is a transport that disturbs deliveries, to show that a handler withstands
// duplicates, late messages and changes of order. Create one with [Broker.ChaosClient]. Its methods
// may be called by several goroutines.
type ChaosClient struct {
	*rocketmq.Client
	chaos Chaos

	mu    sync.Mutex
	draws map[string]uint64 // guarded by mu; how often chance decided about each message
}

// ChaosClient returns a transport to the broker that disturbs deliveries. It ends with the test. It
// fails the test if c has a probability outside of 0 to 1 or a negative Lateness.
func (b *Broker) ChaosClient(c Chaos) *ChaosClient {
	b.tb.Helper()
	for _, p := range []struct {
		name  string
		value float64
	}{{"Duplicate", c.Duplicate}, {"Late", c.Late}, {"Reorder", c.Reorder}} {
		if !(p.value >= 0 && p.value <= 1) {
			b.tb.Fatalf("brokertest: Chaos.%s is %v; give a probability of 0 to 1", p.name, p.value)
		}
	}
	if c.Lateness < 0 {
		b.tb.Fatalf("brokertest: Chaos.Lateness is %v; it must not be negative", c.Lateness)
	}
	if c.Lateness == 0 {
		c.Lateness = time.Minute
	}
	return &ChaosClient{Client: b.Client(), chaos: c, draws: map[string]uint64{}}
}

// Receive receives as the embedded client does, and then postpones and reorders some of the
// deliveries.
func (c *ChaosClient) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	if err == nil && !r.Repeat {
		ds = c.postpone(ctx, ds)
	}
	return ds, err
}

// ReceiveOrWatch disturbs deliveries as Receive does.
func (c *ChaosClient) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	ds, ready, err = c.Client.ReceiveOrWatch(ctx, r)
	if err == nil && !r.Repeat {
		ds = c.postpone(ctx, ds)
	}
	return ds, ready, err
}

// postpone postpones and reorders some of the deliveries, and returns the others.
func (c *ChaosClient) postpone(ctx context.Context, ds []*tidegate.Delivery) []*tidegate.Delivery {
	delays, shuffled := c.disturb(ds)
	var undelayed []*tidegate.Delivery
	for i, d := range shuffled {
		if delays[i] == 0 {
			undelayed = append(undelayed, d)
		} else if _, err := c.Client.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: delays[i]}); err != nil {
			undelayed = append(undelayed, d) // it stays on time
		}
	}
	return undelayed
}

// disturb returns the deliveries in their new order, and the delay of each; 0 for none.
func (c *ChaosClient) disturb(ds []*tidegate.Delivery) ([]time.Duration, []*tidegate.Delivery) {
	if len(ds) > 1 {
		if r, _ := c.draw("reorder", ds[0]); r.Float64() < c.chaos.Reorder {
			ds = reorder(ds, r)
		}
	}
	delays := make([]time.Duration, len(ds))
	for i, d := range ds {
		if r, _ := c.draw("late", d); r.Float64() < c.chaos.Late {
			delays[i] = 1 + time.Duration(r.Int64N(int64(c.chaos.Lateness)))
		}
	}
	return delays, ds
}

// draw returns the random numbers for a decision about the message of d, and the
// number of such decisions before.
func (c *ChaosClient) draw(about string, d *tidegate.Delivery) (r *rand.Rand, before uint64) {
	key := fmt.Sprintf("%s %q %q %d %d", about, d.ConsumerGroup, d.Topic, d.Queue, d.Offset)
	c.mu.Lock()
	before = c.draws[key]
	c.draws[key]++
	c.mu.Unlock()
	h := fnv.New64a()
	h.Write([]byte(key))
	return rand.New(rand.NewPCG(c.chaos.Seed, h.Sum64()+before)), before
}

// reorder returns ds in random order, in which the messages of a message group keep theirs.
func reorder(ds []*tidegate.Delivery, r *rand.Rand) []*tidegate.Delivery {
	groups := map[string][]*tidegate.Delivery{}
	key := func(d *tidegate.Delivery) string {
		if d.MessageGroup == "" {
			return fmt.Sprintf("%p", d)
		}
		return "group " + d.MessageGroup
	}
	for _, d := range ds {
		groups[key(d)] = append(groups[key(d)], d)
	}
	out := make([]*tidegate.Delivery, 0, len(ds))
	for _, i := range r.Perm(len(ds)) {
		k := key(ds[i])
		out = append(out, groups[k][0])
		groups[k] = groups[k][1:]
	}
	return out
}

// Ack acknowledges as the embedded client does, except for the messages to be duplicated: it
// releases these and returns no error for them.
func (c *ChaosClient) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	var rest []*tidegate.Delivery
	var at []int
	for i, d := range ds {
		if c.duplicate(d) {
			_, errs[i] = c.Client.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		} else {
			rest, at = append(rest, d), append(at, i)
		}
	}
	if len(rest) > 0 {
		for j, err := range c.Client.Ack(ctx, rest) {
			errs[at[j]] = err
		}
	}
	return errs
}

// duplicate decides whether the message of d is to be delivered once more.
func (c *ChaosClient) duplicate(d *tidegate.Delivery) bool {
	r, before := c.draw("duplicate", d)
	return before == 0 && r.Float64() < c.chaos.Duplicate
}
