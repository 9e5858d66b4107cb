package rest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A delivery over HTTP ends in the ways of Apache Pulsar as over gRPC: through the retry topic
// after a delay, a level or the next level, up to the group's maximum, or by a negative
// acknowledgement. The result has the fate of the message.
func TestReconsume(t *testing.T) {
	retries := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 2}}
	again := func(d time.Duration) transport.RetryResult {
		return transport.RetryResult{Fate: transport.FateAgain, Delay: d}
	}
	dead := transport.RetryResult{Fate: transport.FateDeadLetter}
	type mode = transport.Verdict
	const later, negative = transport.RetryTopic, transport.NegativeAck
	for name, tt := range map[string]struct {
		group settings.Group
		modes []mode
		want  []transport.RetryResult
	}{
		"next level":  {retries, []mode{{Kind: later}, {Kind: later}, {Kind: later}}, []transport.RetryResult{again(time.Second), again(5 * time.Second), dead}},
		"a level":     {retries, []mode{{Kind: later, Level: 3}}, []transport.RetryResult{again(10 * time.Second)}},
		"a delay":     {retries, []mode{{Kind: later, Delay: time.Hour}}, []transport.RetryResult{again(time.Hour)}},
		"negative":    {retries, []mode{{Kind: negative}}, []transport.RetryResult{again(time.Minute)}},
		"its own":     {retries, []mode{{Kind: negative, Delay: 7 * time.Second}}, []transport.RetryResult{again(7 * time.Second)}},
		"its maximum": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}}, []mode{{Kind: negative}, {Kind: negative}}, []transport.RetryResult{again(time.Minute), dead}},
	} {
		t.Run(name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{})
				b.CreateGroup("billing", tt.group)
				b.Send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
				c := over(t, b, rest.Options{})
				for i, mode := range tt.modes {
					d := receiveOne(t, c)
					got, err := c.Settle(t.Context(), d, mode)
					got.Delay = got.Delay.Round(time.Millisecond)
					if err != nil || got != tt.want[i] {
						t.Fatalf("failure %d: %+v, %v; want %+v", i+1, got, err, tt.want[i])
					}
					if _, err := c.Settle(t.Context(), d, mode); !errors.Is(err, tidegate.ErrInvalidHandle) {
						t.Errorf("failure %d, again: %v, want ErrInvalidHandle", i+1, err)
					}
					if got.Fate == transport.FateAgain {
						time.Sleep(got.Delay)
					}
				}
			})
		})
	}
}

// In the last attempt of a FIFO group, the group's settings decide the fate of a message whose
// consumer requests a dead letter. The result has that fate.
func TestDeadLetterResult(t *testing.T) {
	for policy, want := range map[settings.OnExhausted]transport.RetryResult{
		settings.OnExhaustedDeadLetter: {Fate: transport.FateDeadLetter},
		settings.OnExhaustedPark:       {Fate: transport.FateParked},
		settings.OnExhaustedBlock:      {Fate: transport.FateAgain, Delay: time.Minute},
	} {
		t.Run(string(policy), func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
				b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: 1, FIFORetryInterval: settings.Duration(time.Minute), OnExhausted: policy})
				b.Send(&tidegate.Message{Topic: "orders", MessageGroup: "customer 7", Body: []byte("x")})
				c := over(t, b, rest.Options{})
				got, err := c.Settle(t.Context(), receiveOne(t, c), transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"})
				assert.That(t, err == nil && got == want, "%+v, %v; want %+v", got, err, want)
			})
		})
	}
}

// receiveOne receives the message that is ready.
func receiveOne(t *testing.T, c *rest.Client) *tidegate.Delivery {
	t.Helper()
	ds, err := c.Receive(t.Context(), transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: time.Second,
	})
	assert.MustThat(t, err == nil && len(ds) == 1, "%d deliveries, %v; want one", len(ds), err)
	return ds[0]
}
