package broker

import (
	"context"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// On keeps the data in a file system of the test, which can fail, block or lose its power.
func (o Options) On(fs vfs.FS) Options { o.fs = fs; return o }

// MemTable bounds the memory of new writes, so that a test reaches the tables on disk early.
func (o Options) MemTable(bytes uint64) Options { o.memTable = bytes; return o }

// MaxHeld bounds the messages that a subscription keeps for later.
func (o Options) MaxHeld(n int64) Options { o.maxHeld = n; return o }

// ProcessMemory replaces the memory limit of the process.
func (o Options) ProcessMemory(bytes int64) Options { o.memory = bytes; return o }

// HistoryMemory replaces the memory of the history of rates and backlogs.
func (o Options) HistoryMemory(bytes int64) Options { o.history = bytes; return o }

// HistoryUse returns how often the history was sampled, and its memory in bytes.
func (b *Broker) HistoryUse(ctx context.Context) (rounds, bytes int64) {
	release, err := b.history.task.Hold(ctx)
	if err != nil {
		return 0, 0
	}
	defer release()
	return b.history.rounds, b.history.history.Used()
}

// Parts are the parts of a broker. Tests hold one of them, change its content as a fault would, or
// read a state that no operation returns. The functions of faults_test.go and parts_test.go do this
// for several tests.
type Parts struct {
	Store        *store.Store
	Limits       *engine.Limits
	Catalog      *engine.Catalog
	Retention    *engine.Remover
	Letters      *engine.Letters
	Delayed      *pending.Delayed
	Transactions *pending.Transactions
	Env          *engine.Env
	Owners       *engine.Owners
	Calls        interface {
		Begin() bool
		End()
	}
}

// Parts returns the parts of b.
func (b *Broker) Parts() Parts {
	return Parts{
		Store: b.store, Limits: b.limits, Catalog: b.catalog, Retention: b.retention, Letters: b.letters,
		Delayed: b.delayed, Transactions: b.transactions, Env: b.env, Owners: &b.owners, Calls: &b.calls,
	}
}

// ClockChanged is called when the verdict about the wall clock has changed.
func (b *Broker) ClockChanged() { b.clockChanged() }
