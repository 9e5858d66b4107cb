package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Queue is the dead letters of a group that are received from %DLQ%group, as on a RocketMQ. The
// letters are leased to the consumer group As while a listing or a redrive runs. Those that stay
// are released at its end.
//
// On a RocketMQ a letter goes on with the number of attempts that it had in Group, and each release
// spends one more. A letter that reaches the maximum of As moves to %DLQ%As. So As must be a group
// for this purpose alone that allows at least 100 attempts (mqadmin updateSubGroup -g As -r 1000);
// with fewer, listings and redrives fail before they receive. If a letter is in its last attempt of
// As, they end with an error after all letters.
//
// A group without %DLQ%group has no letters. A RocketMQ proxy goes on for about 20 s to report a
// topic as missing that was created after it was asked for, so a listing just before the first dead
// letter makes the next ones empty for that time.
type Queue struct {
	Transport interface {
		transport.Receiver
		transport.Settler
		Queues(ctx context.Context, group, topic string) ([]int, error)
	}
	Group string // the group of the dead letters
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

	// minAttempts is the least number of attempts of As on a server that counts releases: one for
	// each attempt that a letter had, 17 by default, and one for each listing.
	minAttempts = 100
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
		most := 0
		if err == nil {
			most, err = q.attempts(ctx, topic)
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
		for _, l := range held {
			if d := l.delivery; d != nil && most > 0 && d.Attempt >= most {
				yield(nil, q.fault("letter %s is in attempt %d of %d and moves to %s when it is received next; allow more attempts first (mqadmin updateSubGroup -g %s -r %d)",
					d.ID, d.Attempt, most, tidegate.DeadLetterTopic(q.As), q.As, 10*most))
				return
			}
		}
	}
}

// attempts returns how many attempts As allows where the server counts released letters; 0 where it
// does not, or where that is unknown. The error is that there are too few of them.
func (q Queue) attempts(ctx context.Context, topic string) (int, error) {
	c, ok := q.Transport.(transport.Configurer)
	if !ok {
		return 0, nil
	}
	s, err := c.ConsumerSettings(ctx, q.As, topic)
	if err != nil || c.Capabilities().Suspend || s.MaxAttempts <= 0 {
		return 0, err
	}
	if s.MaxAttempts < minAttempts {
		return 0, q.fault("the group allows %d attempts, fewer than the %d that it needs: a letter with as many attempts moves to %s instead of being received; allow more (mqadmin updateSubGroup -g %s -r 1000)",
			s.MaxAttempts, minAttempts, tidegate.DeadLetterTopic(q.As), q.As)
	}
	return s.MaxAttempts, nil
}

func (q Queue) fault(format string, args ...any) error {
	return fmt.Errorf("deadletter.Queue: %w", &tidegate.Error{Subject: q.As, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)})
}

func letterOf(d *tidegate.Delivery) *Letter {
	l := &Letter{Message: d.Message, StoredAt: d.StoredAt, BodySize: len(d.Body), delivery: d}
	l.Origin, _ = d.DeadLetter()
	l.Origin.Redrives = generationOf(d.Properties)
	return l
}

// release releases the letters that were not removed. One whose release fails is visible again
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
