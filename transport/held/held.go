package held

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held/internal/shelf"
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
// It holds no lock while it calls a [System] or a [Link]. The liveness rests on package
// internal/shelf, on one timer for all leases, and on the ends that the contracts of System and
// Link promise: of Open, of Settle and of Close.
type Table struct {
	opts   Options
	system System
	ctx    context.Context //nolint:containedctx // of native calls that no caller waits for; ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // calls under way that no caller waits for

	mu      sync.Mutex
	shelf   *shelf.Shelf
	closed  bool
	timer   *time.Timer
	armed   time.Time          // when timer fires; zero: not at all
	queue   []shelf.Settlement // to settle in the background
	workers int                // for queue
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
	limits := shelf.Limits{Messages: opts.MaxHeld, Bytes: opts.MaxHeldBytes, Idle: opts.Idle, Grace: opts.Grace, Linger: opts.Linger}
	t := &Table{opts: opts, system: system, shelf: shelf.New(limits, rand.Text()[:12]+"-")}
	t.ctx, t.cancel = context.WithCancelCause(context.Background()) // ends with Close
	t.timer = time.AfterFunc(time.Hour, t.tick)
	t.timer.Stop()
	return t
}

// Capabilities returns the capabilities that every Table has: RepeatReceive, Suspend and the
// verdict Snooze.
func (*Table) Capabilities(string) transport.Capabilities {
	return transport.Capabilities{RepeatReceive: true, Suspend: true, Verdicts: transport.Snooze}
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
	request := shelf.Request{
		Key:  shelf.Key{Group: r.Group, Topic: r.Topic, Filter: r.Filter},
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
			Op: "ReceiveMessage", Subject: r.Topic, Code: tidegate.CodeIllegalInvisibleTime,
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
