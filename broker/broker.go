package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
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

	fs       vfs.FS // of tests, as is memTable: store.Options.MemTableBytes
	memTable uint64
	maxHeld  int64 // likewise: consume.Config.MaxHeld
	memory   int64 // likewise: the memory of the process, in bytes; 0 for the limit of Go
	history  int64 // likewise: the memory of the history of rates, in bytes; 0 for historyBytes
}

// The defaults of Options.
const (
	DefaultMinInvisibleDuration = 10 * time.Second
	DefaultMaxInvisibleDuration = 12 * time.Hour
	DefaultMaxAutoGroups        = 10_000
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxBodySize == 0 {
		o.MaxBodySize = tidegate.MaxBodySize
	}
	if o.MinInvisibleDuration == 0 {
		o.MinInvisibleDuration = DefaultMinInvisibleDuration
	}
	if o.MaxInvisibleDuration == 0 {
		o.MaxInvisibleDuration = DefaultMaxInvisibleDuration
	}
	if o.MaxAutoGroups == 0 {
		o.MaxAutoGroups = DefaultMaxAutoGroups
	}
	if o.memory == 0 {
		o.memory = debug.SetMemoryLimit(-1)
	}
	if o.history == 0 {
		o.history = historyBytes
	}
	o.Transaction = o.Transaction.WithDefaults()
	return o
}

// Validate returns an error that names every option with an invalid value. Open returns the same
// error before it reads the directory.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	if o.Dir != "" && o.Memory != nil {
		errs = append(errs, fmt.Errorf("options Dir (%q) and Memory exclude each other; set one of them", o.Dir))
	}
	if err := o.MaxBacklog.Validate("MaxBacklog"); err != nil {
		errs = append(errs, err)
	}
	if err := o.ClientQuota.Validate("ClientQuota"); err != nil {
		errs = append(errs, err)
	}
	if err := o.Pressure.Validate("Pressure"); err != nil {
		errs = append(errs, err)
	}
	if err := o.Transaction.Validate("Transaction"); err != nil {
		errs = append(errs, err)
	}
	if o.MaxBodySize < 0 || o.MaxBodySize > 1<<30 {
		errs = append(errs, fmt.Errorf("MaxBodySize is %d bytes; give 1 to %d, or 0 for the default", o.MaxBodySize, 1<<30))
	}
	if o.MinInvisibleDuration < 0 || o.MaxInvisibleDuration < o.MinInvisibleDuration {
		errs = append(errs, fmt.Errorf("MinInvisibleDuration is %v and MaxInvisibleDuration is %v; neither may be negative, and the minimum must not exceed the maximum",
			o.MinInvisibleDuration, o.MaxInvisibleDuration))
	}
	errs = append(errs, atMost("MinInvisibleDuration", o.MinInvisibleDuration), atMost("MaxInvisibleDuration", o.MaxInvisibleDuration))
	if o.MaxAutoGroups < 0 {
		errs = append(errs, fmt.Errorf("MaxAutoGroups is %d; give 1 or more, or 0 for %d", o.MaxAutoGroups, DefaultMaxAutoGroups))
	}
	if o.CacheBytes < 0 {
		errs = append(errs, fmt.Errorf("CacheBytes is %d; give 1 or more, or 0 for the default", o.CacheBytes))
	}
	return errors.Join(errs...)
}

// atMost returns an error if d is above the maximum of settings.
func atMost(field string, d time.Duration) error {
	if d <= settings.MaxDuration {
		return nil
	}
	return fmt.Errorf("%s is %v; give at most %v", field, d, settings.MaxDuration)
}

// A Broker stores topics, consumer groups and messages. [Open] opens one. Several goroutines can
// call its methods at the same time.
type Broker struct {
	// A goroutine that holds a lock of the following list takes only locks that come after it:
	//
	//  1. Tokens, which are held across waits and I/O: that of Directory.LockAdmin, then the task
	//     of retention, then one of letters and the tasks of delayed messages and transactions. A
	//     step also holds its task.
	//  2. The lock of the message log, in which the functions given to Messages.Add run.
	//  3. The lock of a engine.Subscription, one at a time.
	//  4. The lock of the engine.Directory.
	//  5. The lock of the groups log, in which the functions given to Groups.Add run.
	//  6. All others, which are held for one read or change: those of limits, of the throttling of
	//     topics and subscriptions, owners, maintenance, retention, transactions, creations,
	//     servers, and lifeMu.

	opts   Options
	logger *slog.Logger
	store  *store.Store
	host   string
	name   string // the Endpoint of its receipts and deliveries
	opened time.Time

	calls lifetime
	components

	counters counters
	limits   *engine.Limits
	servers  servers

	transactionDefaults atomic.Pointer[settings.Transaction] // Options.Transaction, or of SetTransaction
}

// Open opens a broker with the data of its directory: topics, groups, messages and leases. It fails
// if an option is invalid, or if the directory is in use, cannot be written, is full, has corrupt
// settings, or was written by a newer version. The caller must call Close.
func Open(o Options) (*Broker, error) {
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("broker options: %w", err)
	}
	began := time.Now()
	if o.Memory != nil {
		o.fs = o.Memory.fs
	}
	s, err := store.Open(store.Options{Dir: o.Dir, FS: o.fs, Logger: o.Logger, CacheBytes: o.CacheBytes, MemTableBytes: o.memTable, AcceptLoss: o.AcceptDataLoss})
	if err != nil {
		return nil, err
	}
	l, err := engine.NewLimits(engine.LimitsConfig{Store: s, Logger: o.Logger, OnDisk: o.Dir != ""},
		settings.Limits{MaxBacklog: o.MaxBacklog, ClientQuota: o.ClientQuota, Pressure: o.Pressure})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("broker options: %w", err), s.Close())
	}
	b := &Broker{
		opts: o, logger: o.Logger, store: s, limits: l, name: "in-process", opened: began,
		counters: counters{lateness: store.DurationHistogram(), delayed: store.DurationHistogram()},
	}
	b.transactionDefaults.Store(&o.Transaction)
	if b.host, err = os.Hostname(); err != nil {
		b.host = "localhost"
	}
	b.calls.open(s)
	b.openComponents()
	if err := b.catalog.Recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("reading data directory %q: %w", o.Dir, err), b.Close())
	}
	if b.clock != nil {
		if err := b.compareClock(); err != nil {
			return nil, errors.Join(fmt.Errorf("reading data directory %q: %w", o.Dir, err), b.Close())
		}
	}
	b.maintenance.Start()
	b.limits.ShortOfDisk() // logs a limit that rejects sends from the start on
	if s.Unclean() {
		b.logRecovered(began)
	}
	return b, nil
}

// SetTransaction replaces Options.Transaction while the broker is in use. The new times apply from
// the next check of each transaction on and are not stored on disk. Zero fields mean the defaults.
// If a value is invalid, SetTransaction changes nothing and returns an error.
func (b *Broker) SetTransaction(c settings.Transaction) error {
	if err := c.Validate("Transaction"); err != nil {
		return err
	}
	c = c.WithDefaults()
	b.transactionDefaults.Store(&c)
	return nil
}

// Close rejects new calls, ends waiting receives with tidegate.ErrClosed, waits for the calls under
// way and closes the store. All acknowledged data is kept. On a full disk Close does not wait for
// space: calls under way that need space fail, and Close returns an error. After a panic Close
// waits for nothing and leaves the store locked until the process ends. Close can be called twice;
// both calls return when the broker is closed.
func (b *Broker) Close() error {
	if !b.calls.beginClosing() {
		<-b.calls.closed
		return b.calls.closeErr
	}
	b.calls.stop(tidegate.ErrClosed)
	b.store.StopWaiting()
	b.wait()
	_, subs := b.catalog.All()
	for _, s := range subs {
		s.Stop()
	}
	b.catalog.IndexRest()
	if b.compared && b.store.DiskFull() == nil { // else the next start would trust a wrong clock
		b.writeClock()
	}
	b.events.Close()
	b.calls.closeErr = b.store.Close()
	close(b.calls.closed)
	return b.calls.closeErr
}

// wait returns when no call is under way. After a panic calls may never return from the store, and
// wait returns at once.
func (b *Broker) wait() {
	done := make(chan struct{})
	go func() {
		b.maintenance.Stop()
		b.calls.operating.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-b.store.Abandoned():
	}
}

// Healthy returns nil if the store works, and otherwise an error with the cause: the store has
// failed and needs a restart of the broker, or the broker is closed. A throttle and a full disk are
// not errors of Healthy, because they end without a restart; see [Broker.Throttles].
func (b *Broker) Healthy() error {
	if err := b.store.Broken(); err != nil {
		return refusal.Store(err)
	}
	if b.calls.isClosing() {
		return refusal.Closed()
	}
	return nil
}
