package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/removal"
)

// background is the work of a broker beside requests.
type background struct {
	maintenance *maintain.Loop

	delayed      *pending.Delayed
	transactions *pending.Transactions
	retention    *removal.Remover
	forgetting   *maintain.Task // of message IDs that are older than the duplicate window
	autoDelete   *maintain.Task // of automatic dead-letter queues
}

// openBackground prepares all tasks. They run once maintenance is started.
func (b *Broker) openBackground() {
	b.maintenance = maintain.New(b.life, b.logger, b.guarded)
	b.openPending()
	b.retention = removal.New(removal.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Delayed: b.delayed, Transactions: b.transactions,
		Topics: b.topicsByID, Subscriptions: &b.mu,
		HoldLetters: func() (release func(), err error) { return b.letters.Hold(b.life) },
	})
	b.forgetting = b.maintenance.Add(maintain.TaskConfig{
		Step: b.forget, Failed: "old message IDs could not be forgotten", Pause: time.Second, MaxPause: time.Minute,
	})
	b.autoDelete = b.maintenance.Add(maintain.TaskConfig{
		Step: b.deleteAllUnused, Failed: "an automatic dead-letter queue could not be deleted", Pause: autoDeleteDelay, MaxPause: autoDeleteDelay,
	})
}
