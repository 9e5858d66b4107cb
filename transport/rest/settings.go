package rest

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

// sendAttempts is the number of attempts that RocketMQ documents for producers, which the HTTP API
// does not push.
const sendAttempts = 3

// look reads something that the credentials may not be allowed to see: allowed is false then.
func (c *Client) look(ctx context.Context, op, subject string, out any, path ...string) (allowed bool, err error) {
	f := c.do(ctx, call{op: op, subject: subject, method: "GET", path: path, out: out})
	if f != nil && errors.Is(f.Err, tidegate.ErrForbidden) {
		return false, nil
	}
	return f == nil, errOf(f)
}

// topic returns an error if the topic does not exist.
func (c *Client) topic(ctx context.Context, op, topic string) error {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return err
	}
	_, err := c.look(ctx, op, topic, nil, "topics", topic)
	return err
}

// ProducerSettings returns the largest body that the API documents, and the attempts that RocketMQ
// documents: the HTTP API pushes no settings to producers. It asks whether the topic exists.
func (c *Client) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	if err := c.topic(ctx, "ProducerSettings", topic); err != nil {
		return transport.ProducerSettings{}, err
	}
	return transport.ProducerSettings{MaxAttempts: sendAttempts, MaxBodySize: tidegate.MaxBodySize}, nil
}

// A groupSettings is the part of a group's settings that consumers need.
type groupSettings struct {
	FIFO        bool              `json:"fifo"`
	MaxAttempts int               `json:"max_attempts"`
	Retry       backoff.Steps     `json:"retry"`
	Interval    *httpapi.Duration `json:"fifo_retry_interval"`
}

// ConsumerSettings asks for the settings of the group, and for the address settings of the topic,
// which hold in place of the group's. A group that does not exist is created by its first receive;
// until then its settings are zero, as they are if the credentials may not observe the group.
func (c *Client) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	const op = "ConsumerSettings"
	if err := errors.Join(tidegate.ValidateGroup(group), tidegate.ValidateTopic(topic)); err != nil {
		return transport.ConsumerSettings{}, err
	}
	s := transport.ConsumerSettings{ReceiveBatchSize: maxReceive}
	var g groupSettings
	allowed, err := c.look(ctx, op, group, &g, "groups", group)
	switch {
	case errors.Is(err, tidegate.ErrNotFound):
		return s, nil
	case err != nil:
		return transport.ConsumerSettings{}, err
	case allowed:
		s.FIFO, s.MaxAttempts = g.FIFO, g.MaxAttempts
		if len(g.Retry) > 0 {
			s.Retry = g.Retry
		}
		if g.FIFO && g.Interval != nil {
			s.Retry = backoff.Steps{time.Duration(*g.Interval)}
		}
	}
	var a addressSettings
	if _, err := c.look(ctx, op, topic, &a, "topics", topic, "address-settings"); err != nil {
		return transport.ConsumerSettings{}, err
	}
	if a.redelivers() {
		s.MaxAttempts, s.Retry = a.attempts(), a.delays()
	}
	return s, nil
}

// addressSettings are those of a topic that are about redelivery.
type addressSettings struct {
	Delay      *int64   `json:"redelivery-delay"` // in milliseconds
	Multiplier *float64 `json:"redelivery-delay-multiplier"`
	Factor     *float64 `json:"redelivery-collision-avoidance-factor"`
	Max        *int64   `json:"max-redelivery-delay"`
	Attempts   *int     `json:"max-delivery-attempts"`

	// Where one of the others is set, the defaults of those above hold too.
	Address *string `json:"dead-letter-address"`
	Auto    *bool   `json:"auto-create-dead-letter-resources"`
	Prefix  *string `json:"dead-letter-queue-prefix"`
	Suffix  *string `json:"dead-letter-queue-suffix"`
}

func (a *addressSettings) redelivers() bool { return *a != (addressSettings{}) }

const defaultDeliveryAttempts = 10

func (a *addressSettings) attempts() int {
	if a.Attempts == nil {
		return defaultDeliveryAttempts
	}
	return *a.Attempts
}

// delays returns the delays between deliveries: Delay, Multiplier times that, and so on up to Max.
func (a *addressSettings) delays() transport.Delayer {
	const maxFactor = 10 // of Delay, by default
	ms := func(n *int64, otherwise time.Duration) time.Duration {
		if n == nil {
			return otherwise
		}
		return time.Duration(*n) * time.Millisecond
	}
	e := backoff.Exponential{Initial: ms(a.Delay, 0), Multiplier: 1, Jitter: backoff.NoJitter}
	if e.Initial <= 0 {
		return backoff.Steps{0}
	}
	e.Max = ms(a.Max, maxFactor*e.Initial)
	if a.Multiplier != nil {
		e.Multiplier = *a.Multiplier
	}
	if a.Factor != nil && *a.Factor > 0 {
		e.Jitter = *a.Factor
	}
	e.Initial = min(e.Initial, e.Max)
	if e.Max <= 0 || e.Multiplier < 1 { // a delay that shrinks is the broker's alone
		return backoff.Steps{e.Initial}
	}
	return e
}

// Queues returns transport.AnyQueue: one receive serves all queues. It asks whether the topic
// exists.
func (c *Client) Queues(ctx context.Context, group, topic string) ([]int, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	if err := c.topic(ctx, "Queues", topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Ping implements transport.Pinger. A topic that the credentials may not observe counts as known.
// It waits for a connection until ctx ends, and needs no right beyond valid credentials.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		// There is nothing at this path, which the broker reports to whom it knows only.
		f := c.do(ctx, call{op: "Ping", method: "GET", path: []string{"ping"}})
		if f != nil && f.FromBroker && f.Status == 404 {
			return nil
		}
		return errOf(f)
	}
	for _, t := range topics {
		if err := c.topic(ctx, "Ping", t); err != nil {
			return err
		}
	}
	return nil
}
