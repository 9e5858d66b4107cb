package broker

import (
	"context"
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// components are the packages below broker, as one broker uses them.
type components struct {
	maintenance *maintain.Loop // of the work beside requests

	delayed      *pending.Delayed
	transactions *pending.Transactions
	retention    *engine.Remover
	letters      *engine.Letters
	sender       *engine.Sending
	catalog      *engine.Catalog
	env          *engine.Env // of all subscriptions
	owners       engine.Owners
	events       *tally.Log // of the ends of messages

	clock   *wallclock.Clock // nil for a broker in memory
	history *sampler         // of rates and backlogs

	compared     bool           // clock was compared with the data directory; set by Open
	clockTask    *maintain.Task // looks at clock; nil like it
	clockStepped atomic.Bool    // the verdict about the clock has changed since clockTask looked
}

// openComponents prepares all components. Each one gets only parts that are complete, in the order
// of the code, with two exceptions: subscriptions need the catalog, which creates them, so
// engine.NewCatalog completes their Env; and the transactions need the catalog, which restores
// them, so pendingHost uses it. Both use it only after catalog.Recover has begun. The tasks run
// after the maintenance is started.
func (b *Broker) openComponents() {
	life := b.calls.life
	b.maintenance = maintain.New(life, b.logger, &b.calls)
	b.events = tally.New(b.logger)
	if b.clock = b.newClock(); b.clock != nil {
		b.clockTask = b.maintenance.Add(maintain.TaskConfig{
			Step: b.lookAtClock, Failed: "wall clock not compared", Pause: distrustPause, MaxPause: distrustPause,
		})
	}
	b.history = newSampler(b.opened, b.opts.history, b.maintenance)
	directory := engine.NewDirectory(b.history.activity)
	b.history.directory = directory
	b.letters = engine.NewLetters(engine.LettersConfig{Store: b.store, Directory: directory, Logger: b.logger, Life: life, MaxBodySize: b.opts.MaxBodySize, Damaged: &b.counters.damaged})
	p := pending.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Host: pendingHost{b, directory}, Damaged: &b.counters.damaged, Late: &b.counters.delayed,
	}
	b.delayed, b.transactions = pending.NewDelayed(p), pending.NewTransactions(p)
	b.retention = engine.NewRemoval(engine.RemovalConfig{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Delayed: b.delayed, Transactions: b.transactions,
		Directory: directory, Subscriptions: directory.Subscriptions(), Letters: b.letters, Clock: b.clock,
	})
	b.sender = engine.NewSending(engine.SendingConfig{
		Store: b.store, Limits: b.limits, Delayed: b.delayed, Transactions: b.transactions, Directory: directory,
		MaxBodySize: b.opts.MaxBodySize, Endpoint: b.name, Throttled: &b.counters.throttled, Clock: b.clock,
	})
	b.env = &engine.Env{
		Store: b.store, Logger: b.logger, Reads: engine.NewReads(), Endpoint: b.name, Host: b.host,
		MaxInvisible: b.opts.MaxInvisibleDuration, MaxHeld: b.opts.maxHeld, Leases: engine.NewLeases(b.opts.memory),
		Owners: &b.owners, Limits: b.limits, Delayed: b.delayed, Events: b.events, Life: life, Calls: &b.calls,
		Damaged: &b.counters.damaged, Lateness: &b.counters.lateness, Clock: b.clock, Activity: b.history.activity,
	}
	b.catalog = engine.NewCatalog(engine.CatalogConfig{
		Store: b.store, Logger: b.logger, Loop: b.maintenance, Delayed: b.delayed, Transactions: b.transactions,
		Retention: b.retention, Letters: b.letters, Owners: &b.owners, Directory: directory, Env: b.env,
		Servers: &b.servers, Transaction: &b.transactionDefaults, MaxAutoGroups: b.opts.MaxAutoGroups,
	})
}

// A pendingHost is the broker as the messages see it that are in no queue yet.
type pendingHost struct {
	b         *Broker
	directory *engine.Directory
}

// Topics implements pending.Host.
func (h pendingHost) Topics() func(id uint32) pending.Topic { return h.directory.PendingTopics() }

// ShortOfDisk implements pending.Host.
func (h pendingHost) ShortOfDisk() bool { return h.b.limits.ShortOfDisk() != nil }

// Room implements pending.Host.
func (h pendingHost) Room(ctx context.Context, bytes int64) error { return h.b.roomOnDisk(ctx, bytes) }

// GivenUp implements pending.Host.
func (h pendingHost) GivenUp() pending.Topic {
	if t := h.directory.FindTopic(AbandonedTransactions); t != nil {
		return engine.FirstQueue{Topic: t}
	}
	return nil
}

// CreateGivenUp implements pending.Host.
func (h pendingHost) CreateGivenUp() error {
	return h.b.catalog.CreateOwnTopic(AbandonedTransactions, settings.Topic{Queues: 1}, false)
}

// Ask implements pending.Host.
func (h pendingHost) Ask(c pending.Check) bool { return h.b.servers.check(c) }

// roomOnDisk waits until there is room for so many bytes. While the disk is short of room, or would
// keep it waiting while all sends are rejected, it returns the throttle.
func (b *Broker) roomOnDisk(ctx context.Context, bytes int64) error {
	if th := b.limits.ShortOfDisk(); th != nil {
		return engine.Rejected(*th)
	}
	_, err := b.limits.Room(ctx, bytes)
	return err
}
