package broker

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// locate returns the subscription that a handle is of. A handle of another
// broker, or of a topic or group that was deleted, is not valid.
func (b *Broker) locate(d *tidegate.Delivery) (*subscription, handle.Receipt, error) {
	h, err := handle.ParseReceipt(d.Handle)
	if err != nil {
		return nil, h, invalidHandle("%v", err)
	}
	s := b.subscription(h)
	if s == nil || int(h.Place.Queue) >= len(*s.topic.queues.Load()) {
		return nil, h, invalidHandle("its topic or consumer group is not there any more")
	}
	if d.ConsumerGroup != "" && d.ConsumerGroup != s.group.name {
		return nil, h, invalidHandle("it is of group %q, not of %q", s.group.name, d.ConsumerGroup)
	}
	if d.Topic != "" && d.Topic != s.topic.name && !s.retries(d.Topic) {
		return nil, h, invalidHandle("it is of topic %q, not of %q", s.topic.name, d.Topic)
	}
	return s, h, nil
}

// TopicOf returns the topic of the delivery that a receipt handle names,
// whether that is over or not, and the original one: the topic that a receive
// shows, which differs if the message lies in the group's retry topic. 40013
// if the handle names none of this broker's.
func (b *Broker) TopicOf(receiptHandle string) (topic, original string, err error) {
	if !b.begin() {
		return "", "", closedError()
	}
	defer b.end()
	s, h, err := b.locate(&tidegate.Delivery{Handle: receiptHandle})
	if err != nil {
		return "", "", err
	}
	topic = s.topic.name
	switch from, retry := s.group.config.Load().RetryTopic.original(topic, s.group.name); {
	case !retry:
		return topic, topic, nil
	case from != "":
		return topic, from, nil
	}
	m, ok, err := b.store.Get(h.Place) // it is the retry topic for all topics: the message knows
	if err != nil {
		return "", "", storeError(err)
	}
	if !ok {
		return "", "", invalidHandle("the message was deleted")
	}
	return topic, realTopic(&m, topic), nil
}

// retries reports whether the subscription is to the group's retry topic for the topic.
func (s *subscription) retries(topic string) bool {
	return s.group.config.Load().RetryTopic.retryTopic(topic, s.group.name) == s.topic.name
}

func (b *Broker) subscription(h handle.Receipt) *subscription {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.subs[[2]uint32{h.Group, h.Place.Topic}]
}

// current returns the lease that a handle names, if it is in flight. mu is held.
func (s *subscription) current(h handle.Receipt, now time.Time) (*lease, error) {
	if s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return nil, invalidHandle("its topic or consumer group is not there any more")
	}
	l := s.cursors[h.Place.Queue].leases[h.Place.Offset]
	switch {
	case l == nil || l.state() == StateDeadLetter:
		return nil, invalidHandle("the message was acknowledged or given up already")
	case l.Serial != h.Serial:
		return nil, invalidHandle("a later delivery of the message, or a change of its invisible duration, replaced it")
	case l.state() != StateInflight || !now.Before(l.Due) && !s.renew(l, now):
		return nil, invalidHandle("its invisible duration is over")
	}
	return l, nil
}

// repeated returns the handle that replaced h if that was done by a change of the
// invisible duration, and h otherwise. mu is held.
func (s *subscription) repeated(h handle.Receipt) handle.Receipt {
	if s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return h
	}
	if l := s.cursors[h.Place.Queue].leases[h.Place.Offset]; l != nil && l.Changed && l.Serial == h.Serial+1 {
		h.Serial = l.Serial
	}
	return h
}

// Ack marks deliveries as consumed, and returns an error for each, in their
// order, once that is on disk: 40013 for a handle that is not valid any more.
// If ctx ends while the disk is waited for, they may be consumed all the same,
// as MaybeStored says; so it is with every other settlement.
func (b *Broker) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	end, err := b.beginWith(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = withOp("AckMessage", err)
		}
		return errs
	}
	defer end()
	flights := make([]*store.Flight, len(ds))
	for i := 0; i < len(ds); {
		s, _, err := b.locate(ds[i])
		if err != nil {
			errs[i] = withOp("AckMessage", err)
			i++
			continue
		}
		i += s.ack(ds[i:], errs[i:], flights[i:])
	}
	for i, f := range flights {
		if errs[i] == nil {
			if err := f.WaitSyncedContext(ctx); err != nil {
				errs[i] = withOp("AckMessage", unsettled(ctx, err))
			}
		}
	}
	return errs
}

// ack acknowledges the deliveries at the beginning of ds that are of this
// subscription, and returns how many these are.
func (s *subscription) ack(ds []*tidegate.Delivery, errs []error, flights []*store.Flight) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	done := make([]*lease, 0, len(ds))
	n := 0
	for ; n < len(ds); n++ {
		other, h, err := s.broker.locate(ds[n])
		if err == nil && other != s {
			break
		}
		if err == nil {
			var l *lease
			if l, err = s.current(h, now); err == nil {
				s.finish(l, now)
				s.acked++
				done = append(done, l)
			}
		}
		errs[n] = withOp("AckMessage", err)
	}
	if len(done) > 0 {
		f := s.remove(done...)
		for i := range n {
			flights[i] = f
		}
	}
	return n
}

// Retry says that consuming failed. The message is delivered again after the
// given time, which counts from now. If a push consumer received it and address
// settings say anything about redelivery in its topic, it is delivered after the
// redelivery-delay instead, which is 0 by default. If it had its last attempt it is given up
// at once, for the reason if there is one. Retry returns what becomes of it when that is on disk. 40011 for a time that is negative, or
// above MaxInvisibleDuration and longer than every interval that the group's or the topic's settings have; 40013 if the handle is not
// valid any more.
func (b *Broker) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (transport.RetryResult, error) {
	if longest := b.longestRetry(d, after); after < 0 || after > longest {
		return transport.RetryResult{}, withOp("Retry", newError(tidegate.CodeIllegalInvisibleTime, "delay", "it is %v; give 0 to %v", after, longest))
	}
	out, err := b.settle(ctx, d, eventFail, func(l *lease, now time.Time) { l.Due = now.Add(after) }, reason)
	if err != nil {
		return transport.RetryResult{}, withOp("Retry", err)
	}
	return out.retryResult(), nil
}

// longestRetry returns what Retry takes: settings may have longer intervals
// than a message may be invisible, and clients are told these.
func (b *Broker) longestRetry(d *tidegate.Delivery, after time.Duration) time.Duration {
	longest := b.opts.MaxInvisibleDuration
	if after <= longest {
		return longest
	}
	if s, _, err := b.locate(d); err == nil {
		p := s.policy()
		longest = max(longest, slices.Max(p.ladder()), slices.Max(p.group.Ladder()))
	}
	return longest
}

// ChangeInvisibleDuration keeps the message invisible for another dur from
// now on and returns, when that is on disk, the handle that replaces d.Handle. A dur of 0 gives the
// message back: for a simple consumer that is a time-out; a push consumer,
// whose failures are told by Retry, has not handled it, and the attempt does
// not count. 40013 if the handle is not valid any more. Repeating a change with
// the handle that it replaced, since its answer was lost, does it again and returns the
// same handle.
func (b *Broker) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (string, error) {
	if dur < 0 || dur > b.opts.MaxInvisibleDuration {
		return "", withOp("ChangeInvisibleDuration", newError(tidegate.CodeIllegalInvisibleTime, "invisible duration",
			"it is %v; give 0 to %v", dur, b.opts.MaxInvisibleDuration))
	}
	h, _ := handle.ParseReceipt(d.Handle) // settle says if it is none
	e := eventChange
	if dur == 0 {
		e = eventGiveBack
	}
	_, err := b.settle(ctx, d, e, func(l *lease, now time.Time) {
		l.Due, l.Owner = now.Add(dur), ""
		h.Serial++ // and not the lease's: it may have this one already
		l.Serial, l.Changed = h.Serial, e == eventChange
		if dur == 0 && l.Push {
			l.Attempt--
		}
	}, "")
	if err != nil {
		return "", withOp("ChangeInvisibleDuration", err)
	}
	return h.String(), nil
}

// maxClaimedAttempt is how many attempts a consumer is believed to have made.
const maxClaimedAttempt = 1 << 20

// DeadLetter makes the message a dead letter of its group at once, and
// returns when that is on disk. Repeating it, or calling it for a message that
// the group is done with, does nothing. It may come after the invisible
// duration, as long as nobody else received the message.
func (b *Broker) DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) error {
	_, err := b.settle(ctx, d, eventDeadLetter, func(l *lease, _ time.Time) {
		// A consumer that retries by itself has counted further than we did.
		l.Attempt = max(l.Attempt, min(d.Attempt, maxClaimedAttempt))
	}, reason)
	return withOp("ForwardMessageToDeadLetterQueue", err)
}

// settle applies an event to the delivery that d names, and waits until that is on disk.
func (b *Broker) settle(ctx context.Context, d *tidegate.Delivery, e event, change func(*lease, time.Time), reason string) (settled, error) {
	end, err := b.beginWith(ctx)
	if err != nil {
		return settled{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return settled{}, err
	}
	return s.settle(ctx, h, e, change, reason)
}

// settle applies an event to the delivery that h names, and waits until that is
// on disk. change, called under the lock, sets what the event changes beside the state.
func (s *subscription) settle(ctx context.Context, h handle.Receipt, e event, change func(*lease, time.Time), reason string) (settled, error) {
	out, err := s.apply(h, e, change, reason)
	switch {
	case err != nil:
		return out, err
	case out.rest != nil:
		return out, s.broker.finish(ctx, out.rest)
	}
	if err := out.flight.WaitSyncedContext(ctx); err != nil {
		return out, unsettled(ctx, err)
	}
	return out, nil
}

// finish carries out a closing, whether ctx ends or not: what is begun is not
// left half done. Its caller has begun a call.
func (b *Broker) finish(ctx context.Context, c closing) error {
	done := make(chan error, 1)
	b.operating.Add(1)
	go func() {
		defer b.end()
		done <- c.end(b)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return unsettled(ctx, context.Cause(ctx))
	}
}

// unsettled is the error of a settlement whose wait for the disk ended with
// err, which is the cause of ctx or the store's.
func unsettled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause == nil || !errors.Is(err, cause) {
		return storeError(err)
	}
	return &tidegate.Error{MaybeStored: true, Err: err, Message: "the wait for the disk ended; the message may be settled all the same"}
}

var errDone = errors.New("done already")

// A closing is what remains to be done, without the lock, for a message that
// is given up: a dead letter to write, or a message group that is parked.
type closing interface {
	end(*Broker) error
}

// A settled is what an event made of a delivery.
type settled struct {
	flight *store.Flight // that the write is in, if rest is nil
	rest   closing       // nil: nothing
	to     State         // 0 if there was nothing left to do
	wait   time.Duration // of what waits: how long
}

func (o settled) retryResult() transport.RetryResult {
	switch o.to {
	case StateDeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}
	case StateParked:
		return transport.RetryResult{Fate: transport.FateParked}
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: o.wait}
}

func (s *subscription) apply(h handle.Receipt, e event, change func(*lease, time.Time), reason string) (settled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if e == eventChange {
		h = s.repeated(h)
	}
	l, err := s.current(h, now)
	if e == eventDeadLetter {
		l, err = s.forDeadLetter(h, l, err)
		if errors.Is(err, errDone) && l != nil {
			return settled{rest: repetition{l.dying}}, nil
		} else if errors.Is(err, errDone) {
			return settled{flight: s.broker.store.Groups.Add(func(*store.Batch) {}, nil)}, nil
		}
		if err == nil {
			change(l, now)
		}
	}
	if err != nil {
		return settled{}, err
	}
	if e == eventGiveBack {
		if e = eventTimeout; l.Push {
			e = eventRelease
		}
	}
	policy := s.policy()
	x := policy.exhaustion(e, l)
	to, ok := l.state().next(e, x, l.Push)
	if !ok {
		return settled{}, invalidHandle("the message is %s", l.state())
	}
	if from := l.state(); from == StateReady && to != from {
		heap.Remove(&l.cursor.ready, slices.Index(l.cursor.ready, l))
	} else if from == to && e == eventDeadLetter { // blocked: it waits for its retry already
		return settled{flight: s.save(l), to: to}, nil
	}
	if x == thenBlock && (e == eventFail || e == eventNegativeAck || e == eventTimeout || e == eventDeadLetter) {
		s.block(l)
	}
	if reason == "" && (to == StateParked || to == StateDeadLetter) {
		reason = fmt.Sprintf("consuming failed in delivery %d, the last that the group allows", l.Attempt)
	}
	switch to {
	case StateParked:
		return settled{rest: s.park(l, reason, now), to: to}, nil
	case StateDeadLetter:
		return settled{rest: s.dying(l, e, reason), to: to}, nil
	case StateCommit:
		s.finish(l, now)
		s.acked++
		return settled{flight: s.remove(l), to: to}, nil
	}
	if e == eventDeadLetter { // blocked: the request stands for a failure
		l.Due = now.Add(policy.interval(l.Attempt, s.draw(l)))
	} else {
		change(l, now)
	}
	if e == eventFail && l.Push && policy.overrides() {
		l.Due = now.Add(policy.interval(l.Attempt, s.draw(l)))
	}
	s.set(l, to)
	s.arm()
	if to == StateReady {
		s.wake(1, l.cursor.queue.number)
	}
	return settled{flight: s.save(l), to: to, wait: max(l.Due.Sub(now), 0)}, nil
}

// forDeadLetter loosens what current demands: official clients repeat the request until it
// succeeds, so it succeeds when there is nothing left to do, and may come
// late as long as nobody else received the message. With errDone, a lease is one that
// is being made a dead letter. mu is held.
func (s *subscription) forDeadLetter(h handle.Receipt, l *lease, err error) (*lease, error) {
	if err == nil || s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return l, err
	}
	c := s.cursors[h.Place.Queue]
	l = c.leases[h.Place.Offset]
	switch {
	case h.Place.Offset >= c.next:
		return nil, err // a power failure took back the delivery: it comes again
	case l == nil || l.state() == StateDeadLetter:
		return l, errDone
	case l.Serial != h.Serial:
		return nil, err
	case l.state() == StateParked: // nobody but RedriveParked moves it
		return nil, errDone
	}
	return l, nil
}

// Release gives back deliveries that did not reach a consumer: they are ready
// again at once, and the attempt does not count. Those that are not valid any more are
// left alone.
func (b *Broker) Release(_ context.Context, ds []*tidegate.Delivery) {
	if !b.begin() {
		return
	}
	defer b.end()
	var flights []*store.Flight
	for i := 0; i < len(ds); {
		s, h, err := b.locate(ds[i])
		if i++; err != nil {
			continue
		}
		grants := []grant{{handle: h}}
		for ; i < len(ds); i++ { // those of the same topic and group are written together
			other, h, err := b.locate(ds[i])
			if err != nil || other != s {
				break
			}
			grants = append(grants, grant{handle: h})
		}
		flights = append(flights, s.giveBack(grants))
	}
	for _, f := range flights {
		_ = f.WaitSynced() // a store that fails tells everybody else
	}
}

func (s *subscription) release(grants []grant) {
	_ = s.giveBack(grants).WaitSynced() // likewise
}

// giveBack makes deliveries ready again that are still valid, as if they had not been made.
func (s *subscription) giveBack(grants []grant) *store.Flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var changed []*lease
	for _, g := range grants {
		l, err := s.current(g.handle, now)
		if err != nil {
			continue
		}
		to, _ := l.state().next(eventRelease, attemptsLeft, l.Push)
		l.Attempt--
		l.Serial++
		l.Due = now
		s.set(l, to)
		s.wake(1, l.cursor.queue.number)
		changed = append(changed, l)
	}
	if len(changed) == 0 {
		return nil
	}
	return s.save(changed...)
}
