package transport

import "context"

// A Base is embedded in a transport and has the methods of [Configurer]. Methods that the contract
// adds later appear here too, so that a transport that embeds Base still compiles.
//
// The server has no settings and no capabilities, and one Receive is enough for all queues of a
// topic.
type Base struct{}

var _ Configurer = Base{}

// ProducerSettings returns no settings. It does not check the topic.
func (Base) ProducerSettings(context.Context, string) (ProducerSettings, error) {
	return ProducerSettings{}, nil
}

// ConsumerSettings returns no settings. It checks neither the group nor the topic.
func (Base) ConsumerSettings(context.Context, string, string) (ConsumerSettings, error) {
	return ConsumerSettings{}, nil
}

// Queues returns AnyQueue.
func (Base) Queues(context.Context, string, string) ([]int, error) { return []int{AnyQueue}, nil }

// Capabilities returns none.
func (Base) Capabilities(string) Capabilities { return Capabilities{} }
