// Package held makes a transport's receives and settlements for systems that push messages to a
// connection, such as ActiveMQ Artemis over AMQP 1.0. Such a system keeps a message until the
// connection settles it or ends. A [Table] turns that into the contract of [transport.Receiver] and
// [transport.Settler]: leases that end, repeated receives, message groups in order, and receives
// that wait. It keeps this state in the memory of the process. A [Flight] makes the sends, with the
// order of the message groups.
//
// A transport implements [System] and [Link], and embeds the Table that [New] returns:
//
//	type Client struct {
//		*held.Table
//		…
//	}
//
// # Links and credit
//
// A Table opens one Link for each group, topic and filter that is received from. It grants the link
// as many messages as its receives wait for. Messages that arrive after their receive has ended
// stay in a buffer for the next one; no attempt is spent. If no receive comes for [Options].Idle,
// the buffered messages return to the system, and the link is closed once no delivery is in flight.
//
// Receives of one group with different filters compete for its messages, because each accepts the
// messages that its own filter does not select.
//
// # Leases and attempts
//
// The end of a lease fails the message in the system ([Retried]), so that every consumer can
// receive it. The last attempt makes it a dead letter ([DeadLettered]). Renewals need no request.
//
// In a FIFO group only the first message of a message group leaves the buffer. Its retries stay in
// this process, because the system would deliver a failed message after its successors. Released
// deliveries of push receives, snoozed messages and those with a negative acknowledgement also stay
// in this process until their time comes or the link is closed.
//
// # Losses of a crash
//
// When the process or its connection ends, the system delivers all held messages again at once. It
// may count a failed attempt of each: Artemis does so if the connection broke off, and not if it
// was closed. Lost are:
//   - the leases: other consumers receive the messages before the handlers have ended;
//   - the attempts that only this process counted, of retries and ended leases in FIFO groups. Over
//     a system that counts no broken connections, a message that always ends the process therefore
//     never becomes a dead letter;
//   - the delays of snoozed messages, of negative acknowledgements and of retries in FIFO groups.
//
// The order of a message group is kept.
package held

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Options are the options of a [Table]. A number that is not positive means its default.
type Options struct {
	// Settings returns the settings of a group for a topic. A Table uses FIFO and MaxAttempts, from
	// the opening of a link to its end; MaxAttempts that are not positive mean no maximum. Settings
	// does not block. A receive fails if it panics. Nil means no settings.
	Settings func(group, topic string) transport.ConsumerSettings

	// MaxHeld bounds the messages that the Table holds before it asks for more, and those that it
	// has asked for. A source that holds no message may always ask for one. In a FIFO group the
	// messages behind a first one that waits for its retry count too: MaxHeld of them stop the
	// source. Half of MaxHeld bounds the messages that wait after a Snooze, see [Table.Snooze]. The
	// kill switch of a consumer handles these again and again during an outage, and excuses five
	// failures of each: with a small MaxHeld a long outage can cost attempts. Default: 1000.
	MaxHeld int

	// MaxHeldBytes bounds the bodies of these messages in the same way, in bytes. The Table
	// estimates the bodies of the messages that it has asked for by the largest of the last ones.
	// Default: 64 MiB.
	MaxHeldBytes int

	// Idle is the time without a receive after which buffered messages return to the system. In a
	// FIFO group they also wait until no message of the source is in flight. Default: 2 s.
	Idle time.Duration

	// NegativeAcks is set if the system has the outcome [Redelivered]. The Table then takes the
	// verdict NegativeAck.
	NegativeAcks bool

	// Grace is the shortest wait of a receive for which no message is buffered, counted from the
	// opening of the link. It lets the messages arrive that the system has, so it should be longer
	// than a round trip. Default: 50 ms.
	Grace time.Duration

	// Linger is the longest time that a receive waits for more messages if some have just arrived,
	// fewer than its maximum. It ends a quarter of Linger after the last message. Default: 5 ms.
	Linger time.Duration
}

// openTimeout bounds the opening of a link.
const openTimeout = 10 * time.Second

// A Table holds the messages of a client and implements [transport.Receiver] and
// [transport.Settler], with the verdict Snooze. Several goroutines may call
// its methods at the same time.
//
// It holds no lock while it calls a [System] or a [Link]. The liveness rests on the type shelf, on
// one timer for all leases, and on the ends that the contracts of System and Link promise: of Open,
// of Settle and of Close.
type Table struct {
	opts   Options
	system System
	ctx    context.Context //nolint:containedctx // of native calls that no caller waits for; ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // calls under way that no caller waits for

	mu      sync.Mutex
	shelf   *shelf
	closed  bool
	timer   *time.Timer
	armed   time.Time    // when timer fires; zero: not at all
	queue   []settlement // to settle in the background
	workers int          // for queue
}

// New returns a Table without links.
func New(system System, opts Options) *Table {
	if opts.MaxHeld <= 0 {
		opts.MaxHeld = 1000
	}
	if opts.MaxHeldBytes <= 0 {
		opts.MaxHeldBytes = 64 << 20
	}
	if opts.Idle <= 0 {
		opts.Idle = 2 * time.Second
	}
	if opts.Grace <= 0 {
		opts.Grace = 50 * time.Millisecond
	}
	if opts.Linger <= 0 {
		opts.Linger = 5 * time.Millisecond
	}
	if opts.Settings == nil {
		opts.Settings = func(string, string) transport.ConsumerSettings { return transport.ConsumerSettings{} }
	}
	limits := limits{Messages: opts.MaxHeld, Bytes: opts.MaxHeldBytes, Idle: opts.Idle, Grace: opts.Grace, Linger: opts.Linger}
	t := &Table{opts: opts, system: system, shelf: newShelf(limits, rand.Text()[:12]+"-")}
	t.ctx, t.cancel = context.WithCancelCause(context.Background()) // ends with Close
	t.timer = time.AfterFunc(time.Hour, t.tick)
	t.timer.Stop()
	return t
}

// Capabilities returns the capabilities of the Table: RepeatReceive, Suspend and the verdict Snooze,
// and with Options.NegativeAcks the verdict NegativeAck.
func (t *Table) Capabilities(string) transport.Capabilities {
	can := transport.Capabilities{RepeatReceive: true, Suspend: true, Verdicts: transport.Snooze}
	if t.opts.NegativeAcks {
		can.Verdicts |= transport.NegativeAck
	}
	return can
}

// Receive implements [transport.Receiver]. It ignores r.Queue. If r.Wait is shorter than
// Options.Grace, or the link is not open yet, Receive waits longer than r.Wait. With a ctx of
// [transport.AwaitConnection] it opens the link once a second until there is a connection.
func (t *Table) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	for {
		ds, err := t.receive(ctx, r)
		if !transport.AwaitsConnection(ctx) || !notConnected(err) || ctx.Err() != nil {
			return ds, err
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			e := receiveError(r, context.Cause(ctx))
			e.NotConnected = true
			return nil, e
		case <-t.ctx.Done():
			timer.Stop()
		}
	}
}

func (t *Table) receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if ctx.Err() != nil {
		return nil, receiveError(r, context.Cause(ctx))
	}
	var settings transport.ConsumerSettings
	if err := guard.Error("Options.Settings", nil, func() error {
		settings = t.opts.Settings(r.Group, r.Topic)
		return nil
	}); err != nil {
		return nil, receiveError(r, err)
	}
	request := request{
		key:  key{Group: r.Group, Topic: r.Topic, Filter: r.Filter},
		FIFO: settings.FIFO, MaxAttempts: settings.MaxAttempts, Push: r.Push, Max: max(r.Max, 1), MaxBytes: r.MaxBytes,
		Invisible: r.InvisibleDuration, Wait: max(r.Wait, 0), AttemptID: r.AttemptID, Repeat: r.Repeat,
	}
	now := t.lock()
	w, ds, err := t.shelf.Receive(request, now)
	t.unlock(now)
	if w == nil {
		if err != nil {
			err = receiveError(r, err)
		}
		return ds, err
	}
	timer := time.NewTimer(request.Wait)
	defer timer.Stop()
	for {
		select {
		case <-w.C:
		case <-timer.C:
		case <-ctx.Done():
			now := t.lock()
			t.shelf.Leave(w, now)
			t.unlock(now)
			return nil, receiveError(r, context.Cause(ctx))
		}
		now := t.lock()
		ds, done, next, err := t.shelf.Collect(w, now)
		t.unlock(now)
		switch {
		case err != nil:
			return nil, receiveError(r, err)
		case done:
			return ds, nil
		case !next.IsZero():
			timer.Reset(next.Sub(now))
		}
	}
}

// check checks a receive.
func check(r transport.ReceiveRequest) error {
	if err := tidegate.ValidateGroup(r.Group); err != nil {
		return err
	}
	if err := tidegate.ValidateTopic(r.Topic); err != nil {
		return err
	}
	if r.InvisibleDuration <= 0 {
		return &tidegate.Error{
			Op: "ReceiveMessage", Subject: r.Topic, Code: protocol.CodeIllegalInvisibleTime,
			Message: "the invisible duration is " + r.InvisibleDuration.String() + ", it must be positive",
		}
	}
	return nil
}

func notConnected(err error) bool {
	e, ok := err.(*tidegate.Error) //nolint:errorlint // receive returns no other
	return ok && e.NotConnected
}

// Close returns all messages to their systems and ends all calls; their errors match
// [tidegate.ErrClosed]. It blocks until all links are closed. Later calls of Close return nil at
// once.
func (t *Table) Close() error {
	now := t.lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed, t.queue = true, nil
	t.shelf.Close()
	t.timer.Stop()
	t.armed = now // it is not armed again
	t.cancel(tidegate.ErrClosed)
	t.unlock(now)
	t.wg.Wait()
	return nil
}

// A System opens links. Several goroutines may call Open at the same time.
type System interface {
	// Open opens a link that delivers messages to f, none before the first Grant. It blocks until
	// the link can be used or ctx ends, which is after 10 s at the latest; Open then has to return
	// soon. The receives of the source fail with its error, which is a *tidegate.Error with
	// NotConnected if there is no connection. The next receive, or the next settlement of a lost
	// delivery, opens the link again.
	Open(ctx context.Context, f *Feed) (Link, error)
}

// A Link is the connection of one source to its system. Several goroutines may call its methods at
// the same time, and after Close too. A Table calls them without locks.
type Link interface {
	// Grant allows the system to push n more messages. A message that cannot be decoded does not
	// reach the Feed; the link settles it and grants one more message instead. Grant does not
	// block. It may be called in the goroutine that calls Feed.Deliver.
	Grant(n int)

	// Settle settles messages, which are in flight, at most once successfully. It blocks until the
	// system has confirmed the outcomes, or over a protocol without confirmation until they are
	// written, or until ctx or the link ends. It returns an error for each message, or nil if there
	// is none. After an error the message is still in flight, and the Table settles it again later,
	// perhaps with another outcome, unless the link was lost. If the outcome of the failed call may
	// have reached the system, the error is a *tidegate.Error with MaybeStored, and a repeated
	// settlement must do nothing and return nil. An error for the end of ctx wraps
	// context.Cause(ctx).
	Settle(ctx context.Context, list []Settlement) []error

	// Close ends the link and the calls of Settle under way. The system gets every message back
	// that is not settled, including those that are still on their way, without a failed attempt.
	// Close blocks until that is done, a few seconds at most; the source opens no other link
	// meanwhile. A Table closes a link at most once, and not after
	// Feed.Lost unless that came before the end of Open.
	Close()
}

// An Outcome is the end of a message in its system.
type Outcome int

// The outcomes.
const (
	// Accepted: the message was consumed, or the filter does not select it. The group does not get
	// it again.
	Accepted Outcome = iota

	// Released: the message was not delivered. The system delivers it again, without a failed
	// attempt.
	Released

	// Retried: the attempt failed. The system delivers the message again after Settlement.Delay, or
	// a delay of its own, with the next attempt number.
	Retried

	// DeadLettered: the message becomes a dead letter of the group.
	DeadLettered

	// Redelivered: the attempt failed. The system delivers the message itself again at once, with
	// the next attempt number. Only a Table with Options.NegativeAcks asks for it.
	Redelivered
)

// A Settlement is the outcome of one message.
type Settlement struct {
	// Native is the message as it was passed to Feed.Deliver.
	Native any

	// Delivery is the decoded message. Attempt is the number of the delivery that ends. Settle must
	// not change or keep it.
	Delivery *tidegate.Delivery

	Outcome Outcome

	// Delay is the requested delay of Retried. Zero means at once.
	Delay time.Duration

	// Reason is the reason of Retried and DeadLettered, for people. It is not empty for
	// DeadLettered.
	Reason string
}

// A Feed takes the messages of one link. Its methods do not block, except that Deliver may call
// Link.Grant. The link calls Deliver in the order of the messages, and holds no lock that Grant
// needs. Both methods have no effect after the end of the link.
type Feed struct {
	Group, Topic string
	// Filter is the filter of the receives. The Table itself accepts messages that a filter of tags
	// does not select. Open fails with CodeNotImplemented if Filter.SQL is set and the system
	// cannot filter.
	Filter tidegate.Filter
	// FIFO reports whether the group's messages are delivered in order.
	FIFO bool

	table *Table
	link  *link
}

const (
	maxWorkers = 4   // that settle in the background
	maxBatch   = 100 // settlements of one call in the background
)

// lock locks the shelf, makes the changes that are due, and returns the time.
func (t *Table) lock() time.Time {
	t.mu.Lock()
	now := time.Now()
	t.shelf.Due(now)
	return now
}

// unlock arms the timer, unlocks the shelf, and carries out the actions that follow the change.
func (t *Table) unlock(now time.Time) {
	out := t.shelf.Take()
	t.queue = append(t.queue, out.Settle...)
	workers := 0
	if !t.closed {
		workers = min(len(t.queue), maxWorkers-t.workers)
		t.workers += workers
	}
	if n := len(out.Open) + len(out.Close) + workers; n > 0 { // Add(0) may race with Wait
		t.wg.Add(n)
	}
	if next := t.shelf.Next(); !next.IsZero() && (t.armed.IsZero() || next.Before(t.armed)) {
		t.timer.Reset(next.Sub(now))
		t.armed = next
	}
	t.mu.Unlock()

	for _, w := range out.Wake {
		select {
		case w.C <- struct{}{}:
		default: // it is awake
		}
	}
	for _, g := range out.Grant {
		native(g.Link).Grant(g.N)
	}
	for _, l := range out.Open {
		go t.open(l)
	}
	for _, l := range out.Close {
		go func() {
			defer t.wg.Done()
			native(l).Close()
			now := t.lock()
			t.shelf.Closed(l)
			t.unlock(now)
		}()
	}
	for range workers {
		go t.work()
	}
}

func native(l *link) Link { return l.Native.(Link) }

// tick is the function of the timer.
func (t *Table) tick() {
	now := t.lock()
	t.armed = time.Time{}
	t.unlock(now)
}

func (t *Table) open(l *link) {
	defer t.wg.Done()
	ctx, cancel := context.WithTimeoutCause(t.ctx, openTimeout, fmt.Errorf("%w: no response within %v", tidegate.ErrUnavailable, openTimeout))
	defer cancel()
	k := l.Source.key
	link, err := t.system.Open(ctx, &Feed{Group: k.Group, Topic: k.Topic, Filter: k.Filter, FIFO: l.FIFO, table: t, link: l})
	now := t.lock()
	l.Native = link
	t.shelf.Opened(l, err, now)
	t.unlock(now)
}

// Deliver adds a message. d has the decoded message; its Attempt is the attempt number of the
// system, from 1. The Table keeps d until the message ends, and delivers copies of it with Handle,
// ConsumerGroup and InvisibleUntil. The message comes back in Settlement.Native.
func (f *Feed) Deliver(d *tidegate.Delivery, native any) {
	t := f.table
	now := t.lock()
	t.shelf.Deliver(f.link, d, native, now)
	t.unlock(now)
}

// Lost reports that the link has ended without a call of Close: the system has all messages back.
// The receives of the source fail with err. Settlements of its deliveries fail with NotConnected
// until there is a new link, which they open in the background, and with
// [tidegate.ErrInvalidHandle] afterwards.
func (f *Feed) Lost(err error) {
	t := f.table
	now := t.lock()
	t.shelf.Lost(f.link, cmp.Or(err, tidegate.ErrUnavailable), now)
	t.unlock(now)
}

// work carries out settlements of the queue until it is empty.
func (t *Table) work() {
	defer t.wg.Done()
	for {
		t.mu.Lock()
		n := 0
		for n < min(len(t.queue), maxBatch) && t.queue[n].Link == t.queue[0].Link {
			n++
		}
		if n == 0 {
			t.workers--
			t.mu.Unlock()
			return
		}
		batch := append([]settlement(nil), t.queue[:n]...)
		t.queue = append(t.queue[:0], t.queue[n:]...)
		t.mu.Unlock()

		errs := settle(t.ctx, batch)
		now := t.lock()
		for i, s := range batch {
			t.shelf.Left(s.message, errAt(errs, i), now)
		}
		t.unlock(now)
	}
}

// settle carries out settlements of one link.
func settle(ctx context.Context, batch []settlement) []error {
	list := make([]Settlement, len(batch))
	for i, s := range batch {
		list[i] = Settlement{Native: s.Native, Delivery: s.Delivery, Outcome: Outcome(s.Outcome), Delay: s.Delay, Reason: s.Reason}
	}
	return native(batch[0].Link).Settle(ctx, list)
}

func errAt(errs []error, i int) error {
	if i < len(errs) {
		return errs[i]
	}
	return nil
}

// receiveError describes the failure of a receive.
func receiveError(r transport.ReceiveRequest, err error) *tidegate.Error {
	return failure("ReceiveMessage", r.Topic, err)
}

// failure returns err with an operation and a subject.
func failure(op, subject string, err error) *tidegate.Error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return &tidegate.Error{Op: op, Subject: subject, Err: err}
	}
	c := *e
	if c.Op == "" {
		c.Op, c.Subject = op, subject
	}
	return &c
}

var _ transport.Receiver = (*Table)(nil)
var _ transport.Settler = (*Table)(nil)
