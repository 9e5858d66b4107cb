package catalog

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/heartbeat"
	"github.com/tidegate/tidegate/broker/internal/letters"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/removal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/address"
)

// A Config has the parts of a broker that a Catalog uses.
type Config struct {
	Store        *store.Store
	Logger       *slog.Logger
	Loop         *maintain.Loop
	Delayed      *pending.Delayed
	Transactions *pending.Transactions
	Retention    *removal.Remover
	Letters      *letters.Letters
	Owners       *heartbeat.Owners
	Directory    *Directory

	// Env is for all subscriptions. New sets its Topics, and Redrives of Letters.
	Env *subscription.Env

	// Transaction has the broker's times of transaction checks, for topics without times of their
	// own.
	Transaction *atomic.Pointer[settings.Transaction]

	Servers Servers

	// MaxAutoGroups is the maximum number of auto-created groups.
	MaxAutoGroups int
}

// Servers push settings to consumers.
type Servers interface {
	// ConsumerSettingsChanged is called after each change of settings that consumers follow, with
	// the name of a changed group, or with "" for address settings, which can concern every group.
	// The caller holds the token of LockAdmin. ConsumerSettingsChanged must not wait and must not
	// change settings.
	ConsumerSettingsChanged(group string)
}

// A Catalog creates, changes, deletes and restores topics, groups and subscriptions. Several
// goroutines can call its methods at the same time, except those whose comment names the token of
// LockAdmin.
//
// The methods with a context wait for the token, which ctx ends, and for the disk. They return
// tidegate.ErrClosed if the broker is closing.
type Catalog struct {
	*Directory
	config Config

	number     uint32 // guarded by the token: the last number of a topic or group
	autoGroups int    // guarded by the token: the number of auto-created groups

	addresses atomic.Pointer[address.Set[settings.Address]] // changed by the holder of the token and of mu
	idKey     store.IDKey                                   // of the hashes of message IDs; set by Recover, before there are topics

	forgetting *maintain.Task // of message IDs that are older than the duplicate window
	autoDelete *maintain.Task // of automatic dead letter queues

	classes atomic.Int64 // of dead letters, in all topics

	newest time.Time // see Newest

	creations creations
}

// New returns a catalog, and adds its tasks to the loop.
func New(config Config) *Catalog {
	c := &Catalog{Directory: config.Directory, config: config}
	c.addresses.Store(&address.Set[settings.Address]{})
	c.config.Env.Topics, c.config.Letters.Redrives = c, c
	c.forgetting = config.Loop.Add(maintain.TaskConfig{
		Step: c.forget, Failed: "old message IDs not deleted", Pause: time.Second, MaxPause: time.Minute,
	})
	c.autoDelete = config.Loop.Add(maintain.TaskConfig{
		Step: c.deleteAllUnused, Failed: "empty auto-created dead-letter queue not deleted", Pause: AutoDeleteDelay, MaxPause: AutoDeleteDelay,
	})
	return c
}
