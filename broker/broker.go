package broker

import (
	"context"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Options are the settings of a broker. The zero value is a broker in memory without limits of the
// backlog and of rates.
type Options struct {
	// Dir is the data directory. Open creates it if it is missing. One broker at a time can use it.
	// Empty means that everything is in memory.
	Dir string

	// Memory keeps the data in memory after Close, for a restart. Dir must be empty then. Nil means
	// that Close discards the data of a broker without Dir.
	Memory *Memory

	// Logger receives events for operators, for example throttles and corrupt messages. Nil means
	// no log.
	Logger *slog.Logger

	// MaxBacklog is the backlog limit of topics without a limit of their own. Zero means no limit.
	MaxBacklog settings.Limit

	// ClientQuota is the send rate of each client, which Incoming.Client identifies. Zero means no
	// bound.
	ClientQuota settings.Quota

	// Pressure has the limits of the storage's state. Zero means the defaults of its fields.
	Pressure settings.Pressure

	// Transaction has the times of checks for unresolved transactions, for topics without times of
	// their own. Zero fields mean the defaults.
	Transaction settings.Transaction

	// MaxBodySize is the maximum size of a body in bytes. Default: 4 MiB.
	MaxBodySize int

	// MinInvisibleDuration and MaxInvisibleDuration bound the invisible duration that a receive can
	// request. MaxInvisibleDuration also bounds the time from a delivery to its end, with all
	// changes of its invisible duration. Tests set a small minimum. Default: 10 s and 12 h, as in
	// RocketMQ.
	MinInvisibleDuration, MaxInvisibleDuration time.Duration

	// MaxAutoGroups is the maximum number of auto-created consumer groups. The first receive of a
	// group creates it. Above the maximum, the first receive of a further group fails with 40403.
	// The reason for the limit is that the state of a group in memory, on disk and in metrics is
	// permanent. Groups of PutGroup do not count. Default: 10 000.
	MaxAutoGroups int

	// CacheBytes is the size of the cache for messages that are read from disk, in addition to the
	// operating system's cache of files. Default: 4 MiB, or 1 MiB without Dir.
	CacheBytes int64

	// AcceptDataLoss opens a directory in which acknowledged data is missing, for example because
	// a log was truncated or a database was replaced by an older copy. The broker logs the missing
	// files and continues without them. False means that Open fails.
	AcceptDataLoss bool

	seams engine.Seams // of tests
}

// WithDefaults returns o with the default of each zero limit that does not depend on the machine.
func (o Options) WithDefaults() Options {
	e := o.engine().WithDefaults()
	o.MaxBodySize, o.MinInvisibleDuration, o.MaxInvisibleDuration, o.MaxAutoGroups = e.MaxBodySize, e.MinInvisibleDuration, e.MaxInvisibleDuration, e.MaxAutoGroups
	o.Pressure, o.Transaction = o.Pressure.WithDefaults(), o.Transaction.WithDefaults()
	return o
}

// engine returns the options of the engine. The data of a Memory is in its file system.
func (o Options) engine() engine.Options {
	seams := o.seams
	if o.Memory != nil {
		seams.FS = o.Memory.fs
	}
	return engine.Options{
		Dir: o.Dir, InMemory: o.Memory != nil, Logger: o.Logger,
		MaxBacklog: o.MaxBacklog, ClientQuota: o.ClientQuota, Pressure: o.Pressure, Transaction: o.Transaction,
		MaxBodySize: o.MaxBodySize, MinInvisibleDuration: o.MinInvisibleDuration, MaxInvisibleDuration: o.MaxInvisibleDuration,
		MaxAutoGroups: o.MaxAutoGroups, CacheBytes: o.CacheBytes, AcceptDataLoss: o.AcceptDataLoss, Seams: seams,
	}
}

// Validate returns an error that names every option with an invalid value. Open returns the same
// error before it reads the directory.
func (o Options) Validate() error { return o.engine().Validate() }

// A Memory is a data directory in memory. It outlives the brokers that are opened on it, one at a
// time, so that a test can restart a broker. Create it with [NewMemory] and pass it as
// Options.Memory.
type Memory struct{ fs vfs.FS }

// NewMemory returns an empty directory in memory.
func NewMemory() *Memory { return &Memory{fs: vfs.NewMem()} }

// A Broker stores topics, consumer groups and messages. [Open] opens one. Several goroutines can
// call its methods at the same time.
type Broker struct{ engine *engine.Engine }

// Open opens a broker with the data of its directory: topics, groups, messages and leases. It fails
// if an option is invalid, or if the directory is in use, cannot be written, is full, has corrupt
// settings, or was written by a newer version. The caller must call Close.
func Open(o Options) (*Broker, error) {
	e, err := engine.Open(o.engine())
	if err != nil {
		return nil, err
	}
	return &Broker{e}, nil
}

// Engine returns the engine of the broker, for package broker/server.
func (b *Broker) Engine() *engine.Engine { return b.engine }

// Close rejects new calls, ends waiting receives with tidegate.ErrClosed, waits for the calls under
// way and closes the store. All acknowledged data is kept. On a full disk Close does not wait for
// space: calls under way that need space fail, and Close returns an error. After a panic Close
// waits for nothing and leaves the store locked until the process ends. Close can be called twice;
// both calls return when the broker is closed.
func (b *Broker) Close() error { return b.engine.Close() }

// Healthy returns nil if the store works, and otherwise an error with the cause: the store has
// failed and needs a restart of the broker, or the broker is closed. A throttle and a full disk are
// not errors of Healthy, because they end without a restart; see [Broker.Throttles].
func (b *Broker) Healthy() error { return b.engine.Healthy() }

// SetLimits replaces all limits of the whole broker while it is in use, and returns when they are
// on disk. They apply from the next send on. A new ClientQuota refills the burst of every client.
// If a value is invalid, SetLimits changes nothing and returns an error that names each fault
// (40000).
//
// The limits survive a restart. The last change of each limit wins: if Options has another value of
// a limit at the next Open than it has now, the value of Options applies. ClientQuota counts as one
// limit.
func (b *Broker) SetLimits(ctx context.Context, l settings.Limits) error {
	return b.PatchLimits(ctx, func(now *settings.Limits) error { *now = l; return nil })
}

// PatchLimits is SetLimits for a change of the limits that are in effect. It calls change with a
// copy of them, while no other change of settings is under way; change must not wait. An error of
// change is returned and changes nothing.
func (b *Broker) PatchLimits(ctx context.Context, change func(*settings.Limits) error) error {
	return b.engine.PatchLimits(ctx, change, nil)
}

// ConfigureLimits replaces the limits of Options while the broker is in use, as Close and Open with
// these would. A limit that differs from the one of Options replaces the one of SetLimits. The rest
// is as in SetLimits.
func (b *Broker) ConfigureLimits(ctx context.Context, l settings.Limits) error {
	return b.engine.ConfigureLimits(ctx, l)
}

// Limits returns the limits of the whole broker that are in effect.
func (b *Broker) Limits() settings.Limits { return b.engine.Limits() }

// Throttles returns the state of each limit that is set: first the limits that reject sends, then
// by limit and subject. It omits the quota of a client, which rejects one client for a moment. It
// can read from the store.
func (b *Broker) Throttles() []status.LimitState { return b.engine.Throttles() }

// SetTransaction replaces Options.Transaction while the broker is in use. The new times apply from
// the next check of each transaction on and are not stored on disk. Zero fields mean the defaults.
// If a value is invalid, SetTransaction changes nothing and returns an error.
func (b *Broker) SetTransaction(c settings.Transaction) error { return b.engine.SetTransaction(c) }
