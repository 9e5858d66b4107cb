package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker/server/internal/gate"
	"github.com/tidegate/tidegate/broker/server/internal/overview"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// An Engine is the part of a *broker.Broker that its administration needs.
type Engine interface {
	PutTopicIf(ctx context.Context, name string, c settings.Topic, may func(revision string) error) (status.Topic, error)
	Topic(name string) (status.Topic, error)
	TopicSettings(name string) (settings.Topic, error)
	Topics() []status.Topic
	TopicsPage(after string, limit int, wanted func(name string) bool) (page []status.Topic, more bool)
	DeleteTopicIf(ctx context.Context, name string, may func(revision string) error) error
	PurgeTopic(ctx context.Context, name string) (status.Backlog, error)
	PutGroupIf(ctx context.Context, name string, c settings.Group, may func(revision string) error) (status.Group, error)
	PatchGroupIf(ctx context.Context, name string, change func(*settings.Group) error, may func(revision string) error) (status.Group, error)
	Group(name string) (status.Group, error)
	Groups() []status.Group
	GroupsPage(after string, limit int, wanted func(name string) bool) (page []status.Group, more bool)
	DeleteGroupIf(ctx context.Context, name string, may func(revision string) error) error
	Throttles() []status.LimitState
	LimitsRevision() (l settings.Limits, revision string)
	PatchLimitsIf(ctx context.Context, change func(*settings.Limits) error, may func(revision string) error) error
	PutAddressSettingsIf(ctx context.Context, match string, s settings.Address, may func(revision string) error) (status.Address, error)
	AddressSettings(match string) (status.Address, error)
	AllAddressSettings() []status.Address
	TopicAddressSettings(topic string) status.TopicAddress
	DeleteAddressSettingsIf(ctx context.Context, match string, may func(revision string) error) error
	Rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error)
	Parked(group string, q status.ParkedQuery) (status.ParkedPage, error)
	RedriveParked(ctx context.Context, group string, sel status.ParkedSelection) (status.ParkedRedrive, error)
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
	RedriveDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterRedrive, error)
	Snapshot(ctx context.Context, dir string) error
	PurgeDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterPurge, error)
}

// Handlers carry out the requests of the administration. Each one is called when the gate has
// admitted the request. It returns the status and the JSON value of the response, or an error.
type Handlers struct {
	engine    Engine
	gate      *gate.Gate
	snapshots string
	maxBody   int // the largest body of a message, in bytes
	surveys   *overview.Shared
}

// New returns the handlers of one engine, whose bodies have at most maxBody bytes. gate checks the
// permissions for topics in request bodies. snapshots is the directory of snapshots; empty means
// that there are none. surveys has the figures of lists.
func New(e Engine, g *gate.Gate, snapshots string, maxBody int, surveys *overview.Shared) *Handlers {
	return &Handlers{e, g, snapshots, maxBody, surveys}
}
