package subscription

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/failures"
	"github.com/tidegate/tidegate/broker/internal/heartbeat"
	"github.com/tidegate/tidegate/broker/internal/histogram"
	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// An Env has the parts of a broker that all its subscriptions share.
type Env struct {
	Store  *store.Store
	Logger *slog.Logger
	Reads  *Reads

	Clock    *wallclock.Clock  // nil: the wall clock is always trusted
	Activity *history.Activity // for the history of rates and backlogs; nil: there is none

	Endpoint, Host string // of deliveries: Endpoint and StoreHost

	MaxInvisible time.Duration // bound of a delivery with all changes of its invisible duration
	MaxHeld      int64         // consume.Config.MaxHeld
	Leases       *Leases

	Owners  *heartbeat.Owners
	Limits  *limits.Limits // count cold reads
	Delayed *pending.Delayed
	Events  *tally.Log // of the ends of messages

	Failures failures.Log // the latest ones of each group

	// Life ends when the broker closes.
	Life context.Context //nolint:containedctx // the broker's own life, not a request's

	Calls  Calls
	Topics Topics // set by catalog.New

	Damaged *atomic.Int64 // counts messages that cannot be read

	// Lateness has the times from the end of a retry interval to the moment at which the message
	// was ready, in seconds.
	Lateness *histogram.Histogram
}

// Calls count the work under way, which the end of the broker waits for.
type Calls interface {
	// Begin counts work as under way, and returns false if the broker is closing. End is deferred
	// and ends that work. Begin can be called under the lock.
	Begin() bool
	End()
}

// CarryOut runs work to its end, even if ctx ends before. The caller has begun its own work. While
// the broker is closing, which waits for the caller, CarryOut waits for the work.
func (e *Env) CarryOut(ctx context.Context, work func() error) error {
	if !e.Calls.Begin() {
		return work()
	}
	done := make(chan error, 1)
	go func() {
		defer e.Calls.End()
		done <- work()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return refusal.Unsettled(ctx, context.Cause(ctx))
	}
}

// Topics find and create the topics that messages leave for.
type Topics interface {
	// FindTopic returns a topic, and nil if there is none. It takes one lock, and holds it only for
	// the look.
	FindTopic(name string) *topic.Topic

	// CreateOwnTopic creates a topic that the broker itself writes to, unless it exists. automatic
	// means that it is an automatic dead letter queue. It waits for other changes of settings.
	CreateOwnTopic(name string, c settings.Topic, automatic bool) error

	// RetrySubscriptions returns the subscriptions of the same group to its retry topics for the
	// topic of a subscription, at most two.
	RetrySubscriptions(ctx context.Context, s *Subscription) ([]*Subscription, error)
}

// Bounds of the messages that receives have read and not admitted yet.
const (
	maxReads     = 8       // receives that read at a time
	maxReadBytes = 1 << 20 // of one read; the last message can exceed it
)

// Reads bounds the messages in memory that all receives together have read.
type Reads struct {
	slots chan struct{} // has a value for each receive that reads
	ahead atomic.Int64  // bytes of bodies that were read ahead
}

// NewReads returns the bounds of a broker.
func NewReads() *Reads { return &Reads{slots: make(chan struct{}, maxReads)} }

// Add changes the size of the bodies that were read ahead.
func (r *Reads) Add(bytes int64) { r.ahead.Add(bytes) }

// Ahead returns the size of the bodies that were read ahead.
func (r *Reads) Ahead() int64 { return r.ahead.Load() }
