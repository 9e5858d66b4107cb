package broker

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxReceive is the largest batch of one receive (RocketMQ's proxy: 32).
	maxReceive = 32

	// maxReceiveBytes bounds the bodies of one receive beyond the first.
	maxReceiveBytes = 16 << 20

	// maxChunk is how many messages are read at a time while none of them can
	// be delivered, and maxPassed about how many before a receive looks whether
	// it should end.
	maxChunk  = 256
	maxPassed = 4096

	// maxReplays is how many attempt IDs a subscription remembers.
	maxReplays = 1024
)

// A Poll is a receive with what a server knows of the client.
type Poll struct {
	transport.ReceiveRequest

	// Owner, if not empty, is a client whose signs of life (Broker.Touch) keep
	// what it received invisible for others, in place of InvisibleDuration: for a
	// minute after the last sign, for 3 hours in all.
	Owner string

	// Prepare, if not nil, is called with the deliveries while their attempts are
	// being written, to save time: what it makes of them must be thrown away
	// unless Poll then returns them without an error. It must not wait or call the broker.
	Prepare func([]*tidegate.Delivery)
}

// A grant is one delivery about to be handed out.
type grant struct {
	lease   *lease
	handle  handle
	attempt int
	due     time.Time
	message *store.Message // nil: not read yet
}

// Receive is [Broker.Poll] without an owner.
func (b *Broker) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return b.Poll(ctx, Poll{ReceiveRequest: r})
}

// Poll receives up to p.Max messages, at most 32, and waits for the first one
// up to p.Wait. It returns none, and no error, if there was none. The attempt
// number of every delivery is written before Poll returns it. A group that
// does not exist is made; it begins with the oldest message. Max, Queue and
// Wait below zero, and an invisible duration out of bounds (40011), are
// refused. If ctx ends, Poll returns its cause and takes no message with it.
func (b *Broker) Poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	ds, err := b.poll(ctx, p)
	return ds, withOp("ReceiveMessage", err)
}

func (b *Broker) poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	if !b.begin() {
		return nil, closedError()
	}
	defer b.end()
	match, err := b.checkPoll(&p)
	if err != nil {
		return nil, err
	}
	if err := b.store.Broken(); err != nil {
		return nil, storeError(err)
	}
	s, err := b.subscribe(ctx, p.Group, p.Topic)
	if err != nil {
		return nil, err
	}
	if p.Queue >= len(*s.topic.queues.Load()) {
		return nil, nil // RocketMQ: nothing is there
	}
	if p.Owner != "" {
		b.Touch(p.Owner)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if grants := s.replay(&p); grants != nil {
		return s.deliveries(&p, grants)
	}
	var timeout <-chan time.Time
	if p.Wait > 0 {
		t := time.NewTimer(p.Wait)
		defer t.Stop()
		timeout = t.C
	}
	for last := false; ; {
		grants, flight, w, err := s.take(&p, match)
		if len(grants) > 0 {
			return s.handOut(ctx, &p, grants, flight)
		}
		if err != nil {
			return nil, err
		}
		if w != nil && p.Wait <= 0 || last {
			s.leave(w)
			return nil, nil
		}
		if last, err = b.await(ctx, w, timeout); last || err != nil {
			s.leave(w)
		}
		if err != nil {
			return nil, err
		}
		if last {
			s.expire() // what is due in this very moment is looked at once more
		}
	}
}

// await returns when there may be something for a receive, at once if w is
// nil, or with late set when its time is over.
func (b *Broker) await(ctx context.Context, w *waiter, timeout <-chan time.Time) (late bool, err error) {
	woken := alreadyWoken
	if w != nil {
		woken = w.woken
	}
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, closedError()
	case <-b.store.Failed():
		return false, storeError(b.store.Broken())
	default:
	}
	select {
	case <-woken:
		return false, nil
	case <-timeout:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, closedError()
	case <-b.store.Failed():
		return false, storeError(b.store.Broken())
	}
}

// alreadyWoken is what a receive waits for that has more to look at.
var alreadyWoken = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (b *Broker) checkPoll(p *Poll) (*filter.Filter, error) {
	if err := tidegate.ValidateGroup(p.Group); err != nil {
		return nil, err
	}
	if p.Max == 0 {
		p.Max = 1
	}
	switch {
	case p.Max < 0:
		return nil, newError(tidegate.CodeBadRequest, "batch size", "it is %d; give 1 to %d", p.Max, maxReceive)
	case p.Queue < transport.AnyQueue:
		return nil, newError(tidegate.CodeBadRequest, "queue", "it is %d; give a queue's number, or -1 for any", p.Queue)
	case p.Wait < 0:
		return nil, newError(tidegate.CodeIllegalPollingTime, "wait", "it is %v; it may not be negative", p.Wait)
	}
	p.Max = min(p.Max, maxReceive)
	if p.Owner != "" {
		p.InvisibleDuration = ownedLease
	} else if d := p.InvisibleDuration; d < b.opts.MinInvisibleDuration || d > b.opts.MaxInvisibleDuration {
		return nil, newError(tidegate.CodeIllegalInvisibleTime, "invisible duration", "it is %v; give %v to %v", d,
			b.opts.MinInvisibleDuration, b.opts.MaxInvisibleDuration)
	}
	return compileFilter(p.Filter)
}

// take reserves messages for a receive: those due again first, then new ones.
// If there are none it returns a waiter, already in line, or neither if it
// passed messages over and should be called again.
func (s *subscription) take(p *Poll, match *filter.Filter) (grants []grant, flight *store.Flight, w *waiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, nil, nil, s.goneError()
	}
	budget := int64(maxReceiveBytes)
	grants, flight = s.takeReady(nil, s.readyShare(p), p, &budget)
	passed, chunk := 0, 0
	for len(grants) < p.Max && budget > 0 && passed < maxPassed {
		c := s.claim(p.Queue)
		if c == nil {
			break
		}
		from, to := c.next, c.queue.end.Load()
		room := p.Max - len(grants)
		chunk = max(chunk, room)
		s.mu.Unlock()
		ms, offsets, rerr := s.read(c, from, to, chunk, budget)
		s.mu.Lock()
		c.claimed = false
		if rerr != nil || s.gone {
			s.dropAhead(c)
			if err = s.goneError(); rerr != nil {
				err = storeError(rerr)
			}
			break
		}
		before := len(grants)
		grants, flight = s.admit(grants, c, to, ms, offsets, room, p, match)
		passed += max(1, len(ms))
		for i := range grants[before:] {
			budget -= int64(len(grants[before+i].message.Body))
		}
		if chunk = min(2*chunk, maxChunk); len(grants) > before {
			chunk = 0
		}
		s.wakeRest()
	}
	if err == nil {
		if more, f := s.takeReady(grants, p.Max, p, &budget); f != nil {
			grants, flight = more, f
		}
	}
	s.arm()
	if len(grants) > 0 || err != nil {
		s.wakeRest()
	} else if passed == 0 {
		w = &waiter{queue: p.Queue, woken: make(chan struct{})}
		s.waiters = append(s.waiters, w)
	}
	return grants, flight, w, err
}

// readyShare returns how many of the messages of a receive may be such that
// are due again, or whose turn has come: all, unless there are new ones, which
// then get a quarter, so that retries never keep them waiting for ever. mu is held.
func (s *subscription) readyShare(p *Poll) int {
	if s.counts[StateReady] == 0 || !slices.ContainsFunc(s.cursors, func(c *cursor) bool { return s.claimable(c, p.Queue) }) {
		return p.Max
	}
	s.shares++
	if p.Max < 4 && s.shares%4 == 0 {
		return 0
	}
	return p.Max - p.Max/4
}

// takeReady delivers, beside grants, up to limit messages in all that are due
// again, or whose turn has come, and writes that. mu is held.
func (s *subscription) takeReady(grants []grant, limit int, p *Poll, budget *int64) ([]grant, *store.Flight) {
	if s.counts[StateReady] == 0 {
		return grants, nil
	}
	now := time.Now()
	var ls []*lease
	s.readyTurn++
	for i := range s.cursors {
		c := s.cursors[(s.readyTurn+i)%len(s.cursors)]
		if p.Queue >= 0 && int(c.queue.number) != p.Queue {
			continue
		}
		for len(c.ready) > 0 && len(grants) < limit && *budget > 0 {
			l := heap.Pop(&c.ready).(*lease)
			*budget -= l.Size
			ls = append(ls, l)
			grants = append(grants, s.deliver(l, p, now))
		}
	}
	if len(ls) == 0 {
		return grants, nil
	}
	return grants, s.save(nil, ls...)
}

// claimable reports whether a receive from queue can read new messages there. mu is held.
func (s *subscription) claimable(c *cursor, queue int) bool {
	return (queue < 0 || int(c.queue.number) == queue) && !c.claimed && c.next < c.queue.end.Load() && s.counts[stateHeld] < maxHeld
}

// claim chooses a queue with new messages that no other receive reads. mu is held.
func (s *subscription) claim(queue int) *cursor {
	for i := range s.cursors {
		c := s.cursors[(s.turn+i)%len(s.cursors)]
		if !s.claimable(c, queue) {
			continue
		}
		s.turn = (s.turn + i + 1) % len(s.cursors)
		c.claimed = true
		return c
	}
	return nil
}

// admit moves a cursor over messages that were read: those that match are
// delivered, beside grants, or held until it is their turn. It stops when it has delivered
// room messages. mu is held.
func (s *subscription) admit(grants []grant, c *cursor, to int64, ms []store.Message, offsets []int64, room int, p *Poll, match *filter.Filter) ([]grant, *store.Flight) {
	now := time.Now()
	fifo := s.group.config.Load().FIFO
	grants = slices.Grow(grants, min(room, len(ms)))
	full := len(grants) + room
	ls := make([]*lease, 0, len(ms))
	if len(ms) == 0 {
		s.done(to-c.next, 0, now) // deleted meanwhile
		c.next = to
	}
	for i := range ms {
		m := &ms[i]
		if len(grants) == full {
			break
		}
		if skipped := offsets[i] - c.next; skipped > 0 {
			s.done(skipped, 0, now)
		}
		c.next, c.bytes = offsets[i]+1, m.Cumulative
		if !match.Match(m.Tag, m.Properties) {
			s.done(1, int64(len(m.Body)), now)
			continue
		}
		l := &lease{cursor: c, offset: offsets[i], timer: -1}
		l.Size, l.Serial = int64(len(m.Body)), uint32(now.UnixMicro())
		c.leases[l.offset] = l
		ls = append(ls, l)
		if fifo && m.MessageGroup != "" {
			l.Group = m.MessageGroup
			if mg := s.fifo[l.Group]; mg != nil {
				mg.held = append(mg.held, l)
				s.set(l, stateHeld)
				continue
			}
			s.fifo[l.Group] = &messageGroup{head: l}
		}
		l.State = uint8(StateReady)
		s.counts[StateReady]++
		g := s.deliver(l, p, now)
		g.message = m
		grants = append(grants, g)
	}
	return grants, s.save(c, ls...)
}

// deliver makes one delivery of a message that is ready. mu is held.
func (s *subscription) deliver(l *lease, p *Poll, now time.Time) grant {
	to, _ := l.state().next(eventDeliver, false, p.Push)
	l.Attempt++
	l.Serial++
	l.Push, l.Owner = p.Push, p.Owner
	l.Since, l.Due = now, now.Add(p.InvisibleDuration)
	s.set(l, to)
	s.attempts[attemptClass(l.Attempt)]++
	if l.Attempt > 1 {
		s.redelivered++
	}
	return s.grant(l)
}

func (s *subscription) grant(l *lease) grant {
	return grant{
		lease: l, attempt: l.Attempt, due: l.Due,
		handle: handle{group: s.group.id, place: s.place(l), serial: l.Serial},
	}
}

// handOut returns deliveries once they are written, unless ctx ended meanwhile.
func (s *subscription) handOut(ctx context.Context, p *Poll, grants []grant, flight *store.Flight) ([]*tidegate.Delivery, error) {
	ds, err := s.deliveries(p, grants)
	if werr := flight.Wait(); werr != nil {
		return nil, storeError(errors.Join(werr, err))
	}
	if err != nil || ctx.Err() != nil {
		s.release(grants)
		if err == nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if p.AttemptID != "" && s.group.config.Load().FIFO {
		s.remember(p.AttemptID, grants)
	}
	return ds, nil
}

// deliveries reads what was not read yet.
func (s *subscription) deliveries(p *Poll, grants []grant) ([]*tidegate.Delivery, error) {
	ds := make([]*tidegate.Delivery, 0, len(grants))
	all := make([]tidegate.Delivery, len(grants))
	for i := range grants {
		g := &grants[i]
		if g.message == nil {
			m, ok, err := s.broker.store.Get(g.handle.place)
			if err != nil {
				return nil, storeError(err)
			}
			if !ok { // deleted meanwhile: there is nothing to deliver any more
				_ = s.settle(g.handle, eventAck, nil, "")
				continue
			}
			g.message = &m
		}
		s.fill(&all[i], g)
		ds = append(ds, &all[i])
	}
	if p.Prepare != nil && len(ds) > 0 {
		p.Prepare(ds)
	}
	return ds, nil
}

func (s *subscription) fill(d *tidegate.Delivery, g *grant) {
	*d = tidegate.Delivery{
		Message: g.message.Message, ConsumerGroup: s.group.name, Attempt: g.attempt, Handle: g.handle.String(),
		Endpoint: s.broker.name, Queue: int(g.handle.place.Queue), Offset: g.handle.place.Offset,
		BornAt: g.message.BornAt, BornHost: g.message.BornHost, StoredAt: g.message.StoredAt, StoreHost: s.broker.host,
		InvisibleUntil: g.due,
	}
	d.Topic = s.topic.name
}

// remember keeps what an attempt ID was answered, for a client that lost the answer.
func (s *subscription) remember(attemptID string, grants []grant) {
	for i := range grants {
		grants[i].message = nil // read again if asked again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.replays) >= maxReplays {
		for id, old := range s.replays {
			if !s.alive(old) {
				delete(s.replays, id)
			}
		}
	}
	if len(s.replays) < maxReplays {
		s.replays[attemptID] = grants
	}
}

// replay returns what was handed out for the attempt ID before and is still in flight.
func (s *subscription) replay(p *Poll) []grant {
	if p.AttemptID == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []grant
	for _, g := range s.replays[p.AttemptID] {
		if s.alive([]grant{g}) {
			out = append(out, g)
		}
	}
	if out == nil {
		delete(s.replays, p.AttemptID)
	}
	return out
}

// alive reports whether one of the grants is still the current delivery. mu is held.
func (s *subscription) alive(grants []grant) bool {
	now := time.Now()
	for _, g := range grants {
		l := g.lease
		if l.cursor.leases[l.offset] == l && l.state() == StateInflight && l.Serial == g.handle.serial && now.Before(l.Due) {
			return true
		}
	}
	return false
}
