package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// deliver returns the deliveries of a receive unless ctx has ended. A first delivery does not wait
// for the disk: a crash can take it back, as if it had not happened. A later delivery is on disk
// first, so that attempts never decrease. If ctx ends during that wait, the deliveries are
// released.
func (s *subscription) deliver(ctx context.Context, p *Poll, grants []consume.Grant, write *store.PendingWrite) ([]*tidegate.Delivery, error) {
	ds, admitted, err := s.deliveries(ctx, p, grants)
	if refused := grants[admitted:]; err == nil && len(refused) > 0 {
		s.releaseGrants(refused)
		grants = grants[:admitted]
	}
	wait := write.WaitWritten
	if s.Topic().Address().Persist || slices.ContainsFunc(grants, func(g consume.Grant) bool { return g.Attempt > 1 }) {
		wait = write.WaitContext
	}
	werr := wait(ctx)
	if ctx.Err() != nil {
		s.releaseGrants(grants)
		return nil, context.Cause(ctx)
	}
	if werr != nil {
		return nil, fail.Store(errors.Join(werr, err))
	}
	if errors.Is(err, errUnprepared) { // the attempt counts, or the messages would come back for ever
		return nil, err
	}
	if err != nil {
		s.releaseGrants(grants)
		return nil, err
	}
	if p.AttemptID != "" {
		s.locked(func() { s.progress.Remember(p.AttemptID, grants, time.Now()) })
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
func (s *subscription) deliveries(ctx context.Context, p *Poll, grants []consume.Grant) (ds []*tidegate.Delivery, admitted int, err error) {
	ds = make([]*tidegate.Delivery, 0, len(grants))
	all := make([]tidegate.Delivery, len(grants))
	expiry, now := s.Topic().Address().Expiry, time.Now()
	var old, unwanted []handle.Receipt
	inHand := int64(0)
	reader := s.broker.store.Reader(s.Topic().ID())
	defer reader.Close()
	for i := range grants {
		g := &grants[i]
		inHand += g.Lease.Size
		if err := p.admit(inHand); err != nil {
			if i == 0 {
				return nil, 0, err
			}
			break
		}
		admitted++
		if g.Message == nil {
			m, ok, err := reader.Get(g.Receipt.Place)
			if store.IsDamage(err) {
				s.Lost(g.Receipt.Place, g.Receipt.Place.Offset+1, err)
			} else if err != nil {
				return nil, admitted, fail.Store(err)
			}
			if !ok || !p.wants(&m) { // damaged or removed meanwhile, or another receive had it before
				unwanted = append(unwanted, g.Receipt)
				continue
			}
			g.Message = &m
		}
		if expiry > 0 && now.Sub(g.Message.StoredAt) >= expiry {
			old = append(old, g.Receipt)
			continue
		}
		s.fill(&all[i], g)
		if p.retry {
			all[i].Topic = deadletter.RealTopic(g.Message, s.Topic().Name())
		}
		ds = append(ds, &all[i])
	}
	reader.Close() // the wait for the disk that follows would keep obsolete files
	s.skip(unwanted)
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

func (s *subscription) fill(d *tidegate.Delivery, g *consume.Grant) {
	*d = tidegate.Delivery{
		Message: g.Message.Message, ConsumerGroup: s.Group().Name(), Attempt: g.Attempt, Handle: g.Receipt.String(),
		Endpoint: s.broker.name, Queue: int(g.Receipt.Place.Queue), Offset: g.Receipt.Place.Offset,
		BornAt: g.Message.BornAt, BornHost: g.Message.BornHost, StoredAt: g.Message.StoredAt, StoreHost: s.broker.host,
		InvisibleUntil: g.Due,
	}
	d.Topic = s.Topic().Name()
	if id := d.Properties[tidegate.PropertyTransactionID]; id != "" {
		d.TransactionID = id
		d.Properties = maps.Clone(d.Properties) // the store's message keeps it
		delete(d.Properties, tidegate.PropertyTransactionID)
	}
}

// skip ends deliveries that are not returned: the receive does not want their messages, or they are
// not there any more. The group is done with them, and has not acknowledged them. After a power
// failure that takes this back they are skipped again.
func (s *subscription) skip(handles []handle.Receipt) {
	if len(handles) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Skip(h, now)
	}
	s.apply(now)
}

// expireMessages ends deliveries that are not returned because their messages are older than
// expiry-delay. It sends the messages to the expiry-address, or removes them, and returns when that
// is on disk, or when ctx ends. Handles that are not valid any more change nothing.
func (s *subscription) expireMessages(ctx context.Context, handles []handle.Receipt) error {
	if len(handles) == 0 {
		return nil
	}
	reason := fmt.Sprintf("it was not delivered within expiry-delay, %v", s.Topic().Address().Expiry)
	var expired []*leaving
	s.locked(func() {
		if s.gone {
			return
		}
		now := time.Now()
		for _, h := range handles {
			s.progress.ExpireMessage(h, reason, now)
		}
		expired = s.apply(now).leaving
	})
	return s.broker.carryOut(ctx, func() error { return errors.Join(s.broker.depart(expired)...) })
}
