package topic

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/redelivery"
	"github.com/tidegate/tidegate/broker/settings"
)

// An AddressPolicy has the effects of the address settings that match a topic.
type AddressPolicy struct {
	Redelivery    *redelivery.Rules // nil if no redelivery or dead letter setting matches
	NoAutoDelete  bool              // auto-delete-queues is false
	Persist       bool              // persist-delivery-count-before-delivery
	Expiry        time.Duration     // expiry-delay; 0 for none
	ExpiryAddress string
}

// NewAddressPolicy returns the effects of merged settings on a topic.
func NewAddressPolicy(s settings.Address) *AddressPolicy {
	p := &AddressPolicy{
		NoAutoDelete: !orDefault(s.AutoDeleteQueues, true),
		Persist:      orDefault(s.PersistDeliveryCountBeforeDelivery, false),
		Expiry:       orDefault(s.ExpiryDelay, 0).Duration(), ExpiryAddress: orDefault(s.ExpiryAddress, ""),
	}
	if !s.Redelivers() {
		return p
	}
	delay := orDefault(s.RedeliveryDelay, 0)
	p.Redelivery = &redelivery.Rules{
		Delay:       delay.Duration(),
		Longest:     orDefault(s.MaxRedeliveryDelay, min(delay*settings.DefaultMaxRedeliveryDelayFactor, maxMilliseconds)).Duration(),
		Multiplier:  orDefault(s.RedeliveryDelayMultiplier, settings.DefaultRedeliveryDelayMultiplier),
		Factor:      orDefault(s.RedeliveryCollisionAvoidanceFactor, 0),
		MaxAttempts: orDefault(s.MaxDeliveryAttempts, settings.DefaultMaxDeliveryAttempts),
		DeadLetter:  orDefault(s.DeadLetterAddress, ""),
		AutoCreate:  orDefault(s.AutoCreateDeadLetterResources, false),
		Prefix:      orDefault(s.DeadLetterQueuePrefix, settings.DefaultDeadLetterQueuePrefix),
		Suffix:      orDefault(s.DeadLetterQueueSuffix, ""),
	}
	return p
}

const maxMilliseconds = settings.Milliseconds(settings.MaxDuration / time.Millisecond)

// orDefault returns *p, or v if p is nil.
func orDefault[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}
