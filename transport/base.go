package transport

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
)

// A Base is embedded in a transport and has the methods that not every server supports. Methods
// that the contract adds later appear here too, so that a transport that embeds Base still
// compiles.
//
// The server has no settings, one Receive is enough for all queues of a topic, and there are no
// capabilities. The methods that need a capability fail with CodeNotImplemented.
type Base struct{}

var _ Configurer = Base{}

// RepeatChange fails with CodeNotImplemented.
func (Base) RepeatChange(_ context.Context, d *tidegate.Delivery, _ time.Duration) (handle string, err error) {
	return "", missing("RepeatChange", d)
}

// Snooze fails with CodeNotImplemented.
func (Base) Snooze(_ context.Context, d *tidegate.Delivery, _ time.Duration) error {
	return missing("Snooze", d)
}

// Reconsume fails with CodeNotImplemented.
func (Base) Reconsume(_ context.Context, d *tidegate.Delivery, _ ReconsumeMode) (RetryResult, error) {
	return RetryResult{}, missing("Reconsume", d)
}

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

func missing(op string, d *tidegate.Delivery) error {
	return &tidegate.Error{
		Op: op, Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeNotImplemented,
		Message: "the transport does not support it; check Capabilities first",
	}
}
