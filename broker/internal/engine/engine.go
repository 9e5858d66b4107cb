// Package engine is the broker without a protocol. An [Engine] has all operations; package broker
// is its facade for programs, which describes those of programs, and package broker/server gives it
// to clients.
//
// # Files
//
//   - engine.go: options, opening and closing, the parts and the order of their locks, the clock
//   - send.go: sends, recalls, ends of transactions; topic.go: queues, and what is put into them;
//     topics.go: how topics and address settings are changed
//   - limits.go, throttle.go: limits of backlog, rate and storage; the error of a throttled send
//   - delayed.go, transactions.go: messages that are in no queue yet; ids.go: duplicates
//   - litetopic.go: the lite topics of a topic, and their end; liteconsumer.go: which consumer has
//     subscribed to which, and the wait of its receives
//   - receive.go: a receive until its deliveries; fetch.go: what it reads; watch.go: receives that
//     leave a watch
//   - verdict.go: Ack, Settle and Extend; settle.go: the same for one subscription: apply carries
//     out the effects of package consume, a Departure writes a dead letter, and by expire leases
//     and retry intervals end
//   - subscription.go: a group in a topic, with its lock; policy.go: groups, attempts, destinations
//   - clients.go: servers, heartbeats of clients; lists of leases
//   - deadletters.go: dead letters, parked groups and failures, for operators; letters.go,
//     redrive.go: how they are read, sent back and removed, retry topics; browse.go: pages
//   - settings.go: what programs read and change; catalog.go, directory.go, recover.go: how topics,
//     groups and subscriptions are changed, found, and read at the start
//   - removal.go: retention, purges, rewinds; trace.go: stored messages, and where one is
//   - maintenance.go: the loop with the tasks of delayed messages, transactions and retention
//   - survey.go: counters for metrics, lists, overview; history.go, sampler.go: the last day
//
// The decisions are pure, in packages beside this one: consume (the states of a message), throttle,
// retention, deadletter, filter. Package store has the disk.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// Options are those of broker.Options, which describes the fields.
type Options struct {
	Dir      string
	InMemory bool // the data is in Seams.FS, and Dir is empty
	Logger   *slog.Logger

	MaxBacklog  settings.Limit
	ClientQuota settings.Quota
	Pressure    settings.Pressure
	Transaction settings.Transaction
	MaxBodySize int

	MinInvisibleDuration, MaxInvisibleDuration time.Duration

	MaxAutoGroups  int
	CacheBytes     int64
	AcceptDataLoss bool

	Seams
}

// Seams are options of tests, except for the file system of a broker.Memory. Zero fields have no
// effect.
type Seams struct {
	FS            vfs.FS
	MemTableBytes uint64 // of store.Options
	ProcessMemory int64  // bytes, in place of the limit of Go
	HistoryMemory int64  // bytes of the history of rates, in place of historyBytes
}

const defaultMaxAutoGroups = 10_000

// WithDefaults returns o with the default of every zero field.
func (o Options) WithDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxBodySize == 0 {
		o.MaxBodySize = tidegate.MaxBodySize
	}
	if o.MinInvisibleDuration == 0 {
		o.MinInvisibleDuration = 10 * time.Second
	}
	if o.MaxInvisibleDuration == 0 {
		o.MaxInvisibleDuration = 12 * time.Hour
	}
	if o.MaxAutoGroups == 0 {
		o.MaxAutoGroups = defaultMaxAutoGroups
	}
	if o.ProcessMemory == 0 {
		o.ProcessMemory = debug.SetMemoryLimit(-1)
	}
	if o.HistoryMemory == 0 {
		o.HistoryMemory = historyBytes
	}
	o.Transaction = o.Transaction.WithDefaults()
	return o
}

// Validate is that of broker.Options.
func (o Options) Validate() error {
	o = o.WithDefaults()
	var errs []error
	if o.Dir != "" && o.InMemory {
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
		errs = append(errs, fmt.Errorf("MaxAutoGroups is %d; give 1 or more, or 0 for %d", o.MaxAutoGroups, defaultMaxAutoGroups))
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

// An Engine stores topics, consumer groups and messages. [Open] opens one. Several goroutines can
// call its methods at the same time.
type Engine struct {
	// A goroutine that holds a lock of the following list takes only locks that come after it:
	//
	//  1. Tokens, which are held across waits and I/O: that of Directory.LockAdmin, then the task
	//     of lite topics, then that of retention, then one of letters and the tasks of delayed messages and transactions. A
	//     step also holds its task.
	//  2. The lock of the message log, in which the functions given to Messages.Add run.
	//  3. The lock of a Subscription, one at a time.
	//  4. The lock of the Directory.
	//  5. The lock of the groups log, in which the functions given to Groups.Add run.
	//  6. All others, which are held for one read or change: those of limits, of the throttling of
	//     topics and subscriptions, owners, maintenance, retention, transactions, creations,
	//     lite topics, servers, and lifeMu.

	opts   Options
	logger *slog.Logger
	store  *store.Store
	host   string
	name   string // the Endpoint of its receipts and deliveries
	opened time.Time

	calls lifetime
	components

	counters counters
	limits   *Limits
	servers  serverList

	transactionDefaults atomic.Pointer[settings.Transaction] // Options.Transaction, or of SetTransaction
}

// Open opens the engine of broker.Open.
func Open(o Options) (*Engine, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("broker options: %w", err)
	}
	began := time.Now()
	s, err := store.Open(store.Options{Dir: o.Dir, FS: o.FS, Logger: o.Logger, CacheBytes: o.CacheBytes, MemTableBytes: o.MemTableBytes, AcceptLoss: o.AcceptDataLoss})
	if err != nil {
		return nil, err
	}
	l, err := NewLimits(LimitsConfig{Store: s, Logger: o.Logger, OnDisk: o.Dir != ""},
		settings.Limits{MaxBacklog: o.MaxBacklog, ClientQuota: o.ClientQuota, Pressure: o.Pressure})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("broker options: %w", err), s.Close())
	}
	b := &Engine{
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
	b.lites.WakeAll()
	b.maintenance.Start()
	b.limits.ShortOfDisk() // logs a limit that rejects sends from the start on
	if s.Unclean() {
		b.logRecovered(began)
	}
	return b, nil
}

// SetTransaction executes the method of broker.Broker.
func (e *Engine) SetTransaction(c settings.Transaction) error {
	if err := c.Validate("Transaction"); err != nil {
		return err
	}
	c = c.WithDefaults()
	e.transactionDefaults.Store(&c)
	return nil
}

// Close executes the method of broker.Broker.
func (e *Engine) Close() error {
	if !e.calls.beginClosing() {
		<-e.calls.closed
		return e.calls.closeErr
	}
	e.calls.stop(tidegate.ErrClosed)
	e.store.StopWaiting()
	e.wait()
	_, subs := e.catalog.All()
	for _, s := range subs {
		s.Stop()
	}
	e.catalog.IndexRest()
	if e.compared && e.store.DiskFull() == nil { // else the next start would trust a wrong clock
		e.writeClock()
	}
	e.events.Close()
	e.calls.closeErr = e.store.Close()
	close(e.calls.closed)
	return e.calls.closeErr
}

// wait returns when no call is under way. After a panic calls may never return from the store, and
// wait returns at once.
func (e *Engine) wait() {
	done := make(chan struct{})
	go func() {
		e.maintenance.Stop()
		e.calls.operating.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-e.store.Abandoned():
	}
}

// Healthy executes the method of broker.Broker.
func (e *Engine) Healthy() error {
	if err := e.store.Broken(); err != nil {
		return refusal.Store(err)
	}
	if e.calls.isClosing() {
		return refusal.Closed()
	}
	return nil
}

// components are the packages below broker, as one broker uses them.
type components struct {
	maintenance *maintenance // of the work beside requests

	delayed      *delayed
	transactions *transactions
	retention    *Remover
	letters      *Letters
	sender       *Sending
	catalog      *Catalog
	env          *Env // of all subscriptions
	owners       Owners
	lites        *LiteTopics
	events       *tally.Log // of the ends of messages

	clock   *wallclock.Clock // nil for a broker in memory
	history *historySampler  // of rates and backlogs

	compared     bool        // clock was compared with the data directory; set by Open
	clockTask    *Task       // looks at clock; nil like it
	clockStepped atomic.Bool // the verdict about the clock has changed since clockTask looked
}

// openComponents prepares all components. Each one gets only parts that are complete, in the order
// of the code, with two exceptions: subscriptions need the catalog, which creates them, so
// NewCatalog completes their Env; and the transactions need the catalog, which restores
// them, so pendingEngine uses it. Both use it only after catalog.Recover has begun. The tasks run
// after the maintenance is started.
func (e *Engine) openComponents() {
	life := e.calls.life
	e.maintenance = newMaintenance(life, e.logger, &e.calls)
	e.events = tally.New(e.logger)
	if e.clock = e.newClock(); e.clock != nil {
		e.clockTask = e.maintenance.Add(taskConfig{
			Step: e.lookAtClock, Failed: "wall clock not compared", Pause: distrustPause, MaxPause: distrustPause,
		})
	}
	e.history = newSampler(e.opened, e.opts.HistoryMemory, e.maintenance)
	directory := NewDirectory(e.history.activity)
	e.history.directory = directory
	e.letters = NewLetters(LettersConfig{Store: e.store, Directory: directory, Logger: e.logger, Life: life, MaxBodySize: e.opts.MaxBodySize, Damaged: &e.counters.damaged})
	p := pendingConfig{
		Store: e.store, Loop: e.maintenance, Logger: e.logger, pendingParts: pendingEngine{e, directory}, Damaged: &e.counters.damaged, Late: &e.counters.delayed,
	}
	e.delayed, e.transactions = newDelayed(p), newTransactions(p)
	e.retention = NewRemoval(RemovalConfig{
		Store: e.store, Loop: e.maintenance, Logger: e.logger, Delayed: e.delayed, Transactions: e.transactions,
		Directory: directory, Subscriptions: directory.Subscriptions(), Letters: e.letters, Clock: e.clock,
	})
	e.sender = NewSending(SendingConfig{
		Store: e.store, Limits: e.limits, Delayed: e.delayed, Transactions: e.transactions, Directory: directory,
		MaxBodySize: e.opts.MaxBodySize, Endpoint: e.name, Throttled: &e.counters.throttled, Clock: e.clock,
	})
	e.env = &Env{
		Store: e.store, Logger: e.logger, Reads: NewReads(), Endpoint: e.name, Host: e.host,
		MaxInvisible: e.opts.MaxInvisibleDuration, Leases: NewLeases(e.opts.ProcessMemory),
		Owners: &e.owners, Limits: e.limits, Delayed: e.delayed, Events: e.events, Life: life, Calls: &e.calls,
		Damaged: &e.counters.damaged, Lateness: &e.counters.lateness, Clock: e.clock, Activity: e.history.activity,
	}
	e.catalog = NewCatalog(CatalogConfig{
		Store: e.store, Logger: e.logger, Loop: e.maintenance, Delayed: e.delayed, Transactions: e.transactions,
		Retention: e.retention, Letters: e.letters, Owners: &e.owners, Directory: directory, Env: e.env,
		Servers: &e.servers, Transaction: &e.transactionDefaults, MaxAutoGroups: e.opts.MaxAutoGroups,
	})
	e.lites = NewLiteTopics(e.maintenance, e.catalog, e.retention)
	e.sender.LiteTopics = e.lites
}

// A pendingEngine is the engine as delayed messages and transactions use it.
type pendingEngine struct {
	b         *Engine
	directory *Directory
}

// Topics implements pendingParts.
func (h pendingEngine) Topics() func(id uint32) pendingTopic { return h.directory.PendingTopics() }

// ShortOfDisk implements pendingParts.
func (h pendingEngine) ShortOfDisk() bool { return h.b.limits.ShortOfDisk() != nil }

// Room implements pendingParts.
func (h pendingEngine) Room(ctx context.Context, bytes int64) error {
	return h.b.roomOnDisk(ctx, bytes)
}

// GivenUp implements pendingParts.
func (h pendingEngine) GivenUp() pendingTopic {
	if t := h.directory.FindTopic(AbandonedTransactions); t != nil {
		return FirstQueue{Topic: t}
	}
	return nil
}

// CreateGivenUp implements pendingParts.
func (h pendingEngine) CreateGivenUp() error {
	return h.b.catalog.CreateOwnTopic(AbandonedTransactions, settings.Topic{Queues: 1}, false)
}

// Ask implements pendingParts.
func (h pendingEngine) Ask(c TransactionCheck) bool { return h.b.servers.check(c) }

// roomOnDisk waits until there is room for so many bytes. While the disk is short of room, or would
// keep it waiting while all sends are rejected, it returns the throttle.
func (e *Engine) roomOnDisk(ctx context.Context, bytes int64) error {
	if th := e.limits.ShortOfDisk(); th != nil {
		return Rejected(*th)
	}
	_, err := e.limits.Room(ctx, bytes)
	return err
}

// A lifetime is the time between Open and Close, and the calls under way.
type lifetime struct {
	life context.Context //nolint:containedctx // the broker's own life, not a request's: it ends, with cause ErrClosed, when Close begins
	stop context.CancelCauseFunc

	store *store.Store // abandoned after a panic

	lifeMu    sync.RWMutex
	closing   bool           // guarded by lifeMu
	operating sync.WaitGroup // the calls and timers under way, not the steps of maintenance
	closed    chan struct{}
	closeErr  error // valid once closed is closed
}

func (l *lifetime) open(s *store.Store) {
	// The broker's own life, not a request's.
	l.life, l.stop = context.WithCancelCause(context.Background())
	l.closed, l.store = make(chan struct{}), s
}

// logRecovered logs the contents of a directory that was not closed in order.
func (e *Engine) logRecovered(began time.Time) {
	t := e.Survey().Totals
	e.logger.Warn("the last process did not close the data directory; its contents are recovered", "directory", e.opts.Dir,
		"topics", t.Topics, "stored_messages", t.Stored.Messages, "delayed_messages", t.Delayed.Messages, "half_messages", t.HalfMessages,
		"deliveries_in_flight", t.Inflight, "retries_waiting", t.WaitingRetry, "took", time.Since(began).Round(time.Millisecond))
}

// Begin counts a call as under way, and returns false if the broker is closing.
func (l *lifetime) Begin() bool {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if l.closing {
		return false
	}
	l.operating.Add(1)
	return true
}

// End ends the call that Begin counted. Callers defer it. A panic continues in the caller, which
// can survive it, as servers do. The state in memory is unknown after a panic, so End breaks the
// broker first: the broker rejects all calls, and a restart reads the state from disk.
func (l *lifetime) End() {
	p := recover()
	if p != nil {
		l.Abandon(p)
	}
	l.operating.Done()
	if p != nil {
		panic(p)
	}
}

// Abandon breaks the broker after a panic, in End or in a step of maintenance.
func (l *lifetime) Abandon(panicked any) {
	l.store.Abandon(fmt.Errorf("a panic in the broker: %v", panicked))
}

// beginWith is Begin for a call with a ctx. The error is the cause of a ctx that has ended, or that
// the broker is closing. Without an error the caller has to call End.
func (l *lifetime) beginWith(ctx context.Context) (end func(), err error) {
	if !l.Begin() {
		return nil, refusal.Closed()
	}
	if ctx.Err() != nil {
		l.End()
		return nil, &tidegate.Error{Err: context.Cause(ctx)}
	}
	return l.End, nil
}

// beginClosing ends Begin, and reports whether this is the first call.
func (l *lifetime) beginClosing() (first bool) {
	l.lifeMu.Lock()
	defer l.lifeMu.Unlock()
	first = !l.closing
	l.closing = true
	return first
}

func (l *lifetime) isClosing() bool {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	return l.closing
}

// distrustPause is the time between two looks at a wall clock that is not trusted: it may be
// corrected. Nothing looks regularly at a clock that is trusted; each send looks, and all work that
// depends on ages.
const distrustPause = 5 * time.Second

// compareClock compares the wall clock with the newest time in the data directory. A directory of
// which the last process did not trust the clock can have messages with wrong times. Then the time
// that the process trusted last counts.
func (e *Engine) compareClock() error {
	last, ok, err := e.store.Clock()
	if err != nil {
		return err
	}
	newest := e.catalog.Newest()
	if ok && (last.Distrusted || last.At.After(newest)) {
		newest = last.At
	}
	v := e.clock.Compare(newest)
	e.compared = true
	if v.Distrusted || last.Distrusted {
		e.clockChanged()
	}
	return nil
}

// clockChanged writes the verdict about the wall clock to the store and the log, and starts the
// work that depends on it. The write comes before those of messages with the new time.
func (e *Engine) clockChanged() {
	e.writeClock()
	switch v := e.clock.At(time.Now()); {
	case !v.Distrusted:
		e.logger.Info("the time of the wall clock is accepted: messages are removed by age again", "time", v.Now)
	case v.AtStart:
		e.logger.Warn("the wall clock differs by more than an hour from the newest time in the data directory: no message is removed by age until its time is accepted; "+
			"synchronise the clock (NTP) if it is wrong", "time", v.Now, "newest", v.Expected, "ahead_by", v.Jump, "until", v.Until)
	default:
		e.logger.Warn("the wall clock was set: no message is removed by age until its time is accepted; synchronise the clock (NTP) if it is wrong",
			"time", v.Now, "expected", v.Expected, "ahead_by", v.Jump, "until", v.Until)
	}
	e.clockStepped.Store(true)
	e.clockTask.Wake(time.Now())
}

// writeClock writes the record of the wall clock.
func (e *Engine) writeClock() {
	e.store.Messages.Add(func(w *store.Batch) {
		v := e.clock.At(time.Now())
		w.PutClock(store.Clock{At: v.Expected, Distrusted: v.Distrusted})
	}, nil)
}

// lookAtClock is the step of clockTask, which begins when the clock is not trusted. It notices a
// correction, and the end of the distrust.
func (e *Engine) lookAtClock(context.Context, time.Time) (next time.Time, err error) {
	v := e.clock.Look()
	if e.clockStepped.Swap(false) {
		e.catalog.ClockChanged(v.Now)
	}
	if !v.Distrusted {
		return time.Time{}, nil
	}
	if next = v.Now.Add(distrustPause); next.After(v.Until) {
		next = v.Until
	}
	return next, nil
}

// clockStatus returns the state of a wall clock that is not trusted, and nil for one that is.
func (e *Engine) clockStatus() *status.Clock {
	v := e.clock.At(time.Now())
	if !v.Distrusted {
		return nil
	}
	s := &status.Clock{AheadMS: v.Jump.Milliseconds(), AtStart: v.AtStart, Expected: v.Expected, AcceptedAt: v.Until}
	topics, subs := e.catalog.All()
	for _, t := range topics {
		s.Kept += t.KeptExpired()
	}
	for _, sub := range subs {
		s.Postponed += sub.Postponed()
	}
	return s
}

// newClock returns the clock of a broker with a data directory. A broker in memory has none:
// nothing in it is older than the process, and its tests run in virtual time.
func (e *Engine) newClock() *wallclock.Clock {
	if e.opts.Dir == "" {
		return nil
	}
	return wallclock.New(e.clockChanged)
}

// Snapshot executes the method of broker.Broker.
func (e *Engine) Snapshot(ctx context.Context, dir string) error {
	return refusal.WithOp("Snapshot", e.snapshot(ctx, dir))
}

func (e *Engine) snapshot(ctx context.Context, dir string) error {
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return err
	}
	defer end()
	if e.opts.Dir == "" {
		return &tidegate.Error{Code: tidegate.CodeBadRequest, Err: errors.New("the broker is in memory; a snapshot needs a data directory")}
	}
	if err := e.catalog.LockAdmin(ctx); err != nil {
		return err
	}
	defer e.catalog.UnlockAdmin()
	if err := e.store.Snapshot(ctx, dir); err != nil {
		return refusal.Store(fmt.Errorf("writing a snapshot to %s: %w", dir, err))
	}
	return nil
}

// Parts are the parts of a broker, for tests: they hold one of them, change its content as a fault
// would, or read a state that no operation returns.
type Parts struct {
	Store        *store.Store
	Limits       *Limits
	Catalog      *Catalog
	Retention    *Remover
	Letters      *Letters
	Delayed      *delayed
	Transactions *transactions
	Env          *Env
	Owners       *Owners
	Calls        interface {
		Begin() bool
		End()
	}
	engine *Engine
}

// Parts returns the parts of b.
func (e *Engine) Parts() Parts {
	return Parts{
		Store: e.store, Limits: e.limits, Catalog: e.catalog, Retention: e.retention, Letters: e.letters,
		Delayed: e.delayed, Transactions: e.transactions, Env: e.env, Owners: &e.owners, Calls: &e.calls,
		engine: e,
	}
}

// ClockChanged is called when the verdict about the wall clock has changed.
func (p Parts) ClockChanged() { p.engine.clockChanged() }

// HistoryUse returns how often the history was sampled, and its memory in bytes.
func (p Parts) HistoryUse(ctx context.Context) (rounds, bytes int64) {
	e := p.engine
	release, err := e.history.task.Hold(ctx)
	if err != nil {
		return 0, 0
	}
	defer release()
	return e.history.rounds, e.history.history.Used()
}

type undecidedKey struct{}

// LeaveResponse returns a context with which a middleware of the server calls the next step if it
// does not decide about the response while left returns true. Then the server can send parts of it
// before the middleware returns. Package brokertest, whose server always has a middleware, uses it
// while no test has added one.
func LeaveResponse(ctx context.Context, left func() bool) context.Context {
	return context.WithValue(ctx, undecidedKey{}, left)
}

// ResponseIsLeft reports whether the middleware with the context does not decide about the response.
func ResponseIsLeft(ctx context.Context) bool {
	left, ok := ctx.Value(undecidedKey{}).(func() bool)
	return ok && left()
}
