package broker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/redelivery"
)

// The defaults of address settings (Artemis: undelivered messages). They hold for every topic that
// has redelivery settings at all; the delays default to 0.
const (
	DefaultRedeliveryDelayMultiplier = 1.0
	DefaultMaxRedeliveryDelayFactor  = 10 // of redelivery-delay
	DefaultMaxDeliveryAttempts       = 10 // deliveries, the first one included
	DefaultDeadLetterQueuePrefix     = "DLQ."
)

// maxSetDelay is maxDuration.
const maxSetDelay = Milliseconds(maxDuration / time.Millisecond)

// Milliseconds is a number of milliseconds, the unit of Artemis's address settings. JSON
// has it as that number, and may give a text such as "5s" too.
type Milliseconds int64

// Duration returns the same time as a time.Duration.
func (m Milliseconds) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// ParseMilliseconds reads a whole number of milliseconds, or a duration such
// as "5s" or "1m30s" that is one.
func ParseMilliseconds(text string) (Milliseconds, error) {
	var n json.Number
	if err := json.Unmarshal([]byte(text), &n); err == nil {
		if v, err := n.Int64(); err == nil {
			return Milliseconds(v), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q is no time: give whole milliseconds such as 5000, or a duration such as \"5s\"", text)
	}
	return Milliseconds(d / time.Millisecond), nil
}

// UnmarshalJSON reads a number of milliseconds or a quoted duration.
func (m *Milliseconds) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	v, err := ParseMilliseconds(text)
	if err != nil {
		return err
	}
	*m = v
	return nil
}

// AddressSettings are the settings of the topics that an address pattern
// matches, named as in Artemis. A field that is nil is inherited: from the
// most specific of the other patterns that match and have it, or else it has its
// default.
//
// If one of the first nine fields is set for a topic, all nine apply there, with their defaults.
// They replace MaxAttempts, Retry and FIFORetryInterval of the groups, and the delay that a push
// consumer requests. The retry interval of a simple consumer stays its invisible duration
// (RocketMQ: consumption retry).
type AddressSettings struct {
	// RedeliveryDelay is the time between a failed delivery and the next one.
	// Default: 0, at once.
	RedeliveryDelay *Milliseconds `json:"redelivery-delay,omitempty"`

	// RedeliveryDelayMultiplier makes each delay that many times the one
	// before. Above 0. Default: 1.
	RedeliveryDelayMultiplier *float64 `json:"redelivery-delay-multiplier,omitempty"`

	// RedeliveryCollisionAvoidanceFactor is how much of a delay, 0 to 1, chance
	// adds to or takes from it at most. Default: 0.
	RedeliveryCollisionAvoidanceFactor *float64 `json:"redelivery-collision-avoidance-factor,omitempty"`

	// MaxRedeliveryDelay bounds the delay. Default: ten times RedeliveryDelay.
	MaxRedeliveryDelay *Milliseconds `json:"max-redelivery-delay,omitempty"`

	// MaxDeliveryAttempts is how many unsuccessful deliveries a message has
	// before it goes to DeadLetterAddress; -1 for ever. Default: 10.
	MaxDeliveryAttempts *int `json:"max-delivery-attempts,omitempty"`

	// DeadLetterAddress is the topic of dead letters. The first dead letter creates it. Empty means
	// that messages are removed after their last attempt. Default: empty.
	DeadLetterAddress *string `json:"dead-letter-address,omitempty"`

	// AutoCreateDeadLetterResources also writes the dead letters of each original topic
	// (_AMQ_ORIG_ADDRESS) to a topic of its own, the automatic dead letter queue, with the name
	// DeadLetterQueuePrefix + topic + DeadLetterQueueSuffix. The first dead letter creates it.
	// Default: false.
	AutoCreateDeadLetterResources *bool `json:"auto-create-dead-letter-resources,omitempty"`

	// DeadLetterQueuePrefix. Default: "DLQ."
	DeadLetterQueuePrefix *string `json:"dead-letter-queue-prefix,omitempty"`

	// DeadLetterQueueSuffix. Default: empty.
	DeadLetterQueueSuffix *string `json:"dead-letter-queue-suffix,omitempty"`

	// PersistDeliveryCountBeforeDelivery delivers a message for the first time only when the
	// attempt is on disk. Without it a crash or power failure can take the attempt back, so that
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

// over returns s with what it does not set taken from less.
func (s AddressSettings) over(less AddressSettings) AddressSettings {
	return AddressSettings{
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

func orDefault[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

// An addressPolicy is what the address settings that match a topic make of it.
type addressPolicy struct {
	redelivery    *redelivery.Rules // nil: none of them says anything about it
	keepQueues    bool              // auto-delete-queues is false
	persist       bool              // persist-delivery-count-before-delivery
	expiry        time.Duration
	expiryAddress string
}

// policy returns what merged settings make of a topic.
func (s AddressSettings) policy() *addressPolicy {
	p := &addressPolicy{
		keepQueues: !orDefault(s.AutoDeleteQueues, true),
		persist:    orDefault(s.PersistDeliveryCountBeforeDelivery, false),
		expiry:     orDefault(s.ExpiryDelay, 0).Duration(), expiryAddress: orDefault(s.ExpiryAddress, ""),
	}
	other := s
	other.AutoDeleteQueues = nil
	other.PersistDeliveryCountBeforeDelivery, other.ExpiryDelay, other.ExpiryAddress = nil, nil, nil
	if other == (AddressSettings{}) {
		return p
	}
	delay := orDefault(s.RedeliveryDelay, 0)
	p.redelivery = &redelivery.Rules{
		Delay:       delay.Duration(),
		Longest:     orDefault(s.MaxRedeliveryDelay, min(delay*DefaultMaxRedeliveryDelayFactor, maxSetDelay)).Duration(),
		Multiplier:  orDefault(s.RedeliveryDelayMultiplier, DefaultRedeliveryDelayMultiplier),
		Factor:      orDefault(s.RedeliveryCollisionAvoidanceFactor, 0),
		MaxAttempts: orDefault(s.MaxDeliveryAttempts, DefaultMaxDeliveryAttempts),
		DeadLetter:  orDefault(s.DeadLetterAddress, ""),
		AutoCreate:  orDefault(s.AutoCreateDeadLetterResources, false),
		Prefix:      orDefault(s.DeadLetterQueuePrefix, DefaultDeadLetterQueuePrefix),
		Suffix:      orDefault(s.DeadLetterQueueSuffix, ""),
	}
	return p
}

// Validate returns an error that names every field with a value that is not
// legal, and nil if there is none.
func (s AddressSettings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value *Milliseconds
	}{{"redelivery-delay", s.RedeliveryDelay}, {"max-redelivery-delay", s.MaxRedeliveryDelay}, {"expiry-delay", s.ExpiryDelay}} {
		if v := orDefault(f.value, 0); v < 0 || v > maxSetDelay {
			bad("%s is %d ms: give 0 to %d", f.name, v, maxSetDelay)
		}
	}
	if v := orDefault(s.RedeliveryDelayMultiplier, 1); !(v > 0) || math.IsInf(v, 0) {
		bad("redelivery-delay-multiplier is %v: give a number above 0", v)
	}
	if v := orDefault(s.RedeliveryCollisionAvoidanceFactor, 0); !(v >= 0 && v <= 1) {
		bad("redelivery-collision-avoidance-factor is %v: give 0.0 to 1.0", v)
	}
	if v := orDefault(s.MaxDeliveryAttempts, -1); v < 1 && v != -1 || v > math.MaxInt32 {
		bad("max-delivery-attempts is %d: give 1 to %d, or -1 for ever", v, math.MaxInt32)
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
		bad("dead-letter-queue-prefix is %q and dead-letter-queue-suffix %q: with a topic's name in between they make no topic's name: %w", prefix, suffix, err)
	}
	return errors.Join(errs...)
}
