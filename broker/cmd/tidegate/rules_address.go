package main

import (
	"errors"
	"math"
	"strconv"

	"github.com/tidegate/tidegate/broker"
)

// inherited is the text of a field that is not set; no value has it.
const inherited = "(inherited)"

// addressRules are all fields of address settings, named as over HTTP and in Artemis. A field that
// is not set is inherited from a less specific pattern.
var addressRules = []rule[broker.AddressSettings]{
	addressTime("redelivery-delay", "0", func(s *broker.AddressSettings) **broker.Milliseconds { return &s.RedeliveryDelay }),
	addressNumber("redelivery-delay-multiplier", "1.0", func(s *broker.AddressSettings) **float64 { return &s.RedeliveryDelayMultiplier }),
	addressNumber("redelivery-collision-avoidance-factor", "0.0", func(s *broker.AddressSettings) **float64 { return &s.RedeliveryCollisionAvoidanceFactor }),
	addressTime("max-redelivery-delay", "10 times redelivery-delay", func(s *broker.AddressSettings) **broker.Milliseconds { return &s.MaxRedeliveryDelay }),
	optional("max-delivery-attempts", strconv.Itoa(broker.DefaultMaxDeliveryAttempts), func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n > math.MaxInt32 {
			return 0, errors.New("give a whole number of 1 or more, or -1 for ever")
		}
		return n, nil
	}, strconv.Itoa, func(s *broker.AddressSettings) **int { return &s.MaxDeliveryAttempts }),
	addressText("dead-letter-address", "none: messages are removed", func(s *broker.AddressSettings) **string { return &s.DeadLetterAddress }),
	addressBool("auto-create-dead-letter-resources", "false", func(s *broker.AddressSettings) **bool { return &s.AutoCreateDeadLetterResources }),
	addressText("dead-letter-queue-prefix", broker.DefaultDeadLetterQueuePrefix, func(s *broker.AddressSettings) **string { return &s.DeadLetterQueuePrefix }),
	addressText("dead-letter-queue-suffix", "none", func(s *broker.AddressSettings) **string { return &s.DeadLetterQueueSuffix }),
	addressBool("persist-delivery-count-before-delivery", "false", func(s *broker.AddressSettings) **bool { return &s.PersistDeliveryCountBeforeDelivery }),
	addressBool("auto-delete-queues", "true", func(s *broker.AddressSettings) **bool { return &s.AutoDeleteQueues }),
	addressTime("expiry-delay", "0, for any age", func(s *broker.AddressSettings) **broker.Milliseconds { return &s.ExpiryDelay }),
	addressText("expiry-address", "none: messages are removed", func(s *broker.AddressSettings) **string { return &s.ExpiryAddress }),
}

// optional is a field that can be absent. What is legal for it, its
// settings know (see broker.AddressSettings.Validate).
func optional[V any](key, preset string, read func(string) (V, error), write func(V) string, field func(*broker.AddressSettings) **V) rule[broker.AddressSettings] {
	return rule[broker.AddressSettings]{
		key: key, keeps: "that of the next pattern that matches, or " + preset,
		text: func(s *broker.AddressSettings) string {
			if p := *field(s); p != nil {
				return write(*p)
			}
			return inherited
		},
		set: func(s *broker.AddressSettings, text string) error {
			v, err := read(text)
			if err != nil {
				return err
			}
			alone := broker.AddressSettings{}
			*field(&alone) = &v
			if err := alone.Validate(); err != nil {
				return err
			}
			*field(s) = &v
			return nil
		},
	}
}

func addressTime(key, preset string, field func(*broker.AddressSettings) **broker.Milliseconds) rule[broker.AddressSettings] {
	return optional(key, preset, broker.ParseMilliseconds, func(m broker.Milliseconds) string { return strconv.FormatInt(int64(m), 10) }, field)
}

func addressNumber(key, preset string, field func(*broker.AddressSettings) **float64) rule[broker.AddressSettings] {
	return optional(key, preset, func(text string) (float64, error) {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, errors.New("give a number such as 1.5")
		}
		return v, nil
	}, func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }, field)
}

func addressText(key, preset string, field func(*broker.AddressSettings) **string) rule[broker.AddressSettings] {
	return optional(key, preset, func(text string) (string, error) { return text, nil }, func(v string) string { return v }, field)
}

func addressBool(key, preset string, field func(*broker.AddressSettings) **bool) rule[broker.AddressSettings] {
	return optional(key, preset, func(text string) (bool, error) {
		if text != "true" && text != "false" {
			return false, errors.New("give true or false")
		}
		return text == "true", nil
	}, strconv.FormatBool, field)
}

// addressDeclared reads the settings of a pattern.
func addressDeclared(match string, d declaration) (section[broker.AddressSettings], faults) {
	s, bad := declared(addressRules, d, nil)
	if err := broker.ValidateMatch(match); err != nil {
		bad = append(bad, faultf(d.from, "has a pattern that cannot be: %v", err))
	}
	if err := s.value.Validate(); err != nil && len(bad) == 0 { // what only several fields together are wrong in
		bad = append(bad, faultf(d.from, "cannot be: %v", err))
	}
	return s, bad
}
