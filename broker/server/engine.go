package server

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/transport"
)

// engine is what the server needs of a *broker.Broker. It is an interface so
// that tests can have an engine that fails, panics or hangs.
type engine interface {
	transport.Settler
	transport.Snoozer
	transport.Reconsumer
	transport.ChangeRepeater
	Append(ctx context.Context, msgs []broker.Incoming) []transport.SendResult
	Poll(ctx context.Context, p broker.Poll) ([]*tidegate.Delivery, error)
	InvisibleBounds() (least, most time.Duration)
	Release(ctx context.Context, ds []*tidegate.Delivery)
	Recall(ctx context.Context, topic, recallHandle string) (id string, err error)
	TopicOf(handle string) (topic, original string, err error)
	EndTransaction(ctx context.Context, e broker.TransactionEnd) error
	OnTransactionCheck(f func(broker.TransactionCheck) bool) (remove func())
	OnConsumerSettings(f func(group string)) (remove func())
	Touch(owner string)
	Forget(owner string)

	ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error)
	TopicSettings(name string) (broker.TopicConfig, error)
	GroupSettings(ctx context.Context, name string) (broker.GroupConfig, error)

	PutTopic(ctx context.Context, name string, c broker.TopicConfig) (broker.Topic, error)
	Topic(name string) (broker.Topic, error)
	Topics() []broker.Topic
	DeleteTopic(ctx context.Context, name string) error
	PurgeTopic(ctx context.Context, name string) (broker.Backlog, error)
	PutGroup(ctx context.Context, name string, c broker.GroupConfig) (broker.Group, error)
	Group(name string) (broker.Group, error)
	Groups() []broker.Group
	DeleteGroup(ctx context.Context, name string) error
	Throttles() []broker.LimitState
	Limits() broker.Limits
	SetLimits(l broker.Limits) error
	ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m broker.ReconsumeMode) (broker.Reconsumed, error)
	DeadLetterResult(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error)
	RetryInterval(d *tidegate.Delivery) (time.Duration, error)
	RetryPolicy(c broker.GroupConfig, topics ...string) broker.RetryPolicy
	PutAddressSettings(ctx context.Context, match string, s broker.AddressSettings) (broker.AddressSetting, error)
	AddressSettings(match string) (broker.AddressSetting, error)
	AllAddressSettings() []broker.AddressSetting
	TopicAddressSettings(topic string) (broker.AddressSettings, []string)
	DeleteAddressSettings(ctx context.Context, match string) error
	Rewind(ctx context.Context, group, topic string, to broker.Position) ([]broker.QueueRewind, error)
	Parked(group string, q broker.ParkedQuery) (broker.ParkedPage, error)
	RedriveParked(ctx context.Context, group string, sel broker.ParkedSelection) (broker.ParkedRedrive, error)
	DeadLetters(group string, q broker.DeadLetterQuery) (broker.DeadLetterPage, error)
	RedriveDeadLetters(ctx context.Context, group string, sel broker.DeadLetterSelection) (broker.DeadLetterRedrive, error)
	PurgeDeadLetters(ctx context.Context, group string, sel broker.DeadLetterSelection) (broker.DeadLetterPurge, error)
	Healthy() error
	Stats() broker.Stats
}
