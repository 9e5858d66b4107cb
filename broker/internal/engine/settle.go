package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Ack acknowledges deliveries, and sets an error in errs for each handle that is not valid any
// more. It returns the write of the change, which is nil if no handle is valid.
func (s *Subscription) Ack(handles []consume.Handle, errs []error) *store.PendingWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i, h := range handles {
		err := consume.ErrNoQueue
		if s.gone == nil {
			err = s.progress.Ack(h, now)
		}
		errs[i] = asInvalidHandle(err)
	}
	return s.apply(now).write
}

// Release returns deliveries that are still valid to the queue, as if they had not been made. The
// write is nil if there are none.
func (s *Subscription) Release(handles []consume.Handle) *store.PendingWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Release(h, now)
	}
	return s.apply(now).write
}

// releaseGrants is Release for deliveries that a receive does not return.
func (s *Subscription) releaseGrants(grants []consume.Grant) {
	handles := make([]consume.Handle, len(grants))
	for i := range grants {
		handles[i] = grants[i].Receipt
	}
	s.Release(handles)
}

// Settle applies a verdict to the delivery of a handle, and returns when this is on disk. attempt
// is the delivery attempt as the consumer counts it.
func (s *Subscription) Settle(ctx context.Context, h consume.Handle, v transport.Verdict, attempt int) (consume.Outcome, error) {
	return s.settle(ctx, func(policy *consume.Policy, now time.Time) (consume.Outcome, error) {
		return s.progress.Settle(h, v, attempt, policy, now)
	})
}

// Extend changes the invisible duration of the delivery of a handle, whose handle then has the
// serial number, and returns when this is on disk.
func (s *Subscription) Extend(ctx context.Context, h consume.Handle, d time.Duration, serial uint32) error {
	_, err := s.settle(ctx, func(policy *consume.Policy, now time.Time) (consume.Outcome, error) {
		return s.progress.ChangeInvisible(h, d, serial, policy, now)
	})
	return err
}

// An end of a delivery, or a change of its lease, is called with mu held.
type settlement func(policy *consume.Policy, now time.Time) (consume.Outcome, error)

func (s *Subscription) settle(ctx context.Context, c settlement) (consume.Outcome, error) {
	out, rest, first, err := s.settleUnsynced(c)
	switch {
	case err != nil:
		return out, asInvalidHandle(err)
	case first != nil:
		return out, first.join(ctx)
	case len(rest.leaving) > 0:
		return out, s.env.CarryOut(ctx, func() error { return s.writeDepartures(rest.leaving)[0] })
	case len(rest.parked) > 0:
		return out, s.env.CarryOut(ctx, func() error { return s.awaitParked(rest.parked[0]) })
	case out.Repeated != nil || out.To == 0: // the writes of the earlier request may not be on disk yet
		rest.write = s.env.Store.Groups.Barrier()
	}
	if err := rest.write.WaitContext(ctx); err != nil {
		return out, refusal.Unsettled(ctx, err)
	}
	return out, nil
}

// settleUnsynced also returns the departure of an earlier request that this one repeats, and nil if
// there is none.
func (s *Subscription) settleUnsynced(c settlement) (out consume.Outcome, rest remaining, first *Departure, err error) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return out, rest, nil, consume.ErrNoQueue
	}
	now := time.Now()
	out, err = c(&policy, now)
	rest = s.apply(now)
	return out, rest, s.leaving[out.Repeated], err
}

// Attempt returns the attempt of the delivery of a handle. The error is 40013 if the handle is not
// valid any more.
func (s *Subscription) Attempt(h consume.Handle) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return 0, asInvalidHandle(consume.ErrNoQueue)
	}
	l, err := s.progress.Current(h, time.Now())
	if err != nil {
		return 0, asInvalidHandle(err)
	}
	return l.Attempt, nil
}

// Replacement returns the handle that replaced h by a change of the invisible duration, or h.
func (s *Subscription) Replacement(h consume.Handle) consume.Handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return h
	}
	return s.progress.Replacement(h)
}

// A reconsumption is a message that a consumer sends to a retry topic, or to a dead letter topic
// after the maximum of retries.
type reconsumption struct {
	To     string            // the topic
	Retry  *deadletter.Retry // Reconsume sets its Due
	Delay  time.Duration
	Reason string // of the dead letter
}

// Reconsume ends the delivery of a handle, whose message becomes a new one, and returns when this
// is on disk. The error is 40013 if the handle is not valid any more.
func (s *Subscription) Reconsume(ctx context.Context, h consume.Handle, r reconsumption) error {
	d, err := s.reconsumeUnsynced(h, r)
	if err != nil {
		return asInvalidHandle(err)
	}
	return s.env.CarryOut(ctx, func() error { return s.writeDepartures([]*Departure{d})[0] })
}

func (s *Subscription) reconsumeUnsynced(h consume.Handle, r reconsumption) (*Departure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, consume.ErrNoQueue
	}
	now := time.Now()
	if err := s.progress.Reconsume(h, r.Reason, now); err != nil {
		return nil, err
	}
	d := s.apply(now).leaving[0]
	if r.Delay > 0 {
		r.Retry.Due = now.Add(r.Delay)
	}
	d.Redirect(r.To, r.Retry)
	s.noteReconsumption(d, &r, now)
	return d, nil
}

// asInvalidHandle returns the error of a receipt handle that is not valid, for the reason that
// package consume returned. Other errors, and nil, stay as they are.
func asInvalidHandle(reason error) error {
	if _, ok := errors.AsType[*consume.TooLongError](reason); ok || reason == nil {
		return reason
	}
	if _, ok := errors.AsType[*tidegate.Error](reason); ok {
		return reason
	}
	return refusal.InvalidHandle("%v", reason)
}

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
	topics := make([]*Topic, len(d.topics))
	for i, name := range d.topics {
		if topics[i] = env.Topics.FindTopic(name); topics[i] == nil {
			d.err = errNoTopics
			return
		}
	}
	var letter deadletter.Classified
	if !d.retried() {
		m.Properties = d.death(&m).Properties(&m)
		letter = deadletter.NewLetter(&m)
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
			q := t.Pick(&m.Message)
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

// remaining is the work that remains, without the lock, after effects of package consume were
// applied.
type remaining struct {
	write   *store.PendingWrite // of the writes; nil if there were none
	leaving []*Departure        // for writeDepartures
	parked  []*parking          // for awaitParked
}

// apply carries out the effects of the caller's changes to s.progress. No other code does. mu is
// held, so the writes are in the order of the changes.
func (s *Subscription) apply(now time.Time) (out remaining) {
	e := s.progress.Effects()
	s.countLeases()
	s.Done(Contents(e.Done), e.LeasedBytes)
	if e.Drained != (consume.Amount{}) {
		s.Drain(Contents(e.Drained), now)
		s.Topic().GroupConsumed(now)
	}
	for _, late := range e.Late {
		s.env.Lateness.Observe(max(0, late).Seconds())
	}
	if len(e.Writes) > 0 && e.Durable {
		out.write = s.env.Store.Groups.Add(s.progress.Encode, nil)
	} else if len(e.Writes) > 0 {
		out.write = s.env.Store.Groups.AddLazy(s.progress.Encode)
	}
	for i := range e.Departures {
		out.leaving = append(out.leaving, s.newDeparture(e.Departures[i]))
	}
	for i := range e.Failures {
		s.noteFailure(&e.Failures[i])
	}
	for i := range e.Parked {
		out.parked = append(out.parked, &parking{group: e.Parked[i], write: out.write})
	}
	for _, queue := range e.Reread {
		s.dropReadAhead(s.readers[queue])
	}
	for _, w := range e.Wakes {
		s.wake(w.N, w.Queue)
	}
	if e.WakeRest {
		s.wakeRest()
	}
	if e.Fetch {
		s.startFetch()
	}
	if e.Done != (consume.Amount{}) || len(e.Writes)+len(e.Late)+len(e.Wakes) > 0 {
		s.env.Activity.Note()
	}
	e.Reset()
	s.arm()
	return out
}

// applyTake is apply within a receive. A receive from lite topics wakes others itself, because a look
// at all queues would cost too much.
func (s *Subscription) applyTake(now time.Time) remaining {
	if s.lite != nil {
		s.progress.Effects().WakeRest = false
	}
	return s.apply(now)
}

// wake ends the wait of up to n receives that may read the queue, and wakes the watches. mu is
// held.
func (s *Subscription) wake(n int64, queue uint16) {
	if s.lite != nil {
		s.wakeLite(queue) // a queue has one message that can be taken
		return
	}
	if n > 0 {
		s.wakeWatches(queue)
	}
	for i := 0; n > 0 && i < len(s.waiters); {
		w := s.waiters[i]
		if w.queue >= 0 && w.queue != int(queue) {
			i++
			continue
		}
		s.waiters = slices.Delete(s.waiters, i, i+1)
		close(w.woken)
		n--
	}
}

// wakeRest wakes receives for messages that no receive has taken: one for each ready message, and
// one for each queue with new messages. mu is held.
func (s *Subscription) wakeRest() {
	if s.waiting() == 0 && len(s.watches) == 0 {
		return
	}
	s.extend()
	for _, r := range s.readers {
		if n := s.progress.Available(int(r.queue.Number())); n > 0 {
			s.wake(n, r.queue.Number())
		}
	}
}

// wakeAll ends the wait of all receives, and wakes the watches. mu is held.
func (s *Subscription) wakeAll() {
	for w := range s.watches {
		w.wake()
	}
	clear(s.watches)
	for _, w := range s.waiters {
		close(w.woken)
	}
	s.waiters = nil
	if s.lite != nil {
		for _, c := range s.lite.byID {
			s.wakeWaiters(c)
		}
	}
}

// arm sets the timer to the first due time, unless the subscription is being restored: a message
// that is due could be parked while those after it are not known yet. mu is held.
func (s *Subscription) arm() {
	due, ok := s.progress.NextDue()
	if !ok || s.gone != nil || s.restoring || !s.armed.IsZero() && !due.Before(s.armed) {
		return // nothing is due, or the timer fires early enough and is set again then
	}
	s.armed = due
	s.timer.Reset(time.Until(due))
}

// expire ends the leases and retry intervals that are due. The timer calls it.
func (s *Subscription) expire() {
	if !s.env.Calls.Begin() {
		return
	}
	defer s.env.Calls.End()
	rest, gone := s.expireUnsynced()
	if gone {
		return
	}
	for i, err := range s.writeDepartures(rest.leaving) {
		if err != nil {
			s.env.Logger.Error("message not moved to the dead letters; retry in a second",
				"group", s.Group().Name(), "topic", s.Topic().Name(), "offset", rest.leaving[i].place.Offset, "error", err)
		}
	}
	for _, p := range rest.parked {
		_ = s.awaitParked(p) // other calls report a store that fails
	}
}

func (s *Subscription) expireUnsynced() (out remaining, gone bool) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = time.Time{}
	if s.gone != nil {
		return remaining{}, true
	}
	now := time.Now()
	s.progress.Expire(&policy, now)
	return s.apply(now), false
}

// An Audited is the memory that a subscription uses besides its progress.
type Audited struct {
	Ahead     int64 // bytes that were read ahead
	Receiving int   // receives under way with an attempt ID
}

// Audit returns the memory in use, and an error if the progress, the timer or the effects
// contradict each other. It is for tests, between operations.
func (s *Subscription) Audit() (a Audited, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		a.Ahead += r.ahead.bytes
	}
	a.Receiving = len(s.receiving)
	err = s.progress.Audit()
	if due, ok := s.progress.NextDue(); ok && (s.armed.IsZero() || s.armed.After(due)) {
		err = errors.Join(err, fmt.Errorf("the timer is set to %v, the first lease is due at %v", s.armed, due))
	}
	if e := s.progress.Effects(); len(e.Writes) > 0 || e.Done != (consume.Amount{}) || e.LeasedBytes != 0 {
		err = errors.Join(err, fmt.Errorf("effects were not applied: %+v", e))
	}
	return a, err
}
