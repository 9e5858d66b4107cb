package subscription

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
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// deliver returns the deliveries of a receive unless ctx has ended. A first delivery does not wait
// for the disk: after a crash it may not have happened. A later delivery is on disk first, so that
// attempts never decrease. If ctx ends during that wait, deliver releases the deliveries.
func (s *Subscription) deliver(ctx context.Context, p *Request, grants []consume.Grant, write *store.PendingWrite) ([]*tidegate.Delivery, error) {
	ds, admitted, err := s.deliveries(ctx, p, grants)
	if refused := grants[admitted:]; err == nil && len(refused) > 0 {
		s.releaseGrants(refused)
		grants = grants[:admitted]
	}
	wait := write.WaitWritten
	if s.Policy().Address.Persist || slices.ContainsFunc(grants, func(g consume.Grant) bool { return g.Attempt > 1 }) {
		wait = write.WaitContext
	}
	werr := wait(ctx)
	if ctx.Err() != nil {
		s.releaseGrants(grants)
		return nil, context.Cause(ctx)
	}
	if werr != nil {
		return nil, refusal.Store(errors.Join(werr, err))
	}
	if errors.Is(err, errUnprepared) { // the attempt counts, or the messages would be delivered without end
		return nil, err
	}
	if err != nil {
		s.releaseGrants(grants)
		return nil, err
	}
	if p.AttemptID != "" {
		s.Update(func(to *consume.Progress) { to.Remember(p.AttemptID, grants, time.Now()) })
	}
	return ds, nil
}

// countDeliveries counts deliveries that a receive returns. Messages that expired, were filtered
// out or were returned to the queue before are no deliveries.
func (s *Subscription) countDeliveries(ds []*tidegate.Delivery) {
	if len(ds) == 0 {
		return
	}
	defer s.env.Activity.Note()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		s.attempts[attemptClass(d.Attempt)]++
		if d.Attempt > 1 {
			s.redelivered++
		}
	}
}

// deliveries reads the messages that were not read yet, and returns how many of the grants the
// request admitted. If it admits none, the error is the reason.
func (s *Subscription) deliveries(ctx context.Context, p *Request, grants []consume.Grant) (ds []*tidegate.Delivery, admitted int, err error) {
	ds = make([]*tidegate.Delivery, 0, len(grants))
	all := make([]tidegate.Delivery, len(grants))
	expiry, clock := s.Policy().Address.Expiry, wallclock.Verdict{}
	if expiry > 0 {
		clock = s.env.Clock.Look()
	}
	var old, unwanted []handle.Receipt
	inHand := int64(0)
	reader := s.env.Store.Reader(s.Topic().ID())
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
				return nil, admitted, refusal.Store(err)
			}
			if !ok || !p.wants(&m) { // corrupt or removed, or this filter does not match it
				unwanted = append(unwanted, g.Receipt)
				continue
			}
			g.Message = &m
		}
		if expiry > 0 && clock.Now.Sub(g.Message.StoredAt) >= expiry {
			old = append(old, g.Receipt)
			continue
		}
		s.fill(&all[i], g)
		if p.retry {
			all[i].Topic = deadletter.RealTopic(g.Message, s.Topic().Name())
		}
		ds = append(ds, &all[i])
	}
	reader.Close() // before the wait for the disk, because it keeps obsolete files
	s.skip(unwanted)
	if clock.Distrusted {
		s.postpone(old, clock.Until)
		old = nil
	}
	if err := s.expireMessages(ctx, old); err != nil {
		return nil, admitted, err
	}
	if p.Encoder != nil && len(ds) > 0 {
		if err := prepare(p, ds); err != nil {
			return nil, admitted, err
		}
	}
	return ds, admitted, nil
}

// errUnprepared is the error of a receive whose Encoder panicked.
var errUnprepared = errors.New("encoding the response panicked")

// prepare calls the Encoder. If that panics it returns an error: a panic over the content of a
// message must not break the broker.
func prepare(p *Request, ds []*tidegate.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: fmt.Sprint(v), Err: errUnprepared}
		}
	}()
	p.Encoder.Prepare(ds)
	return nil
}

func (s *Subscription) fill(d *tidegate.Delivery, g *consume.Grant) {
	*d = tidegate.Delivery{
		Message: g.Message.Message, ConsumerGroup: s.Group().Name(), Attempt: g.Attempt, Handle: g.Receipt.String(),
		Endpoint: s.env.Endpoint, Queue: int(g.Receipt.Place.Queue), Offset: g.Receipt.Place.Offset,
		BornAt: g.Message.BornAt, BornHost: g.Message.BornHost, StoredAt: g.Message.StoredAt, StoreHost: s.env.Host,
		InvisibleUntil: g.Due,
	}
	d.Topic = s.Topic().Name()
	if id := d.Properties[protocol.PropertyTransactionID]; id != "" {
		d.TransactionID = id
		d.Properties = maps.Clone(d.Properties) // because the message of the store keeps the property
		delete(d.Properties, protocol.PropertyTransactionID)
	}
}

// skip ends deliveries that are not returned, because the filter does not match their messages, or
// because these do not exist any more. The group has finished the messages without acknowledging
// them. A power failure can lose this; then the messages are skipped again.
func (s *Subscription) skip(handles []handle.Receipt) {
	if len(handles) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Skip(h, now)
	}
	s.apply(now)
}

// postpone ends deliveries that are not returned because their messages are older than expiry-delay
// by a wall clock that is not trusted. The messages stay until the time is accepted.
func (s *Subscription) postpone(handles []handle.Receipt, until time.Time) {
	if len(handles) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Postpone(h, until, now)
	}
	s.apply(now)
}

// expireMessages ends deliveries that are not returned because their messages are older than
// expiry-delay. The messages leave for the expiry-address, or are removed. It returns when this is
// on disk, or when ctx ends. Handles that are not valid any more change nothing.
func (s *Subscription) expireMessages(ctx context.Context, handles []handle.Receipt) error {
	if len(handles) == 0 {
		return nil
	}
	reason := fmt.Sprintf("not delivered within expiry-delay (%v)", s.Policy().Address.Expiry)
	expired := s.expireHandles(handles, reason)
	return s.env.CarryOut(ctx, func() error { return errors.Join(s.writeDepartures(expired)...) })
}

func (s *Subscription) expireHandles(handles []handle.Receipt, reason string) []*Departure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.ExpireMessage(h, reason, now)
	}
	return s.apply(now).leaving
}
