package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
	"github.com/tidegate/tidegate/transport"
)

// A Holder counts the deliveries in flight of a client.
type Holder = consume.Holder

// NewHolder returns the holder of a client without deliveries.
func NewHolder(id string) *Holder { return consume.NewHolder(id) }

// A Reconsumed is the result of Engine.ReconsumeLater.
type Reconsumed struct {
	Topic     string    `json:"topic"`               // new topic of the message: the group's retry topic or dead letter topic
	MessageID string    `json:"message_id"`          // new ID of the message
	Times     int       `json:"reconsume_times"`     // retries, including this one
	DeliverAt time.Time `json:"deliver_at,omitzero"` // delivery time; zero means at once

	// DeadLetter is set if the message had the maximum of retries.
	DeadLetter bool `json:"dead_letter"`
}

// A RetryPolicy is the redelivery policy that the broker announces to the clients of a group.
type RetryPolicy struct {
	MaxAttempts int           // deliveries of one message; -1 means no maximum
	Ladder      backoff.Steps // the interval after the first failure, the second, ...; the last one repeats
}

const (
	// maxReceive is the largest batch of one receive. RocketMQ's proxy has 32, and so have the
	// settings of consumers in the same process; a server can allow its clients more.
	maxReceive     = 128
	settingReceive = 32

	// maxAttemptID is the maximum length of an attempt ID in bytes. RocketMQ's clients send UUIDs.
	maxAttemptID = 255

	// maxArrived bounds the parts of responses with the same attempt ID.
	maxArrived = 1 << 20
)

// Receive executes the method of broker.Broker.
func (e *Engine) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return e.Poll(ctx, Request{ReceiveRequest: r})
}

// Poll receives up to p.Max messages, at most 128, and waits for the first one up to p.Wait, or with
// p.Stream for more than half of them. It returns no deliveries and no error if there was no
// message, or none after the parts that p.Stream got. The attempt number of each delivery
// is written before Poll returns it; it is on disk if it is above 1.
//
// A receive with the AttemptID of an earlier receive repeats it. If the earlier receive still
// waits, Poll ends it. If deliveries of the earlier receive are still in flight, Poll returns them
// with the same attempts, the rest of their invisible durations, and new handles that replace the
// old ones. If none is in flight, Poll receives new messages, or returns none at once if p.Repeat
// is set.
//
// Poll creates a group that does not exist. The new group begins at the oldest message. Poll
// rejects an invisible duration out of bounds (40011), an AttemptID of more than 255 bytes, a
// negative Max or Wait, and a Queue below transport.AnyQueue. If ctx ends, Poll returns its cause
// and takes no message.
func (e *Engine) Poll(ctx context.Context, p Request) ([]*tidegate.Delivery, error) {
	ds, err := e.poll(ctx, p)
	return ds, refusal.WithOp("ReceiveMessage", err)
}

func (e *Engine) poll(ctx context.Context, p Request) ([]*tidegate.Delivery, error) {
	if !e.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer e.calls.End()
	p, err := e.checkPoll(p)
	if err != nil {
		return nil, err
	}
	if err := e.store.Broken(); err != nil {
		return nil, refusal.Store(err)
	}
	s, err := e.subscriptionFor(ctx, &p)
	if err != nil {
		return nil, err
	}
	if p.Queue >= len(s.Topic().Queues()) {
		return nil, nil // RocketMQ: nothing is there
	}
	if p.Owner != "" {
		e.owners.Own(p.Owner, OwnerPlace{Group: s.Group().ID(), Topic: s.Topic().ID()}, time.Now())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s.Receive(ctx, &p)
}

// subscriptionFor returns the subscription of a receive.
func (e *Engine) subscriptionFor(ctx context.Context, p *Request) (*Subscription, error) {
	if p.LiteConsumer == "" {
		if t := e.catalog.FindTopic(p.Topic); t != nil && t.lite() {
			return nil, refusal.New(tidegate.CodeBadRequest, p.Topic, "the topic has lite topics; receive with a consumer of lite topics, which subscribes to some")
		}
		return e.catalog.Subscribe(ctx, p.Group, p.Topic)
	}
	p.Queue, p.Watch, p.match = transport.AnyQueue, nil, nil
	return e.liteSubscription(ctx, transport.LiteConsumer{Group: p.Group, Topic: p.Topic, ID: p.LiteConsumer})
}

// checkPoll returns the request of a receive.
func (e *Engine) checkPoll(p Request) (_ Request, err error) {
	if err := tidegate.ValidateGroup(p.Group); err != nil {
		return p, err
	}
	if p.Max == 0 {
		p.Max = 1
	}
	switch {
	case p.Max < 0:
		return p, refusal.New(tidegate.CodeBadRequest, "batch size", "it is %d; give 1 to %d", p.Max, maxReceive)
	case p.Queue < transport.AnyQueue:
		return p, refusal.New(tidegate.CodeBadRequest, "queue", "it is %d; give a queue's number, or -1 for any", p.Queue)
	case p.MaxBytes < 0:
		return p, refusal.New(tidegate.CodeBadRequest, "max bytes", "it is %d; give the largest number of bytes, or 0 for no bound", p.MaxBytes)
	case p.Wait < 0:
		return p, refusal.New(protocol.CodeIllegalPollingTime, "wait", "it is %v; it must not be negative", p.Wait)
	case p.Repeat && p.AttemptID == "":
		return p, refusal.New(tidegate.CodeBadRequest, "attempt ID", "it is empty; give the ID of the receive to repeat")
	case p.Arrived < 0 || p.Arrived > maxArrived:
		return p, refusal.New(tidegate.CodeBadRequest, "arrived parts", "their number is %d; give 0 to %d", p.Arrived, maxArrived)
	case len(p.LiteConsumer) > maxLiteID:
		return p, refusal.New(tidegate.CodeBadRequest, "consumer", "its ID has %d bytes; the limit is %d", len(p.LiteConsumer), maxLiteID)
	case len(p.AttemptID) > maxAttemptID:
		return p, refusal.New(tidegate.CodeBadRequest, "attempt ID", "it has %d bytes; the limit is %d", len(p.AttemptID), maxAttemptID)
	}
	p.Max = min(p.Max, maxReceive)
	if p.Owner != "" {
		p.InvisibleDuration = min(consume.OwnedLease, e.opts.MaxInvisibleDuration)
	} else if d := p.InvisibleDuration; d < e.opts.MinInvisibleDuration || d > e.opts.MaxInvisibleDuration {
		return p, refusal.IllegalInvisibleTime("invisible duration", d, e.opts.MinInvisibleDuration, e.opts.MaxInvisibleDuration)
	}
	p.match, err = compileFilter(p.Filter)
	return p, err
}

// compileFilter returns the filter of a receive; nil selects all messages. The error for an invalid
// expression is 40010 with the position.
func compileFilter(f tidegate.Filter) (*filter.Filter, error) {
	compile := filter.Tags
	if f.SQL {
		compile = filter.SQL
	}
	c, err := compile(f.Expression)
	if e, ok := errors.AsType[*filter.Error](err); ok {
		return nil, refusal.New(protocol.CodeIllegalFilterExpression, "filter expression", "%s", e.Error())
	}
	return c, err
}

// Receive receives messages of the topic, and of the group's retry topics for it. It waits for the
// first message up to p.Wait, with p.Stream for further ones. It returns no deliveries and no error
// if there was no message, or if the client repeats the receive. The attempts of the deliveries are
// written before it returns or streams them. If ctx ends, it returns the cause of ctx and takes no
// further message.
func (s *Subscription) Receive(ctx context.Context, p *Request) ([]*tidegate.Delivery, error) {
	p.begin()
	under, err := s.supersede(ctx, p)
	if err != nil {
		return nil, err
	}
	defer s.endReceive(p, under)
	age := s.sourceAge.Load()
	sources, err := s.sources(ctx, p)
	if err != nil {
		return nil, err
	}
	if ds, err := replayAll(ctx, sources); len(ds) > 0 || err != nil || p.Repeat {
		return ds, err
	}
	outdated := false // the sources are not those of the next receive
	if p.Watch != nil {
		defer func() {
			if outdated || s.sourceAge.Load() != age {
				p.Watch.wake()
			}
		}()
	}
	var timeout <-chan time.Time
	if p.Wait > 0 {
		t := time.NewTimer(p.Wait)
		defer t.Stop()
		timeout = t.C
	}
	for last := false; ; {
		ds, lines, err := takeFirst(ctx, sources)
		if errors.Is(err, errRetryTopicGone) { // the next receive creates it again
			sources, outdated = []subscriptionSource{{s, p}}, true
			continue
		}
		if len(ds) > 0 && err == nil && p.rest.goesOn(ds) {
			if more, err := s.stream(p, under, ds); !more || err != nil {
				return nil, err
			}
			continue
		}
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if lines != nil && p.Wait <= 0 || last {
			leave(lines)
			return nil, nil
		}
		if now := s.sourceAge.Load(); now != age { // a retry topic was created since
			leave(lines)
			age = now
			if sources, err = s.sources(ctx, p); err != nil {
				return nil, err
			}
			outdated = false
			continue
		}
		if last, err = s.env.await(ctx, lines, timeout, under.supersededBy()); last || err != nil {
			leave(lines)
		}
		if errors.Is(err, errSuperseded) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if last { // take the messages that are due at this very moment
			for _, src := range sources {
				src.sub.expire()
			}
		}
	}
}

// stream hands a part of the response over, without the lock and the place of the receive: while
// the client does not read, its repetition returns this part.
func (s *Subscription) stream(p *Request, under *repeatable, ds []*tidegate.Delivery) (more bool, err error) {
	under.streams(s, true)
	more, err = p.Stream(ds)
	under.streams(s, false)
	p.rest.streamed(ds)
	return more && !under.isSuperseded(), err
}

// replayAll returns the deliveries of an earlier receive that are still in flight.
func replayAll(ctx context.Context, sources []subscriptionSource) (all []*tidegate.Delivery, err error) {
	for _, src := range sources {
		grants, write := src.sub.replay(src.req)
		if grants == nil {
			continue
		}
		src.req.rest.replay(nil)
		ds, err := src.sub.deliver(ctx, src.req, grants, write)
		if err != nil {
			return nil, err
		}
		src.req.rest.replay(ds)
		all = append(all, ds...)
	}
	return all, nil
}

// A subscriptionSource is a subscription from which a receive takes messages.
type subscriptionSource struct {
	sub *Subscription
	req *Request
}

// maxSources is the maximum of the sources of a receive: a topic and its two retry topics.
const maxSources = 3

// sources returns the sources of a receive: the subscription, and the subscriptions to the retry
// topics. They take turns in being the first.
func (s *Subscription) sources(ctx context.Context, p *Request) ([]subscriptionSource, error) {
	out := []subscriptionSource{{s, p}}
	retries, err := s.env.Topics.RetrySubscriptions(ctx, s)
	if len(retries) == 0 || err != nil {
		return out, err
	}
	for _, retry := range retries {
		rp := *p
		rp.Queue, rp.retry = transport.AnyQueue, true // its queues are not those of the topic
		original, _ := s.Group().Settings().RetryTopic.Original(retry.Topic().Name(), s.Group().Name())
		rp.shared = original == ""
		out = append(out, subscriptionSource{retry, &rp})
	}
	first := int(s.sourceRound.Add(1)-1) % len(out)
	return append(out[first:], out[:first]...), nil
}

// A line is a place at which a receive waits.
type line struct {
	sub    *Subscription
	waiter *waiter
}

func leave(lines []line) {
	for _, l := range lines {
		l.sub.leave(l.waiter)
	}
}

// errRetryTopicGone is the error of takeFirst if the retry topic was deleted, which the client did
// not name.
var errRetryTopicGone = errors.New("the retry topic was deleted")

// takeFirst delivers from the first source that has messages. If none has any, it returns the lines
// at which the receive waits; no lines mean that the caller calls it again.
func takeFirst(ctx context.Context, sources []subscriptionSource) (ds []*tidegate.Delivery, lines []line, err error) {
	again := false
	if w := sources[0].req.Watch; w != nil {
		defer func() { w.looked(sources, err) }()
	}
	for _, src := range sources {
		grants, write, w, err := src.sub.take(src.req)
		if len(grants) > 0 {
			leave(lines)
			ds, err = src.sub.deliver(ctx, src.req, grants, write)
			src.sub.countDeliveries(ds)
			return ds, nil, err // without any if all of them were too old, or deleted
		}
		if err != nil {
			leave(lines)
			if src.req.retry && errors.Is(err, tidegate.ErrTopicNotFound) {
				err = errRetryTopicGone
			}
			return nil, nil, err
		}
		if w == nil {
			again = true
		} else {
			lines = append(lines, line{src.sub, w})
		}
	}
	if again {
		leave(lines)
		return nil, nil, nil
	}
	return nil, lines, nil
}

// await waits until there may be a message for a receive; without lines it does not wait. late
// means that the time of the receive is over. The error is errSuperseded if the client repeats the
// receive.
func (e *Env) await(ctx context.Context, lines []line, timeout <-chan time.Time, superseded <-chan struct{}) (late bool, err error) {
	woken := [maxSources]chan struct{}{alreadyWoken}
	for i := range lines {
		woken[i] = lines[i].waiter.woken
	}
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-e.Life.Done():
		return false, refusal.Closed()
	case <-e.Store.Failed():
		return false, refusal.Store(e.Store.Broken())
	default:
	}
	select {
	case <-woken[0]:
	case <-woken[1]:
	case <-woken[2]:
	case <-timeout:
		return true, nil
	case <-superseded:
		return false, errSuperseded
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-e.Life.Done():
		return false, refusal.Closed()
	case <-e.Store.Failed():
		return false, refusal.Store(e.Store.Broken())
	}
	if len(lines) > 1 { // one of them was woken: the place in the other one goes to the next receive
		leave(lines)
	}
	return false, nil
}

// alreadyWoken is the channel of a receive that does not wait.
var alreadyWoken = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// take reserves messages for a receive: ready ones first, then new ones. Without any it returns a
// waiter, or no waiter if it has skipped messages and should be called again. It leaves p.Watch if
// it has taken all messages that the receive could take.
func (s *Subscription) take(p *Request) (grants []consume.Grant, write *store.PendingWrite, w *waiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, nil, nil, s.gone
	}
	now := time.Now()
	s.lastTake = now
	if p.Watch != nil {
		p.Watch.lift(s)
	}
	r := consume.Receive{
		Queue: p.Queue, Max: p.rest.messages, MaxBytes: p.rest.bytes, Push: p.Push, Owner: p.Owner, Holder: p.Holder, Invisible: p.InvisibleDuration,
		Filter: (*requestFilter)(p),
	}
	if _, err := s.extendFor(p, &r, now); err != nil {
		return nil, nil, nil, err
	}
	var consumer *liteConsumer
	s.progress.Begin(&r, now)
	write = s.applyTake(now).write
	end := false
	for {
		if consumer, err = s.extendFor(p, &r, now); err != nil {
			break
		}
		had := len(r.Grants)
		claim, ok := s.progress.Claim(&r, now)
		if !ok {
			break
		}
		if len(r.Grants) > had {
			write = s.applyTake(now).write
		}
		if rejected := s.env.Leases.rejected(); rejected != nil {
			s.progress.Unclaim(&r, claim.Queue)
			if len(r.Grants) == 0 {
				err = rejected
			}
			end = true
			break
		}
		var more *store.PendingWrite
		if more, end, err = s.takeNew(p, &r, claim); more != nil {
			write = more
		}
		if end || err != nil {
			break
		}
	}
	now = time.Now()
	if err == nil {
		s.progress.End(&r, now)
	} else {
		s.progress.Fail()
	}
	if f := s.applyTake(now).write; f != nil {
		write = f
	}
	if consumer != nil && (err != nil || end || !r.WantsMore()) {
		s.wakeShared(consumer)
	}
	if len(r.Grants) == 0 && err == nil && r.Skipped == 0 {
		w = &waiter{queue: p.Queue, lite: consumer, woken: make(chan struct{})}
		if consumer != nil {
			consumer.waiters = append(consumer.waiters, w)
		} else {
			s.waiters = append(s.waiters, w)
		}
	}
	if err == nil && p.Watch != nil && !end && r.WantsMore() { // after apply, which wakes others for the rest
		p.Watch.leave(s, p.Queue)
	}
	return r.Grants, write, w, err
}

// takeNew reads the messages of a claim for the receive. end is true if the receive may not keep
// more. mu is held before and after it, and not while it reads.
func (s *Subscription) takeNew(p *Request, r *consume.Receive, claim consume.Claim) (write *store.PendingWrite, end bool, err error) {
	read := s.readUnlocked(p, r, claim)
	now := time.Now()
	current := s.progress.Unclaim(r, claim.Queue)
	damaged, _ := errors.AsType[*store.Damaged](read.err)
	switch {
	case s.gone != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		if err = s.gone; read.err != nil {
			err = refusal.Store(read.err)
		}
	case !current && (read.err == nil || damaged != nil):
	case len(read.messages) == 0 && read.refused != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		if end = true; len(r.Grants) == 0 {
			err = read.refused
		}
	case len(read.messages) == 0 && (read.err == nil || damaged != nil):
		to := claim.To
		if damaged != nil {
			to = damaged.To
		}
		s.progress.SkipMissing(r, claim, to, read.end)
	case read.err != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		err = refusal.Store(read.err)
	default:
		s.progress.Admit(r, claim, s.Group().Settings().FIFO, read.messages, read.offsets, now)
		end = read.refused != nil
	}
	return s.applyTake(now).write, end, err
}

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
		s.Update(func(to *consume.Progress) { to.Remember(p.response(), grants, time.Now()) })
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
	var old, unwanted []consume.Handle
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
		if err := prepare(p, ds, p.rest.goesOn(ds)); err != nil {
			return nil, admitted, err
		}
	}
	return ds, admitted, nil
}

// errUnprepared is the error of a receive whose Encoder panicked.
var errUnprepared = errors.New("encoding the response panicked")

// prepare calls the Encoder. If that panics it returns an error: a panic over the content of a
// message must not break the broker.
func prepare(p *Request, ds []*tidegate.Delivery, more bool) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: fmt.Sprint(v), Err: errUnprepared}
		}
	}()
	p.Encoder.Prepare(ds, more)
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
func (s *Subscription) skip(handles []consume.Handle) {
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
func (s *Subscription) postpone(handles []consume.Handle, until time.Time) {
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
func (s *Subscription) expireMessages(ctx context.Context, handles []consume.Handle) error {
	if len(handles) == 0 {
		return nil
	}
	reason := fmt.Sprintf("not delivered within expiry-delay (%v)", s.Policy().Address.Expiry)
	expired := s.expireHandles(handles, reason)
	return s.env.CarryOut(ctx, func() error { return errors.Join(s.writeDepartures(expired)...) })
}

func (s *Subscription) expireHandles(handles []consume.Handle, reason string) []*Departure {
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

// A repeatable is a receive under way with an attempt ID. For each ID one receive runs at a time: a
// client that lost its connection repeats the receive while the broker still carries out the first
// one, and must get the same deliveries.
type repeatable struct {
	superseded chan struct{} // closed: the client repeats it, so it ends
	notified   bool          // superseded is closed; guarded by the subscription's mu
	streaming  bool          // it hands over a part; guarded by the subscription's mu
	ended      chan struct{}
}

// streams notes whether the receive hands over a part.
func (r *repeatable) streams(s *Subscription, now bool) {
	if r == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.streaming = now
}

// supersede ends the receive under way with the same attempt ID, and returns once that receive is
// over, or takes no further message because it hands over a part, perhaps for long. Its deliveries
// can be replayed. The result is nil for a receive without an attempt ID.
func (s *Subscription) supersede(ctx context.Context, p *Request) (*repeatable, error) {
	if p.AttemptID == "" {
		return nil, nil
	}
	t := &repeatable{superseded: make(chan struct{}), ended: make(chan struct{})}
	for {
		s.mu.Lock()
		before := s.receiving[p.AttemptID]
		if before != nil && !before.notified {
			before.notified = true
			close(before.superseded)
		}
		if before == nil || before.streaming {
			s.receiving[p.AttemptID] = t
			s.mu.Unlock()
			return t, nil
		}
		s.mu.Unlock()
		select {
		case <-before.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.env.Life.Done():
			return nil, refusal.Closed()
		}
	}
}

// endReceive lets the next receive with the attempt ID continue.
func (s *Subscription) endReceive(p *Request, t *repeatable) {
	if t == nil {
		return
	}
	s.mu.Lock()
	if s.receiving[p.AttemptID] == t {
		delete(s.receiving, p.AttemptID)
	}
	s.mu.Unlock()
	close(t.ended)
}

// supersededBy returns a channel that ends the wait of a receive. It is nil without an attempt ID.
func (r *repeatable) supersededBy() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.superseded
}

// response returns the part of the response that comes next.
func (p *Request) response() consume.Response {
	return consume.Response{AttemptID: p.AttemptID, Part: p.rest.part}
}

// isSuperseded reports whether the client repeats the receive.
func (r *repeatable) isSuperseded() bool {
	select {
	case <-r.supersededBy():
		return true
	default:
		return false
	}
}

// replay returns the deliveries of the attempt ID that are still in flight, with new handles, and
// the write of this.
func (s *Subscription) replay(p *Request) ([]consume.Grant, *store.PendingWrite) {
	if p.AttemptID == "" {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	grants := s.progress.Replay(p.response(), now)
	return grants, s.apply(now).write
}

// errSuperseded ends the wait of a receive that the client repeats.
var errSuperseded = errors.New("the client repeated the receive")
