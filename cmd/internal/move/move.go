// Package move carries the backlog of a consumer group in a topic from one server to another. It
// receives a message, sends it to the target, records that in a journal, and acknowledges the
// message at the source. A message is carried at least once, with its ID, and the messages of a
// message group keep their order.
package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A Source is the server that has the messages.
type Source interface {
	transport.Receiver
	Ack(ctx context.Context, ds []*tidegate.Delivery) []error
}

// A Target sends messages; a producer.Producer is one.
type Target interface {
	SendAsync(ctx context.Context, m *tidegate.Message, done func(tidegate.Receipt, error)) error
}

// Options are the settings of a run.
type Options struct {
	Source  Source
	Target  Target
	Group   string
	Topic   string // of the source
	ToTopic string
	Delay   bool // the target topic has type DELAY: each message needs a time
	Workers int
	Lease   time.Duration // of a received message; each has to be sent within it
	Wait    time.Duration // the longest time of one receive without a message
	Journal *Journal

	// Pace waits before n messages are sent. Nil means no wait.
	Pace func(ctx context.Context, n int) error

	// Done reports whether the source has no further message. Run calls it after receives without a
	// message, and ends when it returns true.
	Done func(ctx context.Context, idle time.Duration) (bool, error)

	// OnMoved is called for each acknowledged message by one goroutine at a time.
	OnMoved func()
}

// A Report counts the messages of a run.
type Report struct {
	Moved    int64 `json:"moved"`
	Earlier  int64 `json:"sent_by_an_earlier_run"` // and acknowledged by this one
	Attempts int64 `json:"lost_attempts"`          // messages with failed attempts, which begin with 1 again
	Unacked  int64 `json:"unacknowledged"`         // sent, and delivered by the source again
}

// A mover is one run. Its workers share it; mu guards the fields below it.
type mover struct {
	Options
	mu     sync.Mutex
	report Report
	last   time.Time // of the last message
}

// Run moves messages until Done returns true, ctx ends, or an error. After the end of ctx it waits
// for the receives under way, Wait at most, and finishes the messages in hand.
func Run(ctx context.Context, o Options) (Report, error) {
	m := &mover{Options: o, last: time.Now()}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() {
			if err := m.work(ctx); err != nil {
				stop(err)
			}
		})
	}
	workers.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, errDone) {
		err = nil
	}
	return m.report, err
}

// errDone ends the other workers when the source is empty.
var errDone = errors.New("the source has no further message")

func (m *mover) work(ctx context.Context) error {
	for ctx.Err() == nil {
		// The end of ctx does not end a receive: messages on their way would stay leased, and the
		// next run would wait for them.
		ds, err := m.Source.Receive(context.WithoutCancel(ctx), transport.ReceiveRequest{
			Group: m.Group, Topic: m.Topic, Queue: transport.AnyQueue, Max: 32, InvisibleDuration: m.Lease, Wait: m.Wait,
		})
		if err != nil {
			return err
		}
		if len(ds) > 0 {
			if err := m.carry(context.WithoutCancel(ctx), ds); err != nil {
				return err
			}
			continue
		}
		m.mu.Lock()
		idle := time.Since(m.last)
		m.mu.Unlock()
		done, err := m.Done(ctx, idle)
		if err != nil {
			return err
		}
		if done {
			return errDone
		}
	}
	return nil
}

// carry sends deliveries, records them and acknowledges them. Messages of one message group are
// sent one after the other, and none after one that failed.
func (m *mover) carry(ctx context.Context, ds []*tidegate.Delivery) error {
	// A message that is sent after the end of its lease could pass one that was delivered again.
	until := time.Now().Add(m.Lease)
	for _, d := range ds {
		if !d.InvisibleUntil.IsZero() && d.InvisibleUntil.Before(until) {
			until = d.InvisibleUntil
		}
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until.Add(-m.Lease/6), fmt.Errorf("the target did not accept the messages within the lease of %v: %w", m.Lease, context.DeadlineExceeded))
	defer cancel()
	sent := make([]bool, len(ds))
	var failed error
	var chains sync.WaitGroup
	var mu sync.Mutex // guards failed
	for _, chain := range chainsOf(ds) {
		chains.Go(func() {
			for _, i := range chain {
				if m.Journal.Sent(ds[i].ID) {
					sent[i] = true
					continue
				}
				if err := m.send(ctx, ds[i]); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				sent[i] = true
			}
		})
	}
	chains.Wait()
	var carried []*tidegate.Delivery
	for i, ok := range sent {
		if ok {
			carried = append(carried, ds[i])
		}
	}
	return errors.Join(m.settle(ctx, carried), firstLine(failed))
}

// firstLine keeps the first of many errors, which usually have the same cause.
func firstLine(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return firstLine(joined.Unwrap()[0])
	}
	return err
}

// chainsOf returns the indexes of deliveries: one list for each message group in the order of the
// deliveries, and one for each message without a group.
func chainsOf(ds []*tidegate.Delivery) [][]int {
	var chains [][]int
	at := map[string]int{}
	for i, d := range ds {
		n, ok := at[d.MessageGroup]
		if d.MessageGroup == "" || !ok {
			at[d.MessageGroup] = len(chains)
			chains = append(chains, []int{i})
			continue
		}
		chains[n] = append(chains[n], i)
	}
	return chains
}

// Message returns the message that the target gets: with the same ID, which is a key too, and the
// delivery time of a delayed message.
//
// A message that has its ID as a key already was moved before, perhaps from this target. A tidegate
// broker that stored the ID minutes ago would treat the message as a duplicate and drop it. Such a
// message gets a new ID and keeps its key.
func Message(d *tidegate.Delivery, topic string, delay bool) *tidegate.Message {
	out := d.Forward(topic)
	if out.ID = d.ID; slices.Contains(out.Keys, d.ID) {
		out.ID = tidegate.NewMessageID()
	} else {
		out.Keys = append(slices.Clone(out.Keys), d.ID)
	}
	if delay {
		if out.DeliverAt = d.DeliverAt; out.DeliverAt.IsZero() {
			out.DeliverAt = d.StoredAt // a time in the past means now
		}
	}
	return out
}

func (m *mover) send(ctx context.Context, d *tidegate.Delivery) error {
	if m.Pace != nil {
		if err := m.Pace(ctx, 1); err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	err := m.Target.SendAsync(ctx, Message(d, m.ToTopic, m.Delay), func(_ tidegate.Receipt, err error) { result <- err })
	if err == nil {
		err = <-result
	}
	if err != nil {
		return fmt.Errorf("message %s: %w", d.ID, err)
	}
	return nil
}

// settle records sent messages and acknowledges them. A message whose acknowledgement fails is
// delivered again by the source; the journal then keeps it from a second send.
func (m *mover) settle(ctx context.Context, ds []*tidegate.Delivery) error {
	if len(ds) == 0 {
		return nil
	}
	earlier := 0
	var fresh []string
	for _, d := range ds {
		if m.Journal.Sent(d.ID) {
			earlier++
		} else {
			fresh = append(fresh, d.ID)
		}
	}
	if err := m.Journal.record(sentEvent, fresh, true); err != nil {
		return err
	}
	var acked []string
	for i, err := range m.Source.Ack(ctx, ds) {
		if err == nil {
			acked = append(acked, ds[i].ID)
		}
	}
	err := m.Journal.record(ackedEvent, acked, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	m.report.Moved += int64(len(fresh))
	m.report.Earlier += int64(earlier)
	m.report.Unacked += int64(len(ds) - len(acked))
	for _, d := range ds {
		if d.Attempt > 1 {
			m.report.Attempts++
		}
		if m.OnMoved != nil {
			m.OnMoved()
		}
	}
	return err
}

var _ Target = (*producer.Producer)(nil)
