package subscription

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// Bounds of the departures that are written at a time. All departures of one moment may not fit in
// memory.
const (
	chunkMessages = 256
	chunkBytes    = 4 << 20
)

// A Departure is a message that leaves its topic: to a dead letter topic, a retry topic or an
// expiry address. First the message is written to its new topic, and then its lease is removed. The
// mark that is written with the message prevents a second copy if the process ends in between.
type Departure struct {
	consume.Departure
	sub   *Subscription
	place store.Place

	topics []string          // that it goes to; without any it is removed, or stays
	stays  bool              // it is a dead letter already, in this topic
	retry  *deadletter.Retry // nil: it stays the message that it is

	put  *store.PendingWrite // nil if there was nothing to write
	lost bool                // the message cannot be read, or does not exist any more

	err   error         // after ended: of this departure
	ended chan struct{} // closed when the lease is removed, or has its former state
}

// newDeparture begins a departure as a dead letter, or to the expiry address. Its topics follow
// from the settings of the group and the topic. mu is held.
func (s *Subscription) newDeparture(d consume.Departure) *Departure {
	x := &Departure{Departure: d, sub: s, place: s.progress.Place(d.Lease), ended: make(chan struct{})}
	s.leaving[d.Lease] = x
	group, name, p := s.Group().Name(), s.Topic().Name(), s.Policy()
	if d.Expired {
		if to := p.Address.ExpiryAddress; to != "" && to != name {
			x.topics = []string{to}
		}
		return x
	}
	x.topics = p.DeadLetterTopics(group, cmp.Or(s.original, name), d.Early)
	x.stays = len(x.topics) == 0 && p.OwnDeadLetterTopic(group, name) == name
	return x
}

// Redirect has the departure end in a retry topic, or in the dead letter topic of retry topics.
func (d *Departure) Redirect(to string, r *deadletter.Retry) {
	d.topics, d.stays, d.retry = []string{to}, false, r
}

// writeDepartures writes messages that leave a subscription, and removes their leases. It returns
// an error for each message when all of this is on disk. The messages share fsyncs. The caller
// holds no lock.
func (s *Subscription) writeDepartures(ds []*Departure) []error {
	errs := make([]error, 0, len(ds))
	for len(errs) < len(ds) {
		some := ds[len(errs):]
		n, bytes := 0, int64(0)
		for n < min(len(some), chunkMessages) && bytes < chunkBytes {
			bytes += some[n].Lease.Size
			n++
		}
		errs = append(errs, s.writeChunk(some[:n])...)
	}
	return errs
}

// writeChunk first waits until the leases are on disk. Otherwise a power failure could leave the
// dead letter without the lease, and the message would be delivered again as a new one.
func (s *Subscription) writeChunk(ds []*Departure) []error {
	err := s.env.Store.Groups.Barrier().Wait()
	for _, d := range ds {
		if d.err = err; err == nil {
			d.Start()
		}
	}
	removed := make([]*store.PendingWrite, len(ds))
	for i, d := range ds {
		removed[i] = d.RemoveLease()
	}
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = d.Wait(removed[i])
	}
	return errs
}

// errNoTopics is the error of write if a topic of the departure does not exist yet.
var errNoTopics = errors.New("the topic for the dead letter does not exist")

// Start is the first step of writeDepartures: it adds the message to the message log, without
// waiting for the disk. It reserves space in the log only while it reads and writes the message. It
// releases the space while it creates topics, because that waits for other changes of settings, and
// sends would wait for the space meanwhile.
func (d *Departure) Start() {
	env := d.sub.env
	for bytes := d.Lease.Size * int64(len(d.topics)); ; {
		if d.err = env.Store.Messages.Room(env.Life, bytes, nil); d.err != nil {
			return
		}
		d.write()
		env.Store.Messages.Release(bytes)
		if !errors.Is(d.err, errNoTopics) {
			return
		}
		if d.err = d.createTopics(); d.err != nil {
			return
		}
	}
}

// createTopics creates the missing topics of the departure.
func (d *Departure) createTopics() error {
	for i, name := range d.topics {
		c := settings.Topic{Queues: 1}
		if !d.retried() {
			c.Retention.Time = -1 // dead letters stay
		}
		if err := d.sub.env.Topics.CreateOwnTopic(name, c, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// retried reports whether the message goes to a retry topic.
func (d *Departure) retried() bool { return d.retry != nil && !d.retry.Dead }

// write reads the message and adds it to the log. If a topic is missing it writes nothing and sets
// d.err to errNoTopics.
func (d *Departure) write() {
	if len(d.topics) == 0 {
		return
	}
	s, env := d.sub, d.sub.env
	m, ok, err := env.Store.Get(d.place)
	if store.IsDamage(err) {
		s.Lost(d.place, d.place.Offset+1, err)
	} else if err != nil {
		d.err = err
		return
	}
	if d.lost = !ok; d.lost {
		return // there is no message to write
	}
	group := s.Group()
	marked, err := env.Store.IsDeadLetter(group.ID(), d.place, d.Rewound)
	if err != nil || marked {
		d.err = err
		return
	}
	topics := make([]*topic.Topic, len(d.topics))
	for i, name := range d.topics {
		if topics[i] = env.Topics.FindTopic(name); topics[i] == nil {
			d.err = errNoTopics
			return
		}
	}
	var letter classes.Letter
	if !d.retried() {
		m.Properties = d.death(&m).Properties(&m)
		letter = classes.NewLetter(&m)
	}
	var due time.Time
	if d.retry != nil {
		d.retry.Apply(&m, d.topics[0])
		due = d.retry.Due
	}
	var published []func(error)
	d.put = env.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range topics {
			if t.Deleted() {
				d.err = refusal.TopicNotFound(t.Name()) // deleted meanwhile; the next attempt creates it again
				return
			}
		}
		now := time.Now()
		for _, t := range topics {
			if !due.IsZero() {
				env.Delayed.Put(w, t, &m, now)
				continue
			}
			q := t.Pick(m.MessageGroup)
			if d.retried() || d.Expired {
				t.Put(w, q, &m, now)
			} else {
				t.PutLetter(w, q, &m, letter, now)
			}
			published = append(published, t.Publish(q))
		}
		if !group.Deleted() {
			w.MarkDeadLetter(group.ID(), d.place, d.Rewound)
			s.marked.Store(true)
		}
	}, func(err error) {
		if !due.IsZero() && err == nil {
			env.Delayed.Wake(due)
		}
		for _, f := range published {
			f(err)
		}
	})
}

// death returns how the message became a dead letter, or expires now.
func (d *Departure) death(m *store.Message) *deadletter.Death {
	group, t := d.sub.Group(), d.sub.Topic()
	death := &deadletter.Death{
		Group: group.Name(), Topic: t.Name(), Queue: int(d.place.Queue), Offset: d.place.Offset, Attempts: d.Tries, Reason: d.Reason,
		Artemis: d.sub.Policy().Address.Redelivery != nil,
	}
	death.SentTo, death.SentID = deadletter.Sent(&group.Settings().RetryTopic, m, t.Name(), group.Name())
	if d.Expired {
		death.Expired = time.Now()
	}
	return death
}

// RemoveLease is the second step: it waits until the message is on disk, and removes the lease.
// After a failure the lease returns to its former state: a valid handle stays valid, and a message
// that became a dead letter by a timeout is due again in a second. The write is nil if the
// subscription was deleted.
func (d *Departure) RemoveLease() *store.PendingWrite {
	if d.err == nil && d.put != nil {
		d.err = d.put.Wait()
	}
	defer close(d.ended)
	s := d.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, d.Lease)
	if s.gone != nil {
		d.err = nil // nothing is left to write
		return nil
	}
	now := time.Now()
	if d.err == nil {
		to := d.destination()
		if s.progress.Departed(d.Departure, to) && to == consume.ToDeadLetters {
			s.deadLetters.add(now)
		}
	} else if !s.progress.Returned(d.Departure, now) {
		d.err = nil // removed or rewound
	}
	return s.apply(now).write
}

func (d *Departure) destination() consume.Destination {
	switch {
	case d.lost:
		return consume.ToNowhere
	case d.retried():
		return consume.ToRetryTopic
	case d.Expired:
		return consume.ToExpiryAddress
	case len(d.topics) == 0 && !d.stays:
		return consume.ToBeRemovedAlone
	}
	return consume.ToDeadLetters
}

// Wait is the last step: it waits until the write of RemoveLease is on disk.
func (d *Departure) Wait(removed *store.PendingWrite) error {
	if d.err != nil {
		return refusal.Store(d.err)
	}
	if removed == nil || d.lost {
		return nil // the subscription or the message does not exist any more
	}
	if err := removed.Wait(); err != nil {
		return refusal.Store(err)
	}
	level, text := slog.LevelWarn, "message became a dead letter"
	switch {
	case d.retried():
		level, text = slog.LevelDebug, "message moved to the retry topic"
	case d.Expired:
		level, text = slog.LevelInfo, "message expired"
	case d.stays:
		text = "dead letter failed again and stays in its topic"
	case len(d.topics) == 0:
		text = "message removed after its last attempt, because its address has no dead-letter-address"
	}
	d.sub.env.Events.Note(level, text, d.sub.class(), []slog.Attr{
		slog.Int("queue", int(d.place.Queue)), slog.Int64("offset", d.place.Offset),
		slog.Int("attempts", d.Tries), slog.String("reason", d.Reason), slog.Any("to", d.topics),
	})
	return nil
}

// A parking is a message group that was parked.
type parking struct {
	group consume.ParkedGroup
	write *store.PendingWrite
}

// awaitParked waits until the record of a message group that was parked is on disk, and logs it.
func (s *Subscription) awaitParked(p *parking) error {
	if err := p.write.Wait(); err != nil {
		return refusal.Store(err)
	}
	s.env.Events.Note(slog.LevelWarn, "message group parked", s.class(), []slog.Attr{
		slog.String("message_group", p.group.MessageGroup), slog.Int("queue", int(p.group.Place.Queue)), slog.Int64("offset", p.group.Place.Offset),
		slog.Int("attempts", p.group.Attempts), slog.String("reason", p.group.Reason),
	})
	return nil
}

// class returns the attributes that the events of a group in a topic have in common.
func (s *Subscription) class() []slog.Attr {
	return []slog.Attr{slog.String("group", s.Group().Name()), slog.String("topic", s.Topic().Name())}
}

// join waits, on behalf of a repeated request, until the first request has finished.
func (d *Departure) join(ctx context.Context) error {
	select {
	case <-d.ended:
	case <-ctx.Done():
		return refusal.Unsettled(ctx, context.Cause(ctx))
	}
	if d.err != nil {
		return refusal.Store(d.err)
	}
	if err := d.sub.env.Store.Groups.Barrier().WaitContext(ctx); err != nil {
		return refusal.Unsettled(ctx, err)
	}
	return nil
}
