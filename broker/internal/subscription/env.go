package subscription

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/histogram"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// An Env has the parts of a broker that all its subscriptions share. A subscription calls its
// functions without a lock, except for those whose comments allow it.
type Env struct {
	Store  *store.Store
	Logger *slog.Logger
	Reads  *Reads

	Endpoint, Host string // of deliveries: Endpoint and StoreHost

	MaxInvisible time.Duration // bound of a delivery with all changes of its invisible duration
	MaxHeld      int64         // consume.Config.MaxHeld
	Leases       *Leases

	// LastHeartbeat is consume.Config.LastHeartbeat. It can be called under the lock.
	LastHeartbeat func(owner string) (time.Time, bool)

	// Life ends when the broker closes.
	Life context.Context //nolint:containedctx // the broker's own life, not a request's

	// Begin counts work as under way, and returns false if the broker is closing. End is deferred
	// and ends that work. Begin can be called under the lock.
	Begin func() bool
	End   func()

	// CarryOut runs work to its end, even if ctx ends before. The caller has begun its own work.
	CarryOut func(ctx context.Context, work func() error) error

	// Depart writes messages that leave to their new topics, ends each with Leaving.End, and
	// returns an error for each when this is on disk.
	Depart func([]*Leaving) []error

	// AwaitParked waits until the record of a parked message group is on disk, and logs it.
	AwaitParked func(from *topic.Consumption, g *consume.ParkedGroup, write *store.PendingWrite) error

	// RetryTopic returns the subscription of the same group to its retry topic for the topic of a
	// subscription, and nil if there is none.
	RetryTopic func(ctx context.Context, s *Subscription) (*Subscription, error)

	// CountCold counts messages that a group far behind has read from the store.
	CountCold func(c *topic.Consumption, ms []store.Message)

	// Damaged counts messages that cannot be read.
	Damaged func(messages int64)

	// Lateness has the times from the end of a retry interval to the moment at which the message
	// was ready, in seconds.
	Lateness *histogram.Histogram
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
