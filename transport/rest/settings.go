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

// sendAttempts is the number of attempts that RocketMQ documents for producers. The HTTP API does
// not push it.
const sendAttempts = 3

// look reads a resource. allowed is false if the credentials may not observe it.
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

// ProducerSettings returns RocketMQ's documented values, 3 attempts and a body of 4 MiB, and no
// backoff, because the HTTP API has no settings for producers. It sends a request that checks
// whether the topic exists.
func (c *Client) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	if err := c.topic(ctx, "ProducerSettings", topic); err != nil {
		return transport.ProducerSettings{}, err
	}
	return transport.ProducerSettings{MaxAttempts: sendAttempts, MaxBodySize: tidegate.MaxBodySize}, nil
}

// A groupSettings is the part of a group's settings that consumers use.
type groupSettings struct {
	FIFO        bool              `json:"fifo"`
	MaxAttempts int               `json:"max_attempts"`
	Retry       backoff.Steps     `json:"retry"`
	Interval    *httpapi.Duration `json:"fifo_retry_interval"`
}

// ConsumerSettings requests the settings of the group and the address settings of the topic, which
// override those of the group. ReceiveBatchSize is always 32, and LongPolling zero. The other
// settings are zero if the group does not exist yet; its first receive creates it. Settings that
// the credentials may not observe count as not set.
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

// addressSettings are the redelivery settings of a topic.
type addressSettings struct {
	Delay      *int64   `json:"redelivery-delay"` // in milliseconds
	Multiplier *float64 `json:"redelivery-delay-multiplier"`
	Factor     *float64 `json:"redelivery-collision-avoidance-factor"`
	Max        *int64   `json:"max-redelivery-delay"`
	Attempts   *int     `json:"max-delivery-attempts"`

	// If one of the following fields is set, the defaults of the fields above apply too.
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

// delays returns the delays between deliveries: Delay, Delay times Multiplier, and so on up to Max.
func (a *addressSettings) delays() backoff.Policy {
	const maxFactor = 10 // default of Max, as a multiple of Delay
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
	if e.Max <= 0 || e.Multiplier < 1 { // only the broker computes decreasing delays
		return backoff.Steps{e.Initial}
	}
	return e
}

// Queues returns transport.AnyQueue, because one receive serves all queues. It sends a request that
// checks whether the topic exists.
func (c *Client) Queues(ctx context.Context, group, topic string) ([]int, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	if err := c.topic(ctx, "Queues", topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Ping implements transport.Pinger. A topic that the credentials may not observe counts as
// existing. Ping waits for a connection until ctx ends, and needs no permission except valid
// credentials.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		// The path does not exist. The broker reports that only to authenticated clients.
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
