package server

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// engine has the methods of *broker.Broker that the server calls. It is an interface so that tests
// can have an engine that fails, panics or blocks.
type engine interface {
	transport.Settler
	admin.Engine
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
	GroupSettings(ctx context.Context, name string) (settings.Group, error)

	ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m settings.ReconsumeMode) (broker.Reconsumed, error)
	RetryInterval(d *tidegate.Delivery) (time.Duration, error)
	RetryPolicy(c settings.Group, topics ...string) broker.RetryPolicy
	Healthy() error
	Stats() broker.Stats
}
