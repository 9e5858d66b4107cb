package serve

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// flagged returns the values of flags, in pairs of key and text.
func flagged(pairs ...string) values {
	v := values{}
	for i := 0; i < len(pairs); i += 2 {
		v[pairs[i]] = append(v[pairs[i]], given{pairs[i+1], origin{Name: "--" + flagName(pairs[i])}})
	}
	return v
}

// Each source is checked, also a value that a flag or the environment overrides. Settings that
// depend on each other may come from different sources.
func TestOverriddenValues(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        []string
		flags      values
		want       string // "" if the configuration is accepted
	}{
		{name: "file below a flag", file: "\nlog_level: loud", flags: flagged("log_level", "info"),
			want: `f:2: log_level is "loud": give debug, info, warn or error`},
		{name: "file below the environment", file: "stop_timeout: -3s", env: []string{"TIDEGATE_STOP_TIMEOUT=3s"},
			want: `f:1: stop_timeout is "-3s": give 0s or more`},
		{name: "environment below a flag", env: []string{"TIDEGATE_MIN_FREE_DISK_BYTES=-2", "TIDEGATE_MAX_BACKLOG=-1"}, flags: flagged("max_backlog", "1", "min_free_disk_bytes", "1"),
			want: "TIDEGATE_MAX_BACKLOG is \"-1\": MaxBacklog is -1 messages and 0 bytes; neither may be negative, 0 is no limit\n" +
				`TIDEGATE_MIN_FREE_DISK_BYTES is "-2": Pressure.min_free_disk_bytes is -2; give -1 or more`},
		{name: "flag below the same flag", flags: flagged("log_format", "xml", "log_format", "json"),
			want: `--log-format is "xml": give text or json`},
		{name: "one of two lists", env: []string{"TIDEGATE_TOPIC=a,b:ODD"}, flags: flagged("topic", "c", "topic", "d:ODD"),
			want: "TIDEGATE_TOPIC is \"a,b:ODD\": give NORMAL, FIFO, DELAY or TRANSACTION after the colon\n" +
				`--topic is "d:ODD": give NORMAL, FIFO, DELAY or TRANSACTION after the colon`},
		{name: "all three", file: "log_level: a", env: []string{"TIDEGATE_LOG_LEVEL=b"}, flags: flagged("log_level", "c"),
			want: "f:1: log_level is \"a\": give debug, info, warn or error\n" +
				"TIDEGATE_LOG_LEVEL is \"b\": give debug, info, warn or error\n" +
				`--log-level is "c": give debug, info, warn or error`},
		{name: "combination across sources", file: "min_long_polling: 30s", flags: flagged("max_long_polling", "1m")},
		{name: "hidden combination", file: "min_long_polling: 30s\nmax_long_polling: 1m", flags: flagged("min_long_polling", "1s", "max_long_polling", "2s")},
		{name: "combination without its partner", file: "min_long_polling: 30s", flags: flagged("min_long_polling", "1s"),
			want: `f:1: min_long_polling is "30s": server options: MinLongPolling is 30s and MaxLongPolling is 20s; the minimum must not exceed the maximum`},
		{name: "combination beside another fault", file: "max_client_rate: 10\nmax_client_burst: 5\nlog_level: loud",
			want: `f:3: log_level is "loud": give debug, info, warn or error`},
		{name: "effective combination beside a hidden fault", file: "log_level: loud\nmin_long_polling: 18s\nmax_long_polling: 15s", flags: flagged("log_level", "info"),
			want: "f:1: log_level is \"loud\": give debug, info, warn or error\n" +
				`f:2: min_long_polling is "18s": server options: MinLongPolling is 18s and MaxLongPolling is 15s; the minimum must not exceed the maximum`},
		{name: "combination that a flag destroys", file: "max_client_rate: 10\nmax_client_burst: 5", flags: flagged("max_client_rate", "0"),
			want: `f:2: max_client_burst is "5": ClientQuota is 0 messages per second with a burst of 5; give a rate above 0 and a burst of 0 or more, or a rate and burst of 0 for no limit`},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, _ := environment(c.env)
			_, err := merge("f", []byte(c.file), env, c.flags)
			got := ""
			if err != nil {
				got = err.Error()
			}
			assert.That(t, got == c.want, "got\n%s\nwant\n%s", got, c.want)
		})
	}
}
