package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// dyingMessages and dyingBytes bound the dead letters that are written at a time. All dead letters
// of one moment may not fit in memory.
const (
	dyingMessages = 256
	dyingBytes    = 4 << 20
)

// A deadLetter is a message that leaves its topic: to a dead letter topic, a retry topic or an
// expiry address. First the message is written to its new topic, and then its lease is removed. The
// mark that is written with the message prevents a second copy if the process ends in between.
type deadLetter struct {
	consume.Departure

	sub     *subscription
	place   store.Place
	topics  []string // that it goes to; none: it is removed, or stays
	stays   bool     // it is a dead letter already, in this topic
	retried *retried // what it becomes in a retry topic or after it; nil: it stays the message that it is

	put   *store.PendingWrite // nil if there was nothing to write
	lost  bool                // the message cannot be read, or is not there any more
	err   error
	ended chan struct{} // closed when the lease is removed, or err is set
}

// newDeadLetter decides the topics of a departure, except for one to a retry topic. s.mu is held.
func (s *subscription) newDeadLetter(d consume.Departure) *deadLetter {
	x := &deadLetter{Departure: d, sub: s, place: s.progress.Place(d.Lease), ended: make(chan struct{})}
	s.dying[d.Lease] = x
	p := s.Policy()
	switch {
	case d.Event == consume.EventReconsume:
	case d.Expired:
		if to := p.Address.ExpiryAddress; to != "" && to != s.Topic().Name() {
			x.topics = []string{to}
		}
	default:
		x.topics = p.DeadLetterTopics(s.Group().Name(), s.Topic().Name(), d.Early)
		x.stays = len(x.topics) == 0 && p.OwnDeadLetterTopic(s.Group().Name(), s.Topic().Name()) == s.Topic().Name()
	}
	return x
}

// carryOut writes one dead letter and removes the lease, and waits until both are on disk.
func (d *deadLetter) carryOut(b *Broker) error { return b.writeDeadLetters([]*deadLetter{d})[0] }

// deadLetters are dead letters that one closing carries out.
type deadLetters []*deadLetter

func (ds deadLetters) carryOut(b *Broker) error { return errors.Join(b.writeDeadLetters(ds)...) }

// writeDeadLetters carries out several dead letters, which share fsyncs, and returns an error for
// each.
func (b *Broker) writeDeadLetters(ds []*deadLetter) []error {
	errs := make([]error, 0, len(ds))
	for len(errs) < len(ds) {
		some := ds[len(errs):]
		n, bytes := 0, int64(0)
		for n < min(len(some), dyingMessages) && bytes < dyingBytes {
			bytes += some[n].Lease.Size
			n++
		}
		errs = append(errs, b.writeSome(some[:n])...)
	}
	return errs
}

func (b *Broker) writeSome(ds []*deadLetter) []error {
	b.startDying(ds)
	removed := make([]*store.PendingWrite, len(ds))
	for i, d := range ds {
		removed[i] = d.removeLease()
	}
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = d.wait(b, removed[i])
	}
	return errs
}

// startDying waits until the leases of dead letters are on disk, and begins to write the dead
// letters. Otherwise a power failure could leave the dead letter without the lease, and the message
// would be delivered again as a new one.
func (b *Broker) startDying(ds []*deadLetter) {
	err := b.store.Groups.Add(func(*store.Batch) {}, nil).Wait()
	for _, d := range ds {
		if d.err = err; err == nil {
			d.start(b)
		}
	}
}

// errNoTopics is the error of write if a topic of the dead letter does not exist yet.
var errNoTopics = errors.New("a dead letter's topic is not there")

// start adds the dead letter to the message log, without waiting for the disk. It reserves space in
// the log only while it reads and writes the message. It releases the space while it creates
// topics, because that waits for other changes of settings, and sends would wait for the space
// meanwhile.
func (d *deadLetter) start(b *Broker) {
	for bytes := d.Lease.Size * int64(len(d.topics)); ; {
		if d.err = b.store.Messages.Room(b.life, bytes, nil); d.err != nil {
			return
		}
		d.write(b)
		b.store.Messages.Release(bytes)
		if !errors.Is(d.err, errNoTopics) {
			return
		}
		if d.err = d.makeTopics(b); d.err != nil {
			return
		}
	}
}

// makeTopics creates the missing topics of the dead letter.
func (d *deadLetter) makeTopics(b *Broker) error {
	ctx, cancel := b.ownContext()
	defer cancel()
	for i, name := range d.topics {
		c := TopicConfig{Queues: 1}
		if d.retried == nil || d.retried.dead {
			c.Retention.Time = -1 // dead letters stay
		}
		if _, err := b.ownTopic(ctx, name, c, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// write reads the message and adds the dead letter to the log. If a topic is missing it writes
// nothing and sets d.err to errNoTopics.
func (d *deadLetter) write(b *Broker) {
	if len(d.topics) == 0 {
		return
	}
	m, ok, err := b.store.Get(d.place)
	if store.IsDamage(err) {
		d.sub.lost(d.place, d.place.Offset+1, err)
	} else if err != nil {
		d.err = err
		return
	}
	if d.lost = !ok; d.lost {
		return // it needs no dead letter
	}
	marked, err := b.store.IsDeadLetter(d.sub.Group().ID(), d.place, d.Rewound)
	if err != nil || marked {
		d.err = err
		return
	}
	topics := make([]*topic.Topic, len(d.topics))
	b.mu.RLock()
	for i, name := range d.topics {
		if topics[i] = b.topics[name]; topics[i] == nil {
			d.err = errNoTopics
		}
	}
	b.mu.RUnlock()
	if d.err != nil {
		return
	}
	if d.retried == nil || d.retried.dead {
		m.Properties = d.death(&m).Properties(&m)
	}
	var due time.Time
	if d.retried != nil {
		d.retried.message(&m, d.topics[0])
		due = d.retried.due
	}
	var published []func(error)
	d.put = b.store.Messages.Add(func(w *store.Batch) {
		for _, t := range topics {
			if t.Deleted() {
				d.err = fail.TopicNotFound(t.Name()) // meanwhile; the next try makes it anew
				return
			}
		}
		now := time.Now()
		for _, t := range topics {
			if !due.IsZero() {
				b.delayed.Put(w, t, &m, now)
				continue
			}
			q := t.Pick(m.MessageGroup)
			t.Put(w, q, &m, now)
			published = append(published, t.Publish(q))
		}
		if !d.sub.Group().Deleted() {
			w.MarkDeadLetter(d.sub.Group().ID(), d.place, d.Rewound)
			d.sub.marked.Store(true)
		}
	}, func(err error) {
		if !due.IsZero() && err == nil {
			b.delayed.Wake(due)
		}
		for _, f := range published {
			f(err)
		}
	})
}

// join waits, on behalf of a repeated request, until the first request has finished.
func (d *deadLetter) join(ctx context.Context, b *Broker) error {
	select {
	case <-d.ended:
	case <-ctx.Done():
		return unsettled(ctx, context.Cause(ctx))
	}
	if d.err != nil {
		return fail.Store(d.err)
	}
	if err := b.store.Groups.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return unsettled(ctx, err)
	}
	return nil
}

// death returns how the message became a dead letter, or expires now.
func (d *deadLetter) death(m *store.Message) *deadletter.Death {
	s := d.sub
	death := &deadletter.Death{
		Group: s.Group().Name(), Topic: s.Topic().Name(), Queue: int(d.place.Queue), Offset: d.place.Offset, Attempts: d.Tries, Reason: d.Reason,
		Artemis: s.Topic().Address().Redelivery != nil,
	}
	death.SentTo, death.SentID = sentTo(s.Group().Settings().RetryTopic, m, s.Topic().Name(), s.Group().Name())
	if d.Expired {
		death.Expired = time.Now()
	}
	return death
}

// removeLease waits until the dead letter is on disk, and removes the lease; wait waits for the
// removal. After a failure the lease returns to its former state: a valid handle stays valid, and a
// message that became a dead letter by a timeout is due again in a second.
func (d *deadLetter) removeLease() (removed *store.PendingWrite) {
	defer close(d.ended)
	if d.err == nil && d.put != nil {
		if err := d.put.Wait(); err != nil {
			d.err = err
		}
	}
	s := d.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dying, d.Lease)
	now := time.Now()
	switch {
	case s.gone:
		d.err = nil
		return nil
	case d.err == nil:
		s.progress.Departed(d.Departure, d.destination())
	case !s.progress.Returned(d.Departure, now):
		d.err = nil // removed or rewound
	}
	return s.apply(now).write
}

// destination returns the destination of the message.
func (d *deadLetter) destination() consume.Destination {
	switch {
	case d.lost:
		return consume.ToNowhere
	case d.retried != nil && !d.retried.dead:
		return consume.ToRetryTopic
	case d.Expired:
		return consume.ToExpiryAddress
	case len(d.topics) == 0 && !d.stays:
		return consume.ToBeRemovedAlone
	}
	return consume.ToDeadLetters
}

// wait waits until the write of removeLease is on disk.
func (d *deadLetter) wait(b *Broker, removed *store.PendingWrite) error {
	if d.err != nil {
		return fail.Store(d.err)
	}
	if removed == nil {
		return nil // the subscription is gone
	}
	if d.lost {
		return nil // which was told, if somebody is to know
	}
	if err := removed.Wait(); err != nil {
		return fail.Store(err)
	}
	s := d.sub
	log, text := b.logger.Warn, "a message became a dead letter"
	switch {
	case d.retried != nil && !d.retried.dead:
		log, text = b.logger.Debug, "a message went to the retry topic"
	case d.Expired:
		log, text = b.logger.Info, "a message has expired"
	case d.stays:
		text = "a dead letter failed again and stays in its topic"
	case len(d.topics) == 0:
		text = "a message was removed: its last attempt failed, and its address has no dead-letter-address"
	}
	log(text, "group", s.Group().Name(), "topic", s.Topic().Name(), "queue", d.place.Queue, "offset", d.place.Offset,
		"attempts", d.Tries, "reason", d.Reason, "to", d.topics)
	return nil
}

// ownContext returns the context of work that no request may cancel, for example a dead letter.
// Close does not cancel it either, but waits for the work.
func (b *Broker) ownContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(b.life), time.Minute)
}

// ownTopic returns a topic that the broker itself writes to, and creates it for the first message.
// automatic means that a created topic is an automatic dead letter queue. ctx ends the wait for
// other changes of settings.
func (b *Broker) ownTopic(ctx context.Context, name string, c TopicConfig, automatic bool) (*topic.Topic, error) {
	b.mu.RLock()
	t := b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	if err := b.lockAdmin(ctx); err != nil {
		return nil, fmt.Errorf("making topic %s: %w", name, err)
	}
	defer b.unlockAdmin()
	b.mu.RLock()
	t = b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	t, err := b.makeTopic(name, c, automatic)
	if err == nil && automatic {
		b.autoDelete.Wake(time.Now().Add(autoDeleteDelay))
	}
	return t, err
}
