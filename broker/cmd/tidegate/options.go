package main

import (
	"cmp"
	"errors"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

// atLeastOne turns the wish for no minimum into the smallest duration: in the
// options of broker and server, 0 stands for their default.
func atLeastOne(d time.Duration) time.Duration { return max(d, 1) }

// options are what the settings are to the broker and the server.
func (s settings) options() (broker.Options, server.Options) {
	delays := backoff.Default()
	delays.Initial, delays.Multiplier, delays.Max = s.producer.initial, s.producer.multiplier, s.producer.max
	return broker.Options{
			Dir: s.data, MaxBacklog: s.limits.MaxBacklog, ClientQuota: s.limits.ClientQuota, Pressure: s.limits.Pressure,
			Transaction: s.transaction, MinInvisibleDuration: atLeastOne(s.minInvisible), MaxInvisibleDuration: s.maxInvisible, MaxAutoGroups: s.maxAutoGroups,
		}, server.Options{
			Advertise: s.advertise, MinLongPolling: atLeastOne(s.minPoll), MaxLongPolling: s.maxPoll,
			ProducerMaxAttempts: s.producer.attempts, ProducerBackoff: &delays,
			MaxReceiveSize: s.maxRequest, MaxTransitBytes: s.maxTransit, MaxParkedBytes: s.maxParked, AnyHost: s.insecure, HTTPHosts: s.hosts,
		}
}

// validate returns what the broker or the server would refuse of the settings.
func (s settings) validate() error {
	bo, so := s.options()
	return errors.Join(bo.Validate(), so.Validate())
}

// validateAlone is validate for settings of which one is not zero: those that it
// goes with are taken to be such that it does.
func (s settings) validateAlone() error {
	s.maxInvisible = cmp.Or(s.maxInvisible, s.minInvisible)
	s.maxPoll = cmp.Or(s.maxPoll, s.minPoll)
	s.producer.max = cmp.Or(s.producer.max, s.producer.initial)
	s.producer.multiplier = cmp.Or(s.producer.multiplier, 1)
	if q := &s.limits.ClientQuota; q.Burst > 0 {
		q.MessagesPerSecond = cmp.Or(q.MessagesPerSecond, 1)
	}
	return s.validate()
}

// checkPairs refuses settings that do not go with each other.
func checkPairs(s section[settings]) (bad faults) {
	v := s.value
	for _, pair := range []struct {
		least, most string
		low, high   time.Duration
	}{
		{"min_invisible_duration", "max_invisible_duration", v.minInvisible, v.maxInvisible},
		{"min_long_polling", "max_long_polling", v.minPoll, v.maxPoll},
		{"producer_backoff_initial", "producer_backoff_max", v.producer.initial, v.producer.max},
	} {
		if pair.low <= pair.high {
			continue
		}
		if at, ok := s.from[pair.least]; ok {
			bad = append(bad, faultf(at, "is %v, more than %s, %v", pair.low, pair.most, pair.high))
		} else {
			bad = append(bad, faultf(s.from[pair.most], "is %v, less than %s, %v", pair.high, pair.least, pair.low))
		}
	}
	if q := v.limits.ClientQuota; q.Burst > 0 && q.MessagesPerSecond == 0 {
		bad = append(bad, faultf(s.from["max_client_burst"], "needs max_client_rate beside it"))
	}
	return bad
}
