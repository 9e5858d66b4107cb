package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// handOut returns deliveries unless ctx has ended. A first delivery does not wait for the disk: a
// crash can take it back, as if it had not happened. A later delivery is on disk first, so that
// attempts never decrease. If ctx ends during that wait, the deliveries are released.
func (s *subscription) handOut(ctx context.Context, p *Poll, grants []grant, flight *store.Flight) ([]*tidegate.Delivery, error) {
	ds, admitted, err := s.deliveries(ctx, p, grants)
	if refused := grants[admitted:]; err == nil && len(refused) > 0 {
		s.giveBack(refused)
		grants = grants[:admitted]
	}
	wait := flight.WaitWritten
	if s.topic.address.Load().persist || slices.ContainsFunc(grants, func(g grant) bool { return g.attempt > 1 }) {
		wait = flight.WaitContext
	}
	werr := wait(ctx)
	if ctx.Err() != nil {
		s.giveBack(grants)
		return nil, context.Cause(ctx)
	}
	if werr != nil {
		return nil, storeError(errors.Join(werr, err))
	}
	if errors.Is(err, errUnprepared) { // the attempt counts, or the messages would come back for ever
		return nil, err
	}
	if err != nil {
		s.giveBack(grants)
		return nil, err
	}
	if p.AttemptID != "" {
		s.remember(p.AttemptID, grants)
	}
	return ds, nil
}

// countDeliveries counts deliveries that a receive returns. Messages that expired, were filtered
// out or were returned to the queue before are no deliveries.
func (s *subscription) countDeliveries(ds []*tidegate.Delivery) {
	if len(ds) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		s.attempts[attemptClass(d.Attempt)]++
		if d.Attempt > 1 {
			s.redelivered++
		}
	}
}

// deliveries reads what was not read yet, and returns how many of the grants the poll admitted:
// where it admits none the error is the reason.
func (s *subscription) deliveries(ctx context.Context, p *Poll, grants []grant) (ds []*tidegate.Delivery, admitted int, err error) {
	ds = make([]*tidegate.Delivery, 0, len(grants))
	all := make([]tidegate.Delivery, len(grants))
	expiry, now := s.topic.address.Load().expiry, time.Now()
	var old, passed []handle.Receipt
	kept := int64(0)
	for i := range grants {
		g := &grants[i]
		kept += g.lease.Size
		if err := p.admit(kept); err != nil {
			if i == 0 {
				return nil, 0, err
			}
			break
		}
		admitted++
		if g.message == nil {
			m, ok, err := s.broker.store.Get(g.handle.Place)
			if store.IsDamage(err) {
				s.lost(g.handle.Place, g.handle.Place.Offset+1, err)
			} else if err != nil {
				return nil, admitted, storeError(err)
			}
			if !ok || !p.wants(&m) { // damaged or removed meanwhile, or another receive had it before
				passed = append(passed, g.handle)
				continue
			}
			g.message = &m
		}
		if expiry > 0 && now.Sub(g.message.StoredAt) >= expiry {
			old = append(old, g.handle)
			continue
		}
		s.fill(&all[i], g)
		if p.retry {
			all[i].Topic = realTopic(g.message, s.topic.name)
		}
		ds = append(ds, &all[i])
	}
	s.passOver(passed)
	if err := s.expireMessages(ctx, old); err != nil {
		return nil, admitted, err
	}
	if p.Prepare != nil && len(ds) > 0 {
		if err := prepare(p, ds); err != nil {
			return nil, admitted, err
		}
	}
	return ds, admitted, nil
}

// errUnprepared says that an answer could not be prepared for what is in its messages.
var errUnprepared = errors.New("preparing the answer panicked")

// prepare calls Poll.Prepare, which is not the broker's: a message that has it panic
// must not have the broker refuse everything.
func prepare(p *Poll, ds []*tidegate.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: fmt.Sprint(v), Err: errUnprepared}
		}
	}()
	p.Prepare(ds)
	return nil
}

func (s *subscription) fill(d *tidegate.Delivery, g *grant) {
	*d = tidegate.Delivery{
		Message: g.message.Message, ConsumerGroup: s.group.name, Attempt: g.attempt, Handle: g.handle.String(),
		Endpoint: s.broker.name, Queue: int(g.handle.Place.Queue), Offset: g.handle.Place.Offset,
		BornAt: g.message.BornAt, BornHost: g.message.BornHost, StoredAt: g.message.StoredAt, StoreHost: s.broker.host,
		InvisibleUntil: g.due,
	}
	d.Topic = s.topic.name
	if id := d.Properties[tidegate.PropertyTransactionID]; id != "" {
		d.TransactionID = id
		d.Properties = maps.Clone(d.Properties) // the store's message keeps it
		delete(d.Properties, tidegate.PropertyTransactionID)
	}
}

// passOver ends deliveries that are not handed out: the receive does not want their messages, or
// they are not there any more. The group is done with them, and has not acknowledged them. After a
// power failure that takes this back they are passed over again.
func (s *subscription) passOver(handles []handle.Receipt) {
	if len(handles) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var done []*lease
	for _, h := range handles {
		if l, err := s.current(h, now); err == nil {
			s.finish(l, now)
			done = append(done, l)
		}
	}
	if len(done) > 0 {
		s.broker.store.Groups.AddLazy(func(w *store.Batch) {
			for _, l := range done {
				w.DeleteLease(s.group.id, s.place(l))
			}
		})
	}
}

// expireMessages takes deliveries that are not handed out, because their messages are older than
// expiry-delay, to the expiry-address, or removes them, and returns when that is on disk, or when
// ctx ends. Those that are not valid any more are left alone.
func (s *subscription) expireMessages(ctx context.Context, handles []handle.Receipt) error {
	if len(handles) == 0 {
		return nil
	}
	p := s.topic.address.Load()
	leaving := make([]*deadLetter, 0, len(handles))
	s.locked(func() {
		now := time.Now()
		for _, h := range handles {
			l, err := s.current(h, now)
			if err != nil {
				continue
			}
			d := s.leaving(l, fmt.Sprintf("it was not delivered within expiry-delay, %v", p.expiry))
			d.expired = true
			if p.expiryAddress != "" && p.expiryAddress != s.topic.name {
				d.topics = []string{p.expiryAddress}
			}
			leaving = append(leaving, d)
		}
	})
	return s.broker.finish(ctx, deadLetters(leaving))
}
