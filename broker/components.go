package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/catalog"
	"github.com/tidegate/tidegate/broker/internal/heartbeat"
	"github.com/tidegate/tidegate/broker/internal/letters"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/removal"
	"github.com/tidegate/tidegate/broker/internal/sending"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/tally"
)

// components are the packages below broker, as one broker uses them.
type components struct {
	maintenance *maintain.Loop // of the work beside requests

	delayed      *pending.Delayed
	transactions *pending.Transactions
	retention    *removal.Remover
	letters      *letters.Letters
	sender       *sending.Sender
	catalog      *catalog.Catalog
	env          *subscription.Env // of all subscriptions
	owners       heartbeat.Owners
	events       *tally.Log // of the ends of messages
}

// openComponents prepares all components. The tasks run after the maintenance is started.
func (b *Broker) openComponents() {
	b.maintenance = maintain.New(b.life, b.logger, b.guarded)
	b.events = tally.New(b.logger)
	directory := catalog.NewDirectory()
	b.openPending(directory)
	b.retention = removal.New(removal.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Delayed: b.delayed, Transactions: b.transactions,
		Topics: directory.TopicsByID, Subscriptions: directory.Subscriptions(),
		HoldLetters: func(ctx context.Context) (release func(), err error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(b.life, func() { cancel(context.Cause(b.life)) })()
			return b.letters.Hold(ctx)
		},
	})
	b.letters = letters.New(letters.Config{
		Store: b.store, Directory: directory, Logger: b.logger, Events: b.events, Life: b.life, Delayed: b.delayed, Damaged: b.countDamaged,
		CreateTopic: func(name string, c settings.Topic, automatic bool) error {
			return b.catalog.CreateOwnTopic(name, c, automatic)
		},
	})
	b.sender = sending.New(sending.Config{
		Store: b.store, Limits: b.limits, Delayed: b.delayed, Transactions: b.transactions, Topic: directory.Topic,
		MaxBodySize: b.opts.MaxBodySize, Endpoint: b.name, Throttled: b.counters.countThrottled,
	})
	b.env = &subscription.Env{
		Store: b.store, Logger: b.logger, Reads: subscription.NewReads(), Endpoint: b.name, Host: b.host,
		MaxInvisible: b.opts.MaxInvisibleDuration, MaxHeld: b.opts.maxHeld, LastHeartbeat: b.owners.Last,
		Leases: subscription.NewLeases(b.opts.memory),
		Life:   b.life, Begin: b.begin, End: b.end, CarryOut: b.carryOut, Depart: b.depart, AwaitParked: b.letters.AwaitParked,
		CountCold: b.limits.CountCold, Damaged: b.countDamaged, Lateness: &b.counters.lateness,
	}
	b.catalog = catalog.New(catalog.Config{
		Store: b.store, Logger: b.logger, Loop: b.maintenance, Delayed: b.delayed, Transactions: b.transactions,
		Retention: b.retention, Letters: b.letters, Owners: &b.owners, Directory: directory, Env: b.env,
		Transaction: &b.transactionDefaults, MaxAutoGroups: b.opts.MaxAutoGroups, Life: b.life, Begin: b.begin, End: b.end,
	})
}

// openPending prepares the delayed messages and the transactions.
func (b *Broker) openPending(directory *catalog.Directory) {
	c := pending.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Topics: directory.PendingTopics,
		ShortOfDisk: func() bool { return b.limits.ShortOfDisk() != nil },
		Damaged:     func() { b.countDamaged(1) },
		Late:        func(d time.Duration) { b.counters.delayed.Observe(d.Seconds()) },
	}
	b.delayed = pending.NewDelayed(c)
	b.transactions = pending.NewTransactions(pending.TransactionsConfig{
		Config: c,
		GivenUp: func() pending.Topic {
			if t := directory.FindTopic(AbandonedTransactions); t != nil {
				return topic.FirstQueue{Topic: t}
			}
			return nil
		},
		CreateGivenUp: func() error {
			return b.catalog.CreateOwnTopic(AbandonedTransactions, settings.Topic{Queues: 1}, false)
		},
		Room: b.roomOnDisk,
	})
}

// roomOnDisk waits until there is room for so many bytes. While the disk is short of room, or would
// keep it waiting while all sends are rejected, it returns the throttle.
func (b *Broker) roomOnDisk(ctx context.Context, bytes int64) error {
	if th := b.limits.ShortOfDisk(); th != nil {
		return limits.Rejected(*th)
	}
	_, err := b.limits.Room(ctx, bytes)
	return err
}

// countDamaged counts messages that cannot be read.
func (b *Broker) countDamaged(messages int64) { b.counters.damaged.Add(messages) }
