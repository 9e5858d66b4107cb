package amqp

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp/internal/convert"
	"github.com/tidegate/tidegate/transport/held"
)

// settlers is the number of goroutines of a link that write outcomes, and chunk the number of
// outcomes that one of them passes to go-amqp without a pause. go-amqp passes each outcome through
// three goroutines and returns when it is written, so that one goroutine alone mostly waits.
// Acceptances go around it, see link.acceptor.
const (
	settlers = 4
	chunk    = 16
)

// A job is a list of messages for one of the goroutines of a link that write outcomes.
type job struct {
	list  []held.Settlement
	taken atomic.Bool // by the goroutine, or by the caller that does not wait any longer
	reply chan []error
}

// Settle writes the outcomes of messages. A retry in copy mode and a dead letter are first sent as
// a copy, with an ID by which the server detects a repetition, and then accepted.
func (l *link) Settle(ctx context.Context, list []held.Settlement) []error {
	errs := make([]error, len(list))
	var at []int
	var write []held.Settlement
	var copies []*pendingCopy
	for i, s := range list {
		to, m := l.copyOf(s)
		if m == nil {
			at, write = append(at, i), append(write, s)
			continue
		}
		copies = append(copies, l.begin(ctx, i, to, m))
	}
	for _, p := range copies {
		if errs[p.i] = p.wait(ctx, l); errs[p.i] == nil {
			s := list[p.i]
			s.Outcome = held.Accepted
			at, write = append(at, p.i), append(write, s)
		}
	}
	if len(write) == 0 {
		return errs
	}
	size := chunk
	if l.acceptor != nil {
		size = len(write) // in one frame, if the deliveries are adjacent
	}
	var jobs []*job
	for list := range slices.Chunk(write, size) {
		j := &job{list: list, reply: make(chan []error, 1)}
		if err := l.hand(ctx, j); err != nil {
			j.reply <- l.failed(j, err)
		}
		jobs = append(jobs, j)
	}
	n := 0
	for _, j := range jobs {
		for _, err := range l.await(ctx, j) {
			errs[at[n]] = err
			n++
		}
	}
	return errs
}

// failed returns the error for each message of a job.
func (l *link) failed(j *job, e *tidegate.Error) []error {
	errs := make([]error, len(j.list))
	for i, s := range j.list {
		own := *e
		errs[i] = l.client.named(&own, opOf(s.Outcome), l.feed.Topic)
	}
	return errs
}

// hand gives a job to the goroutines of the link.
func (l *link) hand(ctx context.Context, j *job) *tidegate.Error {
	select {
	case l.jobs <- j:
		return nil
	case <-l.life.Done():
		return &tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true, Message: "the link is lost"}
	case <-ctx.Done():
		return &tidegate.Error{Err: context.Cause(ctx)}
	}
}

// await waits for the result of a job.
func (l *link) await(ctx context.Context, j *job) []error {
	all := func(e *tidegate.Error) []error { return l.failed(j, e) }
	select {
	case errs := <-j.reply:
		return errs
	case <-l.life.Done():
		select {
		case errs := <-j.reply:
			return errs
		default:
		}
		if j.taken.CompareAndSwap(false, true) {
			return all(&tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true, Message: "the link is lost"})
		}
		return all(&tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true, Message: "the link is lost"})
	case <-ctx.Done():
		return all(&tidegate.Error{Err: context.Cause(ctx), MaybeStored: !j.taken.CompareAndSwap(false, true)})
	}
}

func opOf(o held.Outcome) string {
	switch o {
	case held.Retried:
		return "ChangeInvisibleDuration"
	case held.DeadLettered:
		return "ForwardMessageToDeadLetterQueue"
	}
	return "AckMessage"
}

// settle writes the outcomes of jobs until the link ends.
func (l *link) settle() {
	for {
		var j *job
		select {
		case j = <-l.jobs:
		case <-l.life.Done():
			return
		}
		if !j.taken.CompareAndSwap(false, true) {
			continue
		}
		j.reply <- l.write(j.list)
	}
}

// write writes outcomes to the connection.
func (l *link) write(list []held.Settlement) []error {
	errs := make([]error, len(list))
	fail := func(i int, e *tidegate.Error) { errs[i] = l.client.named(e, opOf(list[i].Outcome), l.feed.Topic) }
	var accept []*sessionDelivery
	var which []int // of list
	for i, s := range list {
		if n := s.Native.(*native); l.acceptor != nil && s.Outcome == held.Accepted {
			accept, which = append(accept, &n.delivery), append(which, i)
			continue
		}
		if err := l.outcome(s); err != nil {
			e := l.client.ofLink(l.live, err)
			e.MaybeStored = !e.NotConnected
			fail(i, e)
		}
	}
	if err := l.accept(accept); err != nil {
		for _, i := range which {
			own := *err
			fail(i, &own)
		}
	}
	if err := l.live.Flush(); err != nil {
		for i := range list {
			if errs[i] == nil {
				e := convert.OfLink(err)
				e.MaybeStored = true
				fail(i, e)
			}
		}
	}
	return errs
}

// accept accepts messages, all or none.
func (l *link) accept(list []*sessionDelivery) *tidegate.Error {
	if len(list) == 0 {
		return nil
	}
	err := l.life.Err()
	if err == nil {
		err = l.acceptor.Accept(list)
	}
	if err == nil {
		return nil
	}
	e := l.client.ofLink(l.live, err)
	e.NotConnected = true // nothing was written
	return e
}

// outcome passes one outcome to go-amqp. The context has no deadline: go-amqp would close the
// connection at a deadline during the write. A message that is settled is not settled again.
func (l *link) outcome(s held.Settlement) error {
	n := s.Native.(*native)
	m := n.Message
	if l.acceptor != nil && l.acceptor.Accepted(&n.delivery) {
		return nil
	}
	switch s.Outcome {
	case held.Released:
		return l.receiver.ReleaseMessage(l.life, m)
	case held.Retried:
		return l.receiver.ModifyMessage(l.life, m, &amqp.ModifyMessageOptions{DeliveryFailed: true})
	}
	return l.receiver.AcceptMessage(l.life, m)
}

// copyOf returns the copy that a settlement sends before it accepts the message; nil for none.
func (l *link) copyOf(s held.Settlement) (place, *amqp.Message) {
	c, native := l.client, s.Native.(*native).Message
	switch {
	case s.Outcome == held.DeadLettered:
		return c.deadLetters(l.feed.Group), convert.DeadLetter(native, s.Delivery, l.feed.Group, s.Reason)
	case s.Outcome == held.Retried && c.options.CopyRetries:
		return l.from, convert.Retry(native, s.Delivery, l.feed.Group, s.Delay)
	}
	return place{}, nil
}

// A pendingCopy is a copy on its way.
type pendingCopy struct {
	i    int // of the settlement
	wait func(context.Context, *link) error
}

func (l *link) begin(ctx context.Context, i int, to place, m *amqp.Message) *pendingCopy {
	op := opOf(held.Retried)
	if to.anycast {
		op = opOf(held.DeadLettered)
	}
	size := 0
	for _, d := range m.Data {
		size += len(d)
	}
	p, err := l.client.link(l.live, to).Send(ctx, m, size)
	return &pendingCopy{i, func(ctx context.Context, l *link) error {
		if err == nil {
			err = p.Wait(ctx)
		}
		if err == nil {
			return nil
		}
		return l.client.named(err, op, l.feed.Topic)
	}}
}
