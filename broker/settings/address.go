package settings

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/tidegate/tidegate"
)

// An Address has the settings of the topics that an address pattern matches. The names are those of
// Apache ActiveMQ Artemis. A nil field is inherited from the most specific other pattern that
// matches the topic and sets the field. If no pattern sets the field, it has its default.
//
// If one of the first nine fields (RedeliveryDelay to DeadLetterQueueSuffix) is set for a topic,
// all nine apply there, with their defaults. They replace MaxAttempts, Retry and FIFORetryInterval
// of the groups, and the delay that a push consumer requests. The retry interval of a simple
// consumer is still its invisible duration (RocketMQ: consumption retry).
type Address struct {
	// RedeliveryDelay is the time between a failed delivery and the next one. Default: 0.
	RedeliveryDelay *Milliseconds `json:"redelivery-delay,omitempty"`

	// RedeliveryDelayMultiplier is the factor from one delay to the next, above 0. For example, a
	// delay of 1 s and a factor of 2 give 1 s, 2 s, 4 s. Default: 1.
	RedeliveryDelayMultiplier *float64 `json:"redelivery-delay-multiplier,omitempty"`

	// RedeliveryCollisionAvoidanceFactor is the maximum share of a delay, 0 to 1, that is added or
	// subtracted at random. Default: 0.
	RedeliveryCollisionAvoidanceFactor *float64 `json:"redelivery-collision-avoidance-factor,omitempty"`

	// MaxRedeliveryDelay bounds the delay. Default: ten times RedeliveryDelay.
	MaxRedeliveryDelay *Milliseconds `json:"max-redelivery-delay,omitempty"`

	// MaxDeliveryAttempts is the maximum number of deliveries of a message. After the last one the
	// message moves to DeadLetterAddress. -1 means no maximum. Default: 10.
	MaxDeliveryAttempts *int `json:"max-delivery-attempts,omitempty"`

	// DeadLetterAddress is the topic of dead letters. The first dead letter creates it. Empty means
	// that messages are removed after their last attempt. Default: empty.
	DeadLetterAddress *string `json:"dead-letter-address,omitempty"`

	// AutoCreateDeadLetterResources also writes the dead letters of each original topic
	// (_AMQ_ORIG_ADDRESS) to a topic of its own, the automatic dead letter queue, with the name
	// DeadLetterQueuePrefix + topic + DeadLetterQueueSuffix. The first dead letter creates it.
	// Default: false.
	AutoCreateDeadLetterResources *bool `json:"auto-create-dead-letter-resources,omitempty"`

	// DeadLetterQueuePrefix is the start of the names of automatic dead letter queues. Default:
	// "DLQ."
	DeadLetterQueuePrefix *string `json:"dead-letter-queue-prefix,omitempty"`

	// DeadLetterQueueSuffix is the end of the names of automatic dead letter queues. Default:
	// empty.
	DeadLetterQueueSuffix *string `json:"dead-letter-queue-suffix,omitempty"`

	// PersistDeliveryCountBeforeDelivery delivers a message for the first time only when the
	// attempt is on disk. If it is false, the attempt can be lost in a crash or power failure, and
	// the message is delivered as attempt 1 again. Default: false.
	PersistDeliveryCountBeforeDelivery *bool `json:"persist-delivery-count-before-delivery,omitempty"`

	// AutoDeleteQueues deletes an automatic dead letter queue that the pattern matches when groups
	// have consumed all of it and no client has received from it for 30 s. Default: true.
	AutoDeleteQueues *bool `json:"auto-delete-queues,omitempty"`

	// ExpiryDelay is the maximum age of a message at its delivery. An older message moves to
	// ExpiryAddress instead. Zero means no maximum. Default: 0.
	ExpiryDelay *Milliseconds `json:"expiry-delay,omitempty"`

	// ExpiryAddress is the topic of expired messages. The first one creates it. Empty means that
	// expired messages are removed. Default: empty.
	ExpiryAddress *string `json:"expiry-address,omitempty"`
}

// Over returns s with every nil field taken from less, the settings of a less specific pattern.
func (s Address) Over(less Address) Address {
	return Address{
		RedeliveryDelay:                    cmp.Or(s.RedeliveryDelay, less.RedeliveryDelay),
		RedeliveryDelayMultiplier:          cmp.Or(s.RedeliveryDelayMultiplier, less.RedeliveryDelayMultiplier),
		RedeliveryCollisionAvoidanceFactor: cmp.Or(s.RedeliveryCollisionAvoidanceFactor, less.RedeliveryCollisionAvoidanceFactor),
		MaxRedeliveryDelay:                 cmp.Or(s.MaxRedeliveryDelay, less.MaxRedeliveryDelay),
		MaxDeliveryAttempts:                cmp.Or(s.MaxDeliveryAttempts, less.MaxDeliveryAttempts),
		DeadLetterAddress:                  cmp.Or(s.DeadLetterAddress, less.DeadLetterAddress),
		AutoCreateDeadLetterResources:      cmp.Or(s.AutoCreateDeadLetterResources, less.AutoCreateDeadLetterResources),
		DeadLetterQueuePrefix:              cmp.Or(s.DeadLetterQueuePrefix, less.DeadLetterQueuePrefix),
		DeadLetterQueueSuffix:              cmp.Or(s.DeadLetterQueueSuffix, less.DeadLetterQueueSuffix),
		PersistDeliveryCountBeforeDelivery: cmp.Or(s.PersistDeliveryCountBeforeDelivery, less.PersistDeliveryCountBeforeDelivery),
		AutoDeleteQueues:                   cmp.Or(s.AutoDeleteQueues, less.AutoDeleteQueues),
		ExpiryDelay:                        cmp.Or(s.ExpiryDelay, less.ExpiryDelay),
		ExpiryAddress:                      cmp.Or(s.ExpiryAddress, less.ExpiryAddress),
	}
}

// Redelivers reports whether one of the first nine fields is set: the settings of redelivery and
// dead letters. If so, all nine apply.
func (s Address) Redelivers() bool {
	s.AutoDeleteQueues, s.PersistDeliveryCountBeforeDelivery, s.ExpiryDelay, s.ExpiryAddress = nil, nil, nil, nil
	return s != (Address{})
}

// orDefault returns *p, or v if p is nil.
func orDefault[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

// Validate returns an error that names every field with an invalid value, or nil.
func (s Address) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value *Milliseconds
	}{{"redelivery-delay", s.RedeliveryDelay}, {"max-redelivery-delay", s.MaxRedeliveryDelay}, {"expiry-delay", s.ExpiryDelay}} {
		if v := orDefault(f.value, 0); v < 0 || v > maxMilliseconds {
			bad("%s is %d ms; give 0 to %d", f.name, v, maxMilliseconds)
		}
	}
	if v := orDefault(s.RedeliveryDelayMultiplier, 1); !(v > 0) || math.IsInf(v, 0) {
		bad("redelivery-delay-multiplier is %v; give a number above 0", v)
	}
	if v := orDefault(s.RedeliveryCollisionAvoidanceFactor, 0); !(v >= 0 && v <= 1) {
		bad("redelivery-collision-avoidance-factor is %v; give 0.0 to 1.0", v)
	}
	if v := orDefault(s.MaxDeliveryAttempts, -1); v < 1 && v != -1 || v > math.MaxInt32 {
		bad("max-delivery-attempts is %d; give 1 to %d, or -1 for no maximum", v, math.MaxInt32)
	}
	for _, f := range []struct {
		name  string
		value *string
	}{{"dead-letter-address", s.DeadLetterAddress}, {"expiry-address", s.ExpiryAddress}} {
		if v := orDefault(f.value, ""); v != "" {
			if err := tidegate.ValidateTopic(v); err != nil {
				bad("%s is %q: %w", f.name, v, err)
			}
		}
	}
	prefix, suffix := orDefault(s.DeadLetterQueuePrefix, ""), orDefault(s.DeadLetterQueueSuffix, "")
	if err := tidegate.ValidateTopic(prefix + "x" + suffix); err != nil {
		bad("dead-letter-queue-prefix is %q and dead-letter-queue-suffix %q: together with a topic's name they are not a valid topic name: %w", prefix, suffix, err)
	}
	return errors.Join(errs...)
}
