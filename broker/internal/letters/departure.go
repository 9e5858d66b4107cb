package letters

import (
	"errors"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
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

// A Source is a subscription that messages leave.
type Source interface {
	Consumed() *topic.Consumption

	// Lost logs and counts messages from a place up to an offset that cannot be read.
	Lost(from store.Place, to int64, err error)

	// Mark notes that there may be marks of dead letters. Only called within the message log's Add.
	Mark()
}

// A Leaving is a message on its way out of a subscription. Its lease stays until End.
type Leaving interface {
	Source
	Why() *consume.Departure
	Place() store.Place

	// End removes the lease of a message that is at its destination. With an error it returns the
	// lease to its former state. It returns the write of this, which is nil if the subscription was
	// deleted, and err unless there is no lease any more.
	End(to consume.Destination, err error) (*store.PendingWrite, error)
}

// A Departure is a message that leaves its topic: to a dead letter topic, a retry topic or an
// expiry address. First the message is written to its new topic, and then its lease is removed. The
// mark that is written with the message prevents a second copy if the process ends in between.
type Departure struct {
	Leaving
	topics []string          // that it goes to; without any it is removed, or stays
	stays  bool              // it is a dead letter already, in this topic
	retry  *deadletter.Retry // nil: it stays the message that it is

	put  *store.PendingWrite // nil if there was nothing to write
	lost bool                // the message cannot be read, or does not exist any more
	err  error
}

// NewDeparture returns the departure of a dead letter, or of a message that has expired. Its topics
// follow from the settings of the group and the topic.
func NewDeparture(leaving Leaving) *Departure {
	d := &Departure{Leaving: leaving}
	from := leaving.Consumed()
	group, name, p := from.Group().Name(), from.Topic().Name(), from.Policy()
	if leaving.Why().Expired {
		if to := p.Address.ExpiryAddress; to != "" && to != name {
			d.topics = []string{to}
		}
		return d
	}
	d.topics = p.DeadLetterTopics(group, name, leaving.Why().Early)
	d.stays = len(d.topics) == 0 && p.OwnDeadLetterTopic(group, name) == name
	return d
}

// NewRetry returns the departure of a message to its group's retry topic, or after the maximum of
// retries to its dead letter topic.
func NewRetry(leaving Leaving, to string, r *deadletter.Retry) *Departure {
	return &Departure{Leaving: leaving, topics: []string{to}, retry: r}
}

// Depart writes messages that leave, as dead letters or to an expiry address, and removes their
// leases. It returns an error for each message when all of this is on disk. The messages share
// fsyncs. The caller holds no lock.
func (l *Letters) Depart(leaving []Leaving) []error {
	ds := make([]*Departure, len(leaving))
	for i, x := range leaving {
		ds[i] = NewDeparture(x)
	}
	return l.CarryOut(ds)
}

// CarryOut is Depart for departures whose topics are known.
func (l *Letters) CarryOut(ds []*Departure) []error {
	errs := make([]error, 0, len(ds))
	for len(errs) < len(ds) {
		some := ds[len(errs):]
		n, bytes := 0, int64(0)
		for n < min(len(some), chunkMessages) && bytes < chunkBytes {
			bytes += some[n].Why().Lease.Size
			n++
		}
		errs = append(errs, l.writeChunk(some[:n])...)
	}
	return errs
}

// writeChunk first waits until the leases are on disk. Otherwise a power failure could leave the
// dead letter without the lease, and the message would be delivered again as a new one.
func (l *Letters) writeChunk(ds []*Departure) []error {
	err := l.Store.Groups.Add(func(*store.Batch) {}, nil).Wait()
	for _, d := range ds {
		if d.err = err; err == nil {
			d.Start(l)
		}
	}
	removed := make([]*store.PendingWrite, len(ds))
	for i, d := range ds {
		removed[i] = d.RemoveLease()
	}
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = d.Wait(l, removed[i])
	}
	return errs
}

// errNoTopics is the error of write if a topic of the departure does not exist yet.
var errNoTopics = errors.New("the topic for the dead letter does not exist")

// Start is the first step of CarryOut: it adds the message to the message log, without waiting for
// the disk. It reserves space in the log only while it reads and writes the message. It releases
// the space while it creates topics, because that waits for other changes of settings, and sends
// would wait for the space meanwhile.
func (d *Departure) Start(l *Letters) {
	for bytes := d.Why().Lease.Size * int64(len(d.topics)); ; {
		if d.err = l.Store.Messages.Room(l.Life, bytes, nil); d.err != nil {
			return
		}
		d.write(l)
		l.Store.Messages.Release(bytes)
		if !errors.Is(d.err, errNoTopics) {
			return
		}
		if d.err = d.createTopics(l); d.err != nil {
			return
		}
	}
}

// createTopics creates the missing topics of the departure.
func (d *Departure) createTopics(l *Letters) error {
	for i, name := range d.topics {
		c := settings.Topic{Queues: 1}
		if !d.retried() {
			c.Retention.Time = -1 // dead letters stay
		}
		if err := l.CreateTopic(name, c, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// retried reports whether the message goes to a retry topic.
func (d *Departure) retried() bool { return d.retry != nil && !d.retry.Dead }

// write reads the message and adds it to the log. If a topic is missing it writes nothing and sets
// d.err to errNoTopics.
func (d *Departure) write(l *Letters) {
	if len(d.topics) == 0 {
		return
	}
	m, ok, err := l.Store.Get(d.Place())
	if store.IsDamage(err) {
		d.Lost(d.Place(), d.Place().Offset+1, err)
	} else if err != nil {
		d.err = err
		return
	}
	if d.lost = !ok; d.lost {
		return // there is no message to write
	}
	from := d.Consumed()
	group, place, rewound := from.Group(), d.Place(), d.Why().Rewound
	marked, err := l.Store.IsDeadLetter(group.ID(), place, rewound)
	if err != nil || marked {
		d.err = err
		return
	}
	topics := make([]*topic.Topic, len(d.topics))
	for i, name := range d.topics {
		if topics[i] = l.Directory.FindTopic(name); topics[i] == nil {
			d.err = errNoTopics
			return
		}
	}
	if !d.retried() {
		m.Properties = d.death(&m).Properties(&m)
	}
	var due time.Time
	if d.retry != nil {
		d.retry.Apply(&m, d.topics[0])
		due = d.retry.Due
	}
	var published []func(error)
	d.put = l.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range topics {
			if t.Deleted() {
				d.err = fail.TopicNotFound(t.Name()) // deleted meanwhile; the next attempt creates it again
				return
			}
		}
		now := time.Now()
		for _, t := range topics {
			if !due.IsZero() {
				l.Delayed.Put(w, t, &m, now)
				continue
			}
			q := t.Pick(m.MessageGroup)
			t.Put(w, q, &m, now)
			published = append(published, t.Publish(q))
		}
		if !group.Deleted() {
			w.MarkDeadLetter(group.ID(), place, rewound)
			d.Mark()
		}
	}, func(err error) {
		if !due.IsZero() && err == nil {
			l.Delayed.Wake(due)
		}
		for _, f := range published {
			f(err)
		}
	})
}

// death returns how the message became a dead letter, or expires now.
func (d *Departure) death(m *store.Message) *deadletter.Death {
	from, x, place := d.Consumed(), d.Why(), d.Place()
	group, name := from.Group(), from.Topic().Name()
	death := &deadletter.Death{
		Group: group.Name(), Topic: name, Queue: int(place.Queue), Offset: place.Offset, Attempts: x.Tries, Reason: x.Reason,
		Artemis: from.Topic().Address().Redelivery != nil,
	}
	death.SentTo, death.SentID = deadletter.Sent(&group.Settings().RetryTopic, m, name, group.Name())
	if x.Expired {
		death.Expired = time.Now()
	}
	return death
}

// RemoveLease is the second step: it waits until the message is on disk, and removes the lease.
// After a failure the lease returns to its former state: a valid handle stays valid, and a message
// that became a dead letter by a timeout is due again in a second.
func (d *Departure) RemoveLease() (removed *store.PendingWrite) {
	if d.err == nil && d.put != nil {
		if err := d.put.Wait(); err != nil {
			d.err = err
		}
	}
	removed, d.err = d.End(d.destination(), d.err)
	return removed
}

// classOf returns the attributes that the events of a group in a topic have in common.
func classOf(from *topic.Consumption) []slog.Attr {
	return []slog.Attr{slog.String("group", from.Group().Name()), slog.String("topic", from.Topic().Name())}
}

func (d *Departure) destination() consume.Destination {
	switch {
	case d.lost:
		return consume.ToNowhere
	case d.retried():
		return consume.ToRetryTopic
	case d.Why().Expired:
		return consume.ToExpiryAddress
	case len(d.topics) == 0 && !d.stays:
		return consume.ToBeRemovedAlone
	}
	return consume.ToDeadLetters
}

// Wait is the last step: it waits until the write of RemoveLease is on disk.
func (d *Departure) Wait(l *Letters, removed *store.PendingWrite) error {
	if d.err != nil {
		return fail.Store(d.err)
	}
	if removed == nil || d.lost {
		return nil // the subscription or the message does not exist any more
	}
	if err := removed.Wait(); err != nil {
		return fail.Store(err)
	}
	x := d.Why()
	level, text := slog.LevelWarn, "message became a dead letter"
	switch {
	case d.retried():
		level, text = slog.LevelDebug, "message moved to the retry topic"
	case x.Expired:
		level, text = slog.LevelInfo, "message expired"
	case d.stays:
		text = "dead letter failed again and stays in its topic"
	case len(d.topics) == 0:
		text = "message removed after its last attempt, because its address has no dead-letter-address"
	}
	from, place := d.Consumed(), d.Place()
	l.Events.Note(level, text, classOf(from), []slog.Attr{
		slog.Int("queue", int(place.Queue)), slog.Int64("offset", place.Offset),
		slog.Int("attempts", x.Tries), slog.String("reason", x.Reason), slog.Any("to", d.topics),
	})
	return nil
}
