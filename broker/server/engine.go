package server

import (
	"context"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/transport"
)

// engine has the methods of *broker.Broker that the server calls. It is an interface so that tests
// can have an engine that fails, panics or blocks.
type engine interface {
	transport.Settler
	routes.AdminEngine
	serving.Engine
	Recall(ctx context.Context, topic, recallHandle string) (id string, err error)
	ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error)
	Healthy() error
}

// brokerEngine is the engine of a broker.
type brokerEngine struct {
	*broker.Broker
	serving.Engine
}
