package main

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"
)

// elsewhere are the options of broker and server that no setting stands for, and why.
var elsewhere = map[string]string{
	"broker.Logger": "log_level and log_format", "server.Logger": "likewise",
	"broker.MaxBodySize": "that of RocketMQ, whose clients refuse more",
	"broker.CacheBytes":  "the operating system caches the files besides",
	"broker.Memory":      "data that outlives a broker in memory is for tests",

	"server.TLS": "tls", "server.RequireTLS": "tls", "server.Access": "access",
	"server.BrokerName":       "there is one broker",
	"server.HandshakeTimeout": "a bound that no client comes near",
	"server.Intercept":        "is a function",

	"server.MaxSilentConnections": "max_connections, of which it is a half",
}

// fields adds the exported fields of a struct and of those within it, by name.
func fields(v reflect.Value, prefix string, into map[string]any) {
	if v.Kind() == reflect.Pointer && !v.IsNil() && prefix == "server.ProducerBackoff" {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || prefix == "server.Access" {
		into[prefix] = v.Interface()
		return
	}
	for f, value := range v.Fields() {
		if f.IsExported() {
			fields(value, prefix+"."+f.Name, into)
		}
	}
}

func optionsOf(s settings) map[string]any {
	bo, so := s.options()
	all := map[string]any{}
	fields(reflect.ValueOf(bo), "broker", all)
	fields(reflect.ValueOf(so), "server", all)
	return all
}

// All that a broker and a server can be told is a setting, or there is a reason.
func TestEveryOptionHasASetting(t *testing.T) {
	preset, bad := build(settingRules, nil)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	before := optionsOf(preset.value)
	set := map[string]bool{}
	for _, r := range settingRules {
		for _, text := range []string{"7", "20000000", "200000000", "7s", "true", "host.example:7", "host.example", "x"} {
			s := preset.value
			if r.set(&s, text) != nil {
				continue
			}
			for name, v := range optionsOf(s) {
				if !reflect.DeepEqual(v, before[name]) {
					set[name] = true
				}
			}
		}
	}
	// Neither is told to producers.
	delete(before, "server.ProducerBackoff.Jitter")
	delete(before, "server.ProducerBackoff.MinConnectTimeout")
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := elsewhere[name]; ok == set[name] {
			t.Errorf("%s: is set by a setting: %v, is told to be set elsewhere: %v", name, set[name], ok)
		}
	}
	for name := range elsewhere {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is no option", name)
		}
	}
}

// What is out of bounds with the defaults is taken with other bounds.
func TestSettingsThatGoTogether(t *testing.T) {
	doc, bad := parse("f", []byte("min_long_polling: 30s\nmax_long_polling: 1m\nmin_invisible_duration: 13h\nmax_invisible_duration: 24h\n"+
		"max_client_burst: 5\nmax_client_rate: 0.5\nproducer_max_attempts: 7\nproducer_backoff_initial: 3m\nproducer_backoff_multiplier: 2\nproducer_backoff_max: 5m\n"))
	c, more := merge(doc, nil, nil)
	if err := append(bad, more...).err(); err != nil {
		t.Fatal(err)
	}
	bo, so := c.settings.value.options()
	if so.MinLongPolling != 30*time.Second || so.MaxLongPolling != time.Minute || bo.MinInvisibleDuration != 13*time.Hour || bo.MaxInvisibleDuration != 24*time.Hour ||
		bo.ClientQuota.Burst != 5 || bo.ClientQuota.MessagesPerSecond != 0.5 || so.ProducerMaxAttempts != 7 ||
		so.ProducerBackoff.Initial != 3*time.Minute || so.ProducerBackoff.Multiplier != 2 || so.ProducerBackoff.Max != 5*time.Minute {
		t.Errorf("%+v, %+v, %+v", bo, so, so.ProducerBackoff)
	}
}
