package deadletter

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Queue is the dead letters of a group that are received from %DLQ%group, as on a RocketMQ. The
// letters are leased to the consumer group As while a listing or a redrive runs. Those that stay
// are released at its end, which on a RocketMQ spends one of the attempts that As has for each. So
// As is a group for this purpose alone, and has many attempts.
type Queue struct {
	Transport interface {
		transport.Receiver
		transport.Settler
		Queues(ctx context.Context, group, topic string) ([]int, error)
	}
	Group string // whose dead letters they are
	As    string // the consumer group that receives them

	// Lease is how long a letter is kept from other consumers of As. After a crash the letters
	// come again when their leases have ended, on a tidegate broker after As's retry delay in
	// addition. Default: 30 minutes.
	Lease time.Duration

	// Wait is how long to wait for the next letter before a queue counts as empty. Default: 5 s.
	Wait time.Duration
}

const (
	defaultLease = 30 * time.Minute
	defaultWait  = 5 * time.Second
	maxReceive   = 32
	giveUpAfter  = 3 * time.Second // for the release of each letter
)

func (q Queue) group() string { return q.Group }

func (q Queue) lease() time.Duration {
	if q.Lease == 0 {
		return defaultLease
	}
	return q.Lease
}

func (q Queue) letters(ctx context.Context, _ *Filter, _ query) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		held := map[string]*Letter{}
		defer func() { q.release(ctx, held) }()
		topic := tidegate.DeadLetterTopic(q.Group)
		queues, err := q.Transport.Queues(ctx, q.As, topic)
		if errors.Is(err, tidegate.ErrTopicNotFound) {
			return // the group never had a dead letter
		}
		if err != nil {
			yield(nil, err)
			return
		}
		r := transport.ReceiveRequest{Group: q.As, Topic: topic, Push: true, Max: maxReceive, InvisibleDuration: q.lease(), Wait: q.Wait}
		if r.Wait == 0 {
			r.Wait = defaultWait
		}
		for _, r.Queue = range queues {
			for fresh := true; fresh; {
				ds, err := q.Transport.Receive(ctx, r)
				if err != nil {
					yield(nil, err)
					return
				}
				fresh = false // a queue that brings only letters of this run was read to its end
				var more []*Letter
				for _, d := range ds {
					before := held[d.ID]
					held[d.ID] = letterOf(d)
					if before == nil {
						fresh, more = true, append(more, held[d.ID])
					}
				}
				for _, l := range more {
					if !yield(l, nil) {
						return
					}
				}
			}
		}
	}
}

func letterOf(d *tidegate.Delivery) *Letter {
	l := &Letter{Message: d.Message, StoredAt: d.StoredAt, BodySize: len(d.Body), delivery: d}
	l.Origin, _ = d.DeadLetter()
	l.Origin.Redrives = generationOf(d.Properties)
	return l
}

// release gives back the letters that were not removed. One whose release fails is visible again
// after its lease.
func (q Queue) release(ctx context.Context, held map[string]*Letter) {
	for _, l := range held {
		if l.delivery == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpAfter)
		_, err := q.Transport.ChangeInvisibleDuration(ctx, l.delivery, 0)
		cancel()
		if errors.Is(err, tidegate.ErrUnavailable) {
			return // the others would wait for as long
		}
	}
}

func (q Queue) remove(ctx context.Context, l *Letter) error {
	err := errors.Join(q.Transport.Ack(ctx, []*tidegate.Delivery{l.delivery})...)
	if err == nil {
		l.delivery = nil
	}
	return err
}
