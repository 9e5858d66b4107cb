package held

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// find returns the message of a valid handle.
func (s *shelf) find(handle string, now time.Time) (*message, error) {
	m := s.handles[handle]
	switch {
	case s.closed:
		return nil, tidegate.ErrClosed
	case m == nil:
	case m.state == leased:
		return m, nil
	case m.state == settling:
		return nil, &tidegate.Error{Err: tidegate.ErrUnavailable, Message: "another settlement of this delivery is under way"}
	case m.state == lost:
		s.reopen(m.Link, now)
		return nil, &tidegate.Error{NotConnected: true, Err: m.Link.err, Message: "the connection that the message came from is lost"}
	}
	return nil, &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
}

// unlease ends the validity of the handle.
func (s *shelf) unlease(m *message) {
	delete(s.handles, m.handle)
	s.alarms.remove(&m.alarm)
	if m.attemptID == "" {
		return
	}
	if r := m.Link.receives[m.attemptID]; r != nil { // the link may have ended
		r.messages[m.received] = nil
		if r.leased--; r.leased == 0 {
			delete(m.Link.receives, m.attemptID)
		}
	}
	m.attemptID = ""
}

// Begin begins a settlement by the caller, which Finish ends.
func (s *shelf) Begin(handle string, now time.Time) (*message, error) {
	m, err := s.find(handle, now)
	if err == nil {
		m.set(settling)
		s.alarms.remove(&m.alarm)
	}
	return m, err
}

// Finish ends a settlement that Begin began. After an error the handle is valid until the end of
// its lease. With bury, Buried recognizes the handle until then.
func (s *shelf) Finish(m *message, err error, bury bool, now time.Time) {
	expired := !m.until.After(now)
	switch {
	case err == nil:
		ended := m.Link.ended
		s.unlease(m)
		if !ended {
			s.remove(m, now)
		}
		if bury && !expired && !s.closed {
			s.bury(m)
		}
	case s.closed:
	case m.Link.ended:
		s.lose(m)
	case expired:
		s.expire(m, now)
	default:
		m.set(leased)
		s.wakeAt(&m.alarm, m.until)
	}
}

// bury remembers the handle of a dead letter until the end of its lease.
func (s *shelf) bury(m *message) {
	m.state = buried
	m.Delivery, m.Native = nil, nil
	s.handles[m.handle] = m
	s.wakeAt(&m.alarm, m.until)
	if s.buried = append(s.buried, m); len(s.buried) > s.limits.Messages {
		oldest := s.buried[0]
		s.buried = slices.Delete(s.buried, 0, 1)
		if oldest.state == buried {
			s.alarms.remove(&oldest.alarm)
			delete(s.handles, oldest.handle)
			oldest.state = gone
		}
	}
}

// Buried reports whether the handle is the one of a dead letter that a caller created.
func (s *shelf) Buried(handle string) bool {
	m := s.handles[handle]
	return m != nil && m.state == buried
}

// Change moves the end of a lease and replaces the handle. A dur of 0 ends the lease.
func (s *shelf) Change(handle string, dur time.Duration, now time.Time) (string, error) {
	m, err := s.find(handle, now)
	switch {
	case err != nil:
		return "", err
	case dur <= 0:
		s.expire(m, now)
		return "", nil
	}
	delete(s.handles, m.handle)
	m.handle = s.newHandle()
	s.handles[m.handle] = m
	m.until = now.Add(dur)
	s.wakeAt(&m.alarm, m.until)
	return m.handle, nil
}

// Release ends a delivery that was not handled. The attempt of a push receive does not count.
func (s *shelf) Release(handle string, now time.Time) error {
	m, err := s.find(handle, now)
	switch {
	case err != nil:
		return err
	case m.push:
		s.unlease(m)
		s.putBack(m, now)
	default:
		s.expire(m, now)
	}
	return nil
}

// pause is the longest wait of a message that Snooze returns to the system. It bounds the rate of a
// group whose handlers postpone all messages.
const pause = time.Second

// Snooze postpones a message in this process, without a failed attempt. If half of Limits.Messages
// are postponed, it returns the message to the system after Pause at the latest instead. A message
// of a line always stays: the next ones of its message group would overtake it.
func (s *shelf) Snooze(handle string, dur time.Duration, now time.Time) error {
	m, err := s.find(handle, now)
	if err != nil {
		return err
	}
	s.unlease(m)
	if m.inLine || s.postponed < s.limits.Messages/2 {
		s.postpone(m, dur, now)
		return nil
	}
	m.set(leaving)
	m.leave = settlement{message: m, Outcome: released}
	s.wakeAt(&m.alarm, now.Add(min(dur, pause)))
	s.update(m.Link.Source, now)
	return nil
}

// NegativeAck ends a failed delivery, whatever the maximum of attempts: the message stays in this
// process for a time, and then the system delivers it again. A message of a line stays longer, until
// its next attempt.
func (s *shelf) NegativeAck(handle string, delay time.Duration, now time.Time) error {
	m, err := s.find(handle, now)
	if err != nil {
		return err
	}
	s.unlease(m)
	switch {
	case m.inLine:
		m.Delivery.Attempt++
		s.postpone(m, delay, now)
	case delay <= 0:
		s.settle(m, settlement{Outcome: redelivered})
	default:
		m.set(leaving)
		m.leave = settlement{message: m, Outcome: redelivered}
		s.wakeAt(&m.alarm, now.Add(delay))
	}
	s.update(m.Link.Source, now)
	return nil
}

// Retry ends a failed delivery. It returns a settlement that the caller carries out and ends with
// Finish, or none.
func (s *shelf) Retry(handle string, after time.Duration, reason string, now time.Time) (*settlement, error) {
	m, err := s.find(handle, now)
	if err != nil {
		return nil, err
	}
	st := &settlement{message: m, Outcome: retried, Delay: after, Reason: reason}
	switch {
	case m.last():
		st.Outcome, st.Delay = deadLettered, 0
	case m.inLine: // a retry by the system would come after the next messages of the group
		s.unlease(m)
		m.Delivery.Attempt++
		s.postpone(m, after, now)
		return nil, nil
	}
	m.set(settling)
	s.alarms.remove(&m.alarm)
	return st, nil
}

// last reports whether the message has no further attempt.
func (m *message) last() bool {
	limit := m.Link.maxAttempts
	return limit > 0 && m.Delivery.Attempt >= limit
}

// timedOut is the reason of dead letters whose last delivery was not settled.
const timedOut = "the invisible duration of the last delivery ended"

// expire ends a lease without a settlement.
func (s *shelf) expire(m *message, now time.Time) {
	s.unlease(m)
	switch {
	case m.last():
		s.settle(m, settlement{Outcome: deadLettered, Reason: timedOut})
	case m.inLine:
		m.Delivery.Attempt++
		s.putBack(m, now)
	default:
		m.Link.expected = now
		s.settle(m, settlement{Outcome: retried})
	}
	s.update(m.Link.Source, now)
}

// postpone makes a message ready after dur.
func (s *shelf) postpone(m *message, dur time.Duration, now time.Time) {
	if dur <= 0 {
		s.putBack(m, now)
		return
	}
	m.set(postponed)
	s.postponed++
	s.wakeAt(&m.alarm, now.Add(dur))
	s.update(m.Link.Source, now)
}

// putBack makes a message ready that was delivered or postponed, at its place.
func (s *shelf) putBack(m *message, now time.Time) {
	m.set(buffered)
	m.Link.ready.put(m)
	s.update(m.Link.Source, now)
}

// settle settles a message in the background.
func (s *shelf) settle(m *message, st settlement) {
	m.set(leaving)
	st.message = m
	m.leave = st
	s.out.Settle = append(s.out.Settle, st)
}

// Left ends a settlement in the background. One that failed is repeated while the link lasts.
func (s *shelf) Left(m *message, err error, now time.Time) {
	switch {
	case m.Link.ended:
	case err == nil:
		s.remove(m, now)
	default:
		m.failures++
		s.wakeAt(&m.alarm, now.Add(min(time.Second<<min(m.failures-1, 10), time.Minute)))
	}
}

// remove removes a message that the system has no more, or has back.
func (s *shelf) remove(m *message, now time.Time) {
	l := m.Link
	m.set(buffered)
	m.state = gone
	end := len(l.messages) - 1
	last := l.messages[end]
	l.messages[m.place-1], last.place = last, m.place
	l.messages[end] = nil
	l.messages = l.messages[:end]
	s.held--
	s.bytes -= m.size
	if g := m.Delivery.MessageGroup; m.inLine {
		if line := l.lines[g][1:]; len(line) > 0 {
			l.lines[g] = line
			l.ready.put(line[0])
		} else {
			delete(l.lines, g)
		}
	}
	s.update(l.Source, now)
	s.feed(now)
}

// feed asks for the messages of sources that the limits stopped.
func (s *shelf) feed(now time.Time) {
	list := s.starved
	s.starved = nil
	for _, src := range list {
		s.update(src, now)
	}
}

// Ack implements [transport.Settler] with one Link.Settle for each link.
func (t *Table) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	const op = "AckMessage"
	errs := make([]error, len(ds))
	batch := make([]settlement, 0, len(ds))
	which := make([]int, 0, len(ds)) // of ds
	now := t.lock()
	for i, d := range ds {
		err := context.Cause(ctx)
		var m *message
		if err == nil {
			m, err = t.shelf.Begin(d.Handle, now)
		}
		if err != nil {
			errs[i] = failure(op, d.Topic, err)
			continue
		}
		batch = append(batch, settlement{message: m, Outcome: accepted})
		which = append(which, i)
	}
	t.unlock(now)
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && batch[n].Link == batch[0].Link {
			n++
		}
		results := settle(ctx, batch[:n])
		now := t.lock()
		for i, s := range batch[:n] {
			err := errAt(results, i)
			t.shelf.Finish(s.message, err, false, now)
			if err != nil {
				errs[which[i]] = failure(op, ds[which[i]].Topic, err)
			}
		}
		t.unlock(now)
		batch, which = batch[n:], which[n:]
	}
	return errs
}

// Settle implements [transport.Settler]. In a FIFO group a message that is to come again waits in
// this process. A Retry must have a delay that is not negative; [transport.BySchedule] fails with
// CodeNotImplemented.
func (t *Table) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	switch v.Kind {
	case transport.Release:
		return transport.RetryResult{}, t.release(ctx, d)
	case transport.Retry:
		return t.retry(ctx, d, v.Delay, v.Reason)
	case transport.DeadLetter:
		return t.deadLetter(ctx, d, v.Reason)
	case transport.Snooze:
		return transport.RetryResult{}, t.snooze(ctx, d, v.Delay)
	case transport.NegativeAck:
		if t.opts.NegativeAcks {
			return t.negativeAck(ctx, d, v.Delay)
		}
	}
	return transport.RetryResult{}, v.Unsupported(d)
}

// retry carries out a Retry. In a FIFO group the message waits in this process;
// otherwise its outcome is [Retried]. In the last attempt it becomes a dead letter. The delay must
// not be negative; [transport.BySchedule] fails with CodeNotImplemented. The result is zero.
func (t *Table) retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (transport.RetryResult, error) {
	const op = "RetryMessage"
	none := transport.RetryResult{}
	if err := t.refused(ctx, after); err != nil {
		return none, failure(op, d.Topic, err)
	}
	if reason == "" {
		reason = "the last attempt failed"
	}
	now := t.lock()
	s, err := t.shelf.Retry(d.Handle, after, reason, now)
	t.unlock(now)
	if err == nil && s != nil {
		err = t.finish(ctx, *s, false)
	}
	if err != nil {
		return none, failure(op, d.Topic, err)
	}
	return none, nil
}

// deadLetter carries out a DeadLetter. A second call for the same delivery succeeds and does
// nothing until the invisible duration of the delivery is over.
func (t *Table) deadLetter(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error) {
	const op = "ForwardMessageToDeadLetterQueue"
	none := transport.RetryResult{}
	if err := context.Cause(ctx); err != nil {
		return none, failure(op, d.Topic, err)
	}
	if reason == "" {
		reason = "the consumer rejected the message"
	}
	now := t.lock()
	m, err := t.shelf.Begin(d.Handle, now)
	again := t.shelf.Buried(d.Handle)
	t.unlock(now)
	switch {
	case again:
		return none, nil
	case err == nil:
		err = t.finish(ctx, settlement{message: m, Outcome: deadLettered, Reason: reason}, true)
	}
	if err != nil {
		return none, failure(op, d.Topic, err)
	}
	return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
}

// release carries out a Release without a request. A delivery of a push receive stays in
// this process, the first for the next receive; another one is [Retried].
func (t *Table) release(ctx context.Context, d *tidegate.Delivery) error {
	const op = "ChangeInvisibleDuration"
	if err := t.refused(ctx, 0); err != nil {
		return failure(op, d.Topic, err)
	}
	now := t.lock()
	err := t.shelf.Release(d.Handle, now)
	t.unlock(now)
	if err != nil {
		return failure(op, d.Topic, err)
	}
	return nil
}

// negativeAck carries out a NegativeAck without a request: the message waits for dur in this process
// before its outcome is [Redelivered], however often it was delivered.
func (t *Table) negativeAck(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (transport.RetryResult, error) {
	const op = "NegativeAck"
	none := transport.RetryResult{}
	if err := t.refused(ctx, dur); err != nil {
		return none, failure(op, d.Topic, err)
	}
	now := t.lock()
	err := t.shelf.NegativeAck(d.Handle, dur, now)
	t.unlock(now)
	if err != nil {
		return none, failure(op, d.Topic, err)
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: dur}, nil
}

// snooze carries out a Snooze without a request: the message waits in this process. If
// half of Options.MaxHeld messages wait already, it returns to the system instead, a second later
// at the latest: [Released], so that the system delivers it again earlier than after dur, without a
// failed attempt. In a FIFO group a message always waits here, to keep the order.
func (t *Table) snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	const op = "SnoozeMessage"
	if err := t.refused(ctx, dur); err != nil {
		return failure(op, d.Topic, err)
	}
	now := t.lock()
	err := t.shelf.Snooze(d.Handle, dur, now)
	t.unlock(now)
	if err != nil {
		return failure(op, d.Topic, err)
	}
	return nil
}

// Extend implements [transport.Settler] without a request. A dur of 0 ends the
// lease at once.
func (t *Table) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (string, error) {
	const op = "ChangeInvisibleDuration"
	if err := t.refused(ctx, dur); err != nil {
		return "", failure(op, d.Topic, err)
	}
	now := t.lock()
	handle, err := t.shelf.Change(d.Handle, dur, now)
	t.unlock(now)
	if err != nil {
		return "", failure(op, d.Topic, err)
	}
	return handle, nil
}

// finish carries out a settlement that has begun.
func (t *Table) finish(ctx context.Context, s settlement, bury bool) error {
	err := errAt(settle(ctx, []settlement{s}), 0)
	now := t.lock()
	t.shelf.Finish(s.message, err, bury, now)
	t.unlock(now)
	return err
}

// refused returns why a call with this ctx and duration does nothing.
func (*Table) refused(ctx context.Context, dur time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case dur == transport.BySchedule:
		return &tidegate.Error{Code: tidegate.CodeNotImplemented, Message: "the system has no retry schedule"}
	case dur < 0:
		return &tidegate.Error{Code: protocol.CodeIllegalInvisibleTime, Message: dur.String() + " is negative"}
	}
	return nil
}
