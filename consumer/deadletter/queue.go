package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A Queue is a source that receives a group's dead letters from the topic %DLQ%group, for example
// of a RocketMQ. The consumer group As leases the letters while a listing or a redrive runs. At the
// end of the listing or redrive the letters that were not removed are released.
//
// On RocketMQ a letter keeps the number of its attempts in Group, and each release adds one. A
// letter that reaches the maximum of As moves to %DLQ%As. Use As for this purpose only, with at
// least 100 attempts, for example by mqadmin updateSubGroup -g As -r 1000. With fewer attempts,
// listings and redrives return an error and receive nothing. If a letter is in its last attempt of
// As, they process all letters and then return an error.
//
// If the server does not report when a message became a dead letter, a filter with Since or Before is
// an error.
//
// If the topic %DLQ%group does not exist, the group has no letters. After a query for a missing
// topic, a RocketMQ proxy reports the topic as missing for about 20 s, even if it is created in the
// meantime. Listings within 20 s after such a query therefore return no letters.
type Queue struct {
	Transport interface {
		transport.Receiver
		transport.Settler
		Queues(ctx context.Context, group, topic string) ([]int, error)
	}
	Group string // the consumer group of the dead letters
	As    string // the consumer group that receives them

	// Lease is the time for which other consumers of As cannot receive a letter. After a crash the
	// letters are redelivered when their leases have ended; a tidegate broker adds the retry delay
	// of As. Default: 30 minutes.
	Lease time.Duration

	// Wait is the time without a further letter after which a queue counts as empty. Default: 5 s.
	Wait time.Duration
}

const (
	defaultLease = 30 * time.Minute
	defaultWait  = 5 * time.Second
	maxReceive   = 32
	giveUpAfter  = 3 * time.Second // for the release of each letter

	// minAttempts is the smallest maximum of attempts of As on a server that counts releases: 17 by
	// default for the earlier attempts of a letter, and one for each listing.
	minAttempts = 100
)

// A heldKey identifies a leased letter.
type heldKey struct{ topic, id, at string }

func (q Queue) group() string { return q.Group }

func (q Queue) lease() time.Duration {
	if q.Lease == 0 {
		return defaultLease
	}
	return q.Lease
}

func (q Queue) letters(ctx context.Context, f *Filter, _ query) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		held := map[heldKey]*Letter{}
		defer func() { q.release(ctx, held) }()
		topic := tidegate.DeadLetterTopic(q.Group)
		queues, err := q.Transport.Queues(ctx, q.As, topic)
		if errors.Is(err, tidegate.ErrTopicNotFound) {
			return // the group has no dead letter
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
				fresh = false // a response without new letters is the end of the queue
				var more []*Letter
				for _, d := range ds {
					l := letterOf(d)
					k := heldKey{l.Origin.Topic, d.ID, l.at()}
					before := held[k]
					if held[k] = l; before == nil {
						fresh, more = true, append(more, l)
					}
				}
				for _, l := range more {
					if l.StoredAt.IsZero() && !(f.Since.IsZero() && f.Before.IsZero()) {
						yield(nil, q.fault("the server does not report when dead letter %s became one, so no time can select it; select by topic, reason, class or message ID", l.Message.ID))
						return
					}
					if !yield(l, nil) {
						return
					}
				}
			}
		}
		for _, l := range held {
			if d := l.delivery; d != nil && most > 0 && d.Attempt >= most {
				yield(nil, q.fault("dead letter %s is in attempt %d of %d, and the next receive moves it to %s; raise the attempts of the group first (mqadmin updateSubGroup -g %s -r %d)",
					d.ID, d.Attempt, most, tidegate.DeadLetterTopic(q.As), q.As, 10*most))
				return
			}
		}
	}
}

// attempts returns the maximum of attempts of As if the server counts released letters; 0 if it
// does not, or if the maximum is unknown. It returns an error if the maximum is too low.
func (q Queue) attempts(ctx context.Context, topic string) (int, error) {
	c, ok := q.Transport.(transport.Configurer)
	if !ok {
		return 0, nil
	}
	s, err := c.ConsumerSettings(ctx, q.As, topic)
	if err != nil || c.Capabilities("").Suspend || s.MaxAttempts <= 0 {
		return 0, err
	}
	if s.MaxAttempts < minAttempts {
		return 0, q.fault("the group allows %d attempts, and %d are needed: a dead letter with more attempts moves to %s and is not received; raise them (mqadmin updateSubGroup -g %s -r 1000)",
			s.MaxAttempts, minAttempts, tidegate.DeadLetterTopic(q.As), q.As)
	}
	return s.MaxAttempts, nil
}

const onlyRocketMQ = "only RocketMQ has retry topics; send to a topic of group %s alone, or redrive over the HTTP API of a tidegate broker"

// retryTopic returns the topic from which the group of the letters alone receives, as it receives
// from a topic. It returns an error if the server has no such topic, or does not use it.
func (q Queue) retryTopic(ctx context.Context, topic string) (string, error) {
	name := protocol.RetryPrefix + q.Group + "_" + topic
	if err := tidegate.ValidateTopic(name); err != nil {
		return "", q.fault("the retry topic of group %s for topic %s: %v", q.Group, topic, err)
	}
	c, ok := q.Transport.(transport.Configurer)
	if _, recalls := q.Transport.(transport.Recaller); !ok || !recalls { // an AMQP server has neither recalls nor retry topics
		return "", q.fault(onlyRocketMQ, q.Group)
	}
	s, err := c.ConsumerSettings(ctx, q.Group, topic) // before Capabilities, which it reads
	switch {
	case err != nil:
		return "", err
	case c.Capabilities("").Suspend: // a tidegate broker
		return "", q.fault(onlyRocketMQ, q.Group)
	case s.FIFO:
		return "", q.fault("group %s is FIFO and does not receive from %s; send to another topic of this group alone", q.Group, name)
	}
	_, err = q.Transport.Queues(ctx, q.Group, name)
	if errors.Is(err, tidegate.ErrTopicNotFound) {
		return "", q.fault("RocketMQ has no topic %s, which it creates at the first retry of group %s in topic %s; send to another topic of this group alone", name, q.Group, topic)
	}
	if err != nil {
		return "", err
	}
	return name, nil
}

func (q Queue) fault(format string, args ...any) error {
	return fmt.Errorf("deadletter.Queue: %w", &tidegate.Error{Subject: q.As, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)})
}

func letterOf(d *tidegate.Delivery) *Letter {
	l := &Letter{Message: d.Message, StoredAt: d.StoredAt, BodySize: len(d.Body), delivery: d, born: d.BornAt}
	l.Origin, _ = d.DeadLetter()
	l.Origin.Redrives = generationOf(d)
	return l
}

// release releases the letters that were not removed. If the release of a letter fails, the letter
// is visible again after its lease.
func (q Queue) release(ctx context.Context, held map[heldKey]*Letter) {
	for _, l := range held {
		if l.delivery == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpAfter)
		_, err := q.Transport.Settle(ctx, l.delivery, transport.Verdict{Kind: transport.Release})
		cancel()
		if errors.Is(err, tidegate.ErrUnavailable) {
			return // the other releases would wait as long
		}
	}
}

func (q Queue) remove(ctx context.Context, l *Letter, _ string) error {
	err := errors.Join(q.Transport.Ack(ctx, []*tidegate.Delivery{l.delivery})...)
	if err == nil {
		l.delivery = nil
	}
	return err
}
