// Package serving has the operations of an engine that only package broker/server calls: receives
// and sends with the data of a client, heartbeats, the ends and checks of transactions, and
// metrics. They are methods of [Engine] and not of *broker.Broker, which has the operations of
// programs.
package serving

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Of returns the engine of a *broker.Broker. Package broker sets it when it is initialised. It
// panics for a value of another type.
var Of func(broker any) Engine

// An Engine has the operations of a *broker.Broker for servers. Several goroutines can call them at
// the same time. Package broker documents each method.
type Engine interface {
	Append(ctx context.Context, msgs []Incoming) []transport.SendResult
	Poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error)
	InvisibleBounds() (least, most time.Duration)
	Return(ctx context.Context, ds []*tidegate.Delivery)
	TopicOf(handle string) (topic, original string, err error)
	ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.Verdict) (Reconsumed, error)
	RetryInterval(d *tidegate.Delivery) (time.Duration, error)
	DeadLettersUpTo(group string, q status.DeadLetterQuery, maxBytes int64) (status.DeadLetterPage, error)
	QueuesPage(topic, after string, limit int) (status.QueuePage, error)
	GroupQueues(group, topic, after string, limit int) (status.GroupQueuePage, error)
	PlanRewind(group, topic string, to status.Position) ([]status.QueueRewind, error)
	CountPurge(topic string) (status.Backlog, error)
	Leases(group, topic string, q status.LeaseQuery) (status.LeasePage, error)
	Schedule(group, topic string) (status.Schedule, error)
	Failures(group string, q status.FailureQuery) (status.FailurePage, error)
	CountDeadLetters(group string, q status.DeadLetterQuery) (status.DeadLetterCount, error)
	DeadLetterClasses(group string, q status.DeadLetterClassQuery) (status.DeadLetterClassPage, error)

	Messages(topic string, q status.MessageQuery, maxBytes int64) (status.MessagePage, error)
	Trace(topic string, q status.MessageQuery, maxBytes int64, wanted func(group string) bool) (status.Trace, error)

	TopicsPage(after string, limit int, wanted func(name string) bool) (page []status.Topic, more bool)
	GroupsPage(after string, limit int, wanted func(name string) bool) (page []status.Group, more bool)

	PutTopicIf(ctx context.Context, name string, c settings.Topic, may func(revision string) error) (status.Topic, error)
	DeleteTopicIf(ctx context.Context, name string, may func(revision string) error) error
	PutGroupIf(ctx context.Context, name string, c settings.Group, may func(revision string) error) (status.Group, error)
	PatchGroupIf(ctx context.Context, name string, change func(*settings.Group) error, may func(revision string) error) (status.Group, error)
	DeleteGroupIf(ctx context.Context, name string, may func(revision string) error) error
	PutAddressSettingsIf(ctx context.Context, match string, s settings.Address, may func(revision string) error) (status.Address, error)
	DeleteAddressSettingsIf(ctx context.Context, match string, may func(revision string) error) error
	PatchLimitsIf(ctx context.Context, change func(*settings.Limits) error, may func(revision string) error) error
	LimitsRevision() (l settings.Limits, revision string)

	Touch(owner string)
	Forget(owner string)

	EndTransaction(ctx context.Context, e TransactionEnd) error

	EnsureGroup(ctx context.Context, name string) (settings.Group, error)
	GroupSettings(ctx context.Context, name string) (settings.Group, error)
	RetryPolicy(c settings.Group, topics ...string) RetryPolicy

	// Attach adds a server. Detach removes it, but a check or a change that is under way can still
	// call it. A server is comparable.
	Attach(s Server)
	Detach(s Server)

	Stats() Stats
	Survey() *Survey
	History(ctx context.Context, q HistoryQuery) (*History, error)
}

// A Server serves the clients of an engine.
type Server interface {
	// CheckTransaction sends a check to a producer of the message's topic. It returns false if
	// there is none; the engine then asks the next server, in the order of Attach. Several
	// goroutines can call it at the same time, and it can call the engine. It must return soon,
	// because other checks wait for it. Close of the broker does not wait for a call under way. A
	// panic ends the process.
	CheckTransaction(c TransactionCheck) bool

	// ConsumerSettingsChanged is called after each change of settings that consumers follow: with
	// the name of a changed group, or with "" for address settings, which can concern every group.
	// The change returns after ConsumerSettingsChanged, which must not wait and must not change
	// settings.
	ConsumerSettingsChanged(group string)
}
