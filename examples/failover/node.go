package main

import (
	"context"
	"errors"
	"net"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// A node is a broker that can be killed and started again with its data. Outside
// of an example it is a RocketMQ cluster, or a broker on another machine.
type node struct {
	memory  *broker.Memory
	address string // empty before the first start

	engine *broker.Broker
	server *server.Server
}

func newNode() *node { return &node{memory: broker.NewMemory()} }

// start starts the broker, at the same address each time.
func (n *node) start(ctx context.Context) error {
	b, err := broker.Open(broker.Options{Memory: n.memory})
	if err != nil {
		return err
	}
	s, err := n.serve(ctx, b)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	n.engine, n.server = b, s
	return nil
}

func (n *node) serve(ctx context.Context, b *broker.Broker) (*server.Server, error) {
	if _, err := b.PutTopic(ctx, topic, settings.Topic{}); err != nil {
		return nil, err
	}
	address := n.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	n.address = lis.Addr().String()
	s, err := server.New(b, server.Options{Advertise: n.address})
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	go func() { _ = s.Serve(lis) }() // it ends with kill
	return s, nil
}

// kill ends the broker at once: requests under way get no response.
func (n *node) kill() {
	if n.server != nil {
		_ = errors.Join(n.server.Close(), n.engine.Close())
		n.server = nil
	}
}
