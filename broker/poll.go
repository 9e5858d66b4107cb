package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxReceive is the largest batch of one receive. RocketMQ's proxy has 32, and so have the
	// settings of consumers in the same process; a server can allow its clients more.
	maxReceive     = 128
	settingReceive = 32

	// maxReceiveBytes bounds the bodies of one receive, in bytes; the first may be larger.
	maxReceiveBytes = 16 << 20

	// maxReads and maxReadBytes bound what all receives together have read that is not admitted
	// yet: so many reads, each of so many bytes and one body more.
	maxReads     = 8
	maxReadBytes = 1 << 20

	// maxAttemptID bounds such an ID, in bytes; those of RocketMQ's clients are UUIDs.
	maxAttemptID = 255
)

// A Poll is a receive with what a server knows of the client.
type Poll struct {
	transport.ReceiveRequest

	// Owner identifies the receiving client. Its heartbeats ([Broker.Touch]) keep its deliveries
	// invisible, in place of InvisibleDuration: for a minute after the last heartbeat, and for 3
	// hours in all. Empty means that InvisibleDuration applies.
	Owner string

	// Prepare, if not nil, is called with the deliveries while their attempts are written, for
	// example to encode a response. The caller must discard its result unless Poll returns the
	// deliveries without an error. Prepare must not wait or call the broker. If it panics, Poll
	// returns an error, and the messages are delivered again after their invisible duration.
	Prepare func([]*tidegate.Delivery)

	// Admit, if not nil, is called with the size in bytes of all bodies that Poll is about to keep
	// in memory for the caller. If Admit returns an error, Poll returns fewer messages, or the
	// error if there are none. Admit must not wait or call the broker.
	Admit func(bytes int64) error

	match  *filter.Filter // Filter; nil: takes all
	retry  bool           // from the group's retry topic for Topic
	shared bool           // which is one for other topics too
}

// Receive is [Broker.Poll] without an owner.
func (b *Broker) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return b.Poll(ctx, Poll{ReceiveRequest: r})
}

// Poll receives up to p.Max messages, at most 32, and waits for the first one up to p.Wait. A
// receive with the AttemptID of an earlier one ends that one if it still waits, and else returns
// its deliveries that are still in flight: the same attempts, with what is left of their invisible
// time, and with new handles that replace the old ones. If none is, it is a new receive; with
// p.Repeat it returns none at once instead. It returns none, and no error, if there was none. The
// attempt number of every delivery is written before Poll returns it. A group that does not exist
// is made; it begins with the oldest message. Max, Queue and Wait below zero, an AttemptID of more
// than 255 bytes, and an invisible duration out of bounds (40011), are refused. If ctx ends, Poll
// returns its cause and takes no message with it.
func (b *Broker) Poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	ds, err := b.poll(ctx, p)
	return ds, fail.WithOp("ReceiveMessage", err)
}

func (b *Broker) poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	if !b.begin() {
		return nil, fail.Closed()
	}
	defer b.end()
	if err := b.checkPoll(&p); err != nil {
		return nil, err
	}
	if err := b.store.Broken(); err != nil {
		return nil, fail.Store(err)
	}
	s, err := b.subscribe(ctx, p.Group, p.Topic)
	if err != nil {
		return nil, err
	}
	if p.Queue >= len(s.Topic().Queues()) {
		return nil, nil // RocketMQ: nothing is there
	}
	if p.Owner != "" {
		b.owners.own(p.Owner, time.Now())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	under, err := s.supersede(ctx, &p)
	if err != nil {
		return nil, err
	}
	defer s.endReceive(&p, under)
	sources, err := s.sources(ctx, &p)
	if err != nil {
		return nil, err
	}
	for _, src := range sources { // all that one receive handed out is of one source
		if grants, write := src.sub.replay(src.poll); grants != nil {
			return src.sub.deliver(ctx, src.poll, grants, write)
		}
	}
	if p.Repeat {
		return nil, nil
	}
	var timeout <-chan time.Time
	if p.Wait > 0 {
		t := time.NewTimer(p.Wait)
		defer t.Stop()
		timeout = t.C
	}
	for last := false; ; {
		ds, lines, err := takeFirst(ctx, sources)
		if errors.Is(err, errRetryTopicGone) { // the next receive makes it anew: who deleted it may have other plans
			sources = []source{{s, &p}}
			continue
		}
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if lines != nil && p.Wait <= 0 || last {
			leave(lines)
			return nil, nil
		}
		if last, err = b.await(ctx, lines, timeout, under.supersededBy()); last || err != nil {
			leave(lines)
		}
		if errors.Is(err, errSuperseded) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if last { // what is due in this very moment is looked at once more
			for _, src := range sources {
				src.sub.expire()
			}
		}
	}
}

// A source is a subscription that a receive takes from.
type source struct {
	sub  *subscription
	poll *Poll
}

// sources returns what a receive takes from: the subscription, and the group's
// retry topic for it if there is one, in turns the first.
func (s *subscription) sources(ctx context.Context, p *Poll) ([]source, error) {
	retry, err := s.retrySubscription(ctx)
	if retry == nil || err != nil {
		return []source{{s, p}}, err
	}
	rp := *p
	rp.Queue, rp.retry = transport.AnyQueue, true // its queues are not the topic's
	original, _ := s.Group().Settings().RetryTopic.Original(retry.Topic().Name(), s.Group().Name())
	rp.shared = original == ""
	out := []source{{s, p}, {retry, &rp}}
	if s.sourceRound.Add(1)%2 == 0 {
		out[0], out[1] = out[1], out[0]
	}
	return out, nil
}

// A line is where a receive waits.
type line struct {
	sub    *subscription
	waiter *waiter
}

func leave(lines []line) {
	for _, l := range lines {
		l.sub.leave(l.waiter)
	}
}

// errRetryTopicGone says that a receive's source is not there any more that nobody asked for.
var errRetryTopicGone = errors.New("the retry topic was deleted")

// takeFirst delivers from the first source that has something. If none has, it
// returns where the receive is in line, or no lines if it is to look again.
func takeFirst(ctx context.Context, sources []source) (ds []*tidegate.Delivery, lines []line, err error) {
	again := false
	for _, src := range sources {
		grants, write, w, err := src.sub.take(src.poll)
		if len(grants) > 0 {
			leave(lines)
			ds, err = src.sub.deliver(ctx, src.poll, grants, write)
			src.sub.countDeliveries(ds)
			return ds, nil, err // none if all of them were too old, or deleted
		}
		if err != nil {
			leave(lines)
			if src.poll.retry && errors.Is(err, tidegate.ErrTopicNotFound) {
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

// await returns when there may be something for a receive, at once without
// lines, or with late set when its time is over, or with errSuperseded.
func (b *Broker) await(ctx context.Context, lines []line, timeout <-chan time.Time, superseded <-chan struct{}) (late bool, err error) {
	woken := alreadyWoken
	var wokenToo chan struct{}
	if len(lines) > 0 {
		woken = lines[0].waiter.woken
	}
	if len(lines) > 1 {
		wokenToo = lines[1].waiter.woken
	}
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, fail.Closed()
	case <-b.store.Failed():
		return false, fail.Store(b.store.Broken())
	default:
	}
	select {
	case <-woken:
	case <-wokenToo:
	case <-timeout:
		return true, nil
	case <-superseded:
		return false, errSuperseded
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, fail.Closed()
	case <-b.store.Failed():
		return false, fail.Store(b.store.Broken())
	}
	if len(lines) > 1 { // one of them woke: the other one's place goes to the next
		leave(lines)
	}
	return false, nil
}

// alreadyWoken is what a receive waits for that has more to look at.
var alreadyWoken = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (b *Broker) checkPoll(p *Poll) (err error) {
	if err := tidegate.ValidateGroup(p.Group); err != nil {
		return err
	}
	if p.Max == 0 {
		p.Max = 1
	}
	switch {
	case p.Max < 0:
		return fail.New(tidegate.CodeBadRequest, "batch size", "it is %d; give 1 to %d", p.Max, maxReceive)
	case p.Queue < transport.AnyQueue:
		return fail.New(tidegate.CodeBadRequest, "queue", "it is %d; give a queue's number, or -1 for any", p.Queue)
	case p.MaxBytes < 0:
		return fail.New(tidegate.CodeBadRequest, "max bytes", "it is %d; give the largest number of bytes, or 0 for no bound", p.MaxBytes)
	case p.Wait < 0:
		return fail.New(tidegate.CodeIllegalPollingTime, "wait", "it is %v; it may not be negative", p.Wait)
	case p.Repeat && p.AttemptID == "":
		return fail.New(tidegate.CodeBadRequest, "attempt ID", "it is empty; a repeated receive names the one that it repeats")
	case len(p.AttemptID) > maxAttemptID:
		return fail.New(tidegate.CodeBadRequest, "attempt ID", "it has %d bytes, at most %d are allowed", len(p.AttemptID), maxAttemptID)
	}
	p.Max = min(p.Max, maxReceive)
	if p.Owner != "" {
		p.InvisibleDuration = min(consume.OwnedLease, b.opts.MaxInvisibleDuration)
	} else if d := p.InvisibleDuration; d < b.opts.MinInvisibleDuration || d > b.opts.MaxInvisibleDuration {
		return fail.IllegalInvisibleTime("invisible duration", d, b.opts.MinInvisibleDuration, b.opts.MaxInvisibleDuration)
	}
	p.match, err = compileFilter(p.Filter)
	return err
}
