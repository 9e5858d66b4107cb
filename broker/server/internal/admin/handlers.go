package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/gate"
	"github.com/tidegate/tidegate/broker/settings"
)

// An Engine is the part of a *broker.Broker that its administration needs.
type Engine interface {
	PutTopic(ctx context.Context, name string, c settings.Topic) (broker.Topic, error)
	Topic(name string) (broker.Topic, error)
	TopicSettings(name string) (settings.Topic, error)
	Topics() []broker.Topic
	DeleteTopic(ctx context.Context, name string) error
	PurgeTopic(ctx context.Context, name string) (broker.Backlog, error)
	PutGroup(ctx context.Context, name string, c settings.Group) (broker.Group, error)
	Group(name string) (broker.Group, error)
	Groups() []broker.Group
	DeleteGroup(ctx context.Context, name string) error
	Throttles() []broker.LimitState
	Limits() settings.Limits
	SetLimits(l settings.Limits) error
	PutAddressSettings(ctx context.Context, match string, s settings.Address) (broker.AddressSetting, error)
	AddressSettings(match string) (broker.AddressSetting, error)
	AllAddressSettings() []broker.AddressSetting
	TopicAddressSettings(topic string) (settings.Address, []string)
	DeleteAddressSettings(ctx context.Context, match string) error
	Rewind(ctx context.Context, group, topic string, to broker.Position) ([]broker.QueueRewind, error)
	Parked(group string, q broker.ParkedQuery) (broker.ParkedPage, error)
	RedriveParked(ctx context.Context, group string, sel broker.ParkedSelection) (broker.ParkedRedrive, error)
	DeadLetters(group string, q broker.DeadLetterQuery) (broker.DeadLetterPage, error)
	RedriveDeadLetters(ctx context.Context, group string, sel broker.DeadLetterSelection) (broker.DeadLetterRedrive, error)
	Snapshot(ctx context.Context, dir string) error
	PurgeDeadLetters(ctx context.Context, group string, sel broker.DeadLetterSelection) (broker.DeadLetterPurge, error)
}

// Handlers carry out the requests of the administration. Each one is called when the gate has
// admitted the request. It returns the status and the JSON value of the response, or an error.
type Handlers struct {
	engine    Engine
	gate      *gate.Gate
	snapshots string
	maxBody   int // the largest body of a message, in bytes
}

// New returns the handlers of one engine, whose bodies have at most maxBody bytes. gate checks the
// permissions for topics in request bodies. snapshots is the directory of snapshots; empty means
// that there are none.
func New(e Engine, g *gate.Gate, snapshots string, maxBody int) *Handlers {
	return &Handlers{e, g, snapshots, maxBody}
}
