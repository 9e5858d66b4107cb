package serve

import (
	"reflect"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// elsewhere has the options of broker and server without a setting of their own, each with the
// reason.
var elsewhere = map[string]string{
	"broker.Logger": "log_level and log_format", "server.Logger": "likewise",
	"broker.MaxBodySize": "that of RocketMQ, whose clients refuse more",
	"broker.CacheBytes":  "the operating system caches the files besides",
	"broker.Memory":      "data that outlives a broker in memory is for tests",

	"server.TLS": "tls", "server.RequireTLS": "tls", "server.Access": "access",
	"server.BrokerName":       "there is one broker",
	"server.HandshakeTimeout": "a bound that no client comes near",
	"server.Intercept":        "is a function",
	"server.Version":          "that of the program",
	"server.NoConsole":        "console, which is on or off",
	"server.ProducerBackoff":  "producer_backoff_initial, producer_backoff_multiplier and producer_backoff_max",

	"broker.AcceptDataLoss":       "--accept-data-loss, which is for one start",
	"server.MaxSilentConnections": "max_connections, of which it is a half",
}

// Every option of the broker and the server is a setting, or there is a reason.
func TestEveryOptionHasASetting(t *testing.T) {
	s := defaultSettings()
	set, names := map[any]bool{}, map[string]bool{}
	for _, row := range s.table() {
		set[row.at] = true
	}
	var look func(v reflect.Value, name string)
	look = func(v reflect.Value, name string) {
		_, other := elsewhere[name]
		if v.Kind() == reflect.Struct && !other {
			for f, inner := range v.Fields() {
				if f.IsExported() {
					look(inner, name+"."+f.Name)
				}
			}
			return
		}
		names[name] = true
		assert.That(t, set[v.Addr().Interface()] != other, "%s: is a setting: %t, has a reason not to be one: %t", name, !other, other)
	}
	look(reflect.ValueOf(&s.broker).Elem(), "broker")
	look(reflect.ValueOf(&s.server).Elem(), "server")
	for name := range elsewhere {
		assert.That(t, names[name], "%s is no option", name)
	}
}

// The console is on unless the file turns it off, also in the spellings that are false in YAML 1.1.
func TestConsoleSetting(t *testing.T) {
	for text, none := range map[string]bool{"": false, "console: on": false, "console: off": true, "console: 'off'": true} {
		c := assert.Value(merge("f", []byte(text), nil, nil))(t)
		if _, so := c.settings.options(); so.NoConsole != none {
			t.Errorf("%q: NoConsole is %t, want %t", text, so.NoConsole, none)
		}
	}
}

// A value outside of the default bounds is legal if the file changes the bounds too.
func TestSettingsThatGoTogether(t *testing.T) {
	c := assert.Value(merge("f", []byte("min_long_polling: 30s\nmax_long_polling: 1m\nmin_invisible_duration: 13h\nmax_invisible_duration: 24h\n"+
		"max_client_burst: 5\nmax_client_rate: 0.5\nproducer_max_attempts: 7\nproducer_backoff_initial: 3m\nproducer_backoff_multiplier: 2\nproducer_backoff_max: 5m\n"), nil, nil))(t)
	bo, so := c.settings.options()
	if so.MinLongPolling != 30*time.Second || so.MaxLongPolling != time.Minute || bo.MinInvisibleDuration != 13*time.Hour || bo.MaxInvisibleDuration != 24*time.Hour ||
		bo.ClientQuota.Burst != 5 || bo.ClientQuota.MessagesPerSecond != 0.5 || so.ProducerMaxAttempts != 7 ||
		so.ProducerBackoff.Initial != 3*time.Minute || so.ProducerBackoff.Multiplier != 2 || so.ProducerBackoff.Max != 5*time.Minute {
		t.Errorf("%+v, %+v, %+v", bo, so, so.ProducerBackoff)
	}
}
