package subscription

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/transport"
)

// Receive receives messages of the topic, and of the group's retry topics for it. It waits for the
// first message up to p.Wait. It returns no deliveries and no error if there was no message, or if
// the client repeats the receive. The attempts of the deliveries are written before it returns. If
// ctx ends, it returns the cause of ctx and takes no message.
func (s *Subscription) Receive(ctx context.Context, p *Request) ([]*tidegate.Delivery, error) {
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
	for _, src := range sources { // all deliveries of one receive have the same source
		if grants, write := src.sub.replay(src.req); grants != nil {
			return src.sub.deliver(ctx, src.req, grants, write)
		}
	}
	if p.Repeat {
		return nil, nil
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
			sources, outdated = []source{{s, p}}, true
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

// A source is a subscription from which a receive takes messages.
type source struct {
	sub *Subscription
	req *Request
}

// maxSources is the maximum of the sources of a receive: a topic and its two retry topics.
const maxSources = 3

// sources returns the sources of a receive: the subscription, and the subscriptions to the retry
// topics. They take turns in being the first.
func (s *Subscription) sources(ctx context.Context, p *Request) ([]source, error) {
	out := []source{{s, p}}
	retries, err := s.env.Topics.RetrySubscriptions(ctx, s)
	if len(retries) == 0 || err != nil {
		return out, err
	}
	for _, retry := range retries {
		rp := *p
		rp.Queue, rp.retry = transport.AnyQueue, true // its queues are not those of the topic
		original, _ := s.Group().Settings().RetryTopic.Original(retry.Topic().Name(), s.Group().Name())
		rp.shared = original == ""
		out = append(out, source{retry, &rp})
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
func takeFirst(ctx context.Context, sources []source) (ds []*tidegate.Delivery, lines []line, err error) {
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
