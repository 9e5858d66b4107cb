package broker_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

// Limits that were set in use survive restarts. The last change of each limit wins: a limit whose
// configured value changes afterwards has the configured value, at a restart and in use.
func TestLimitsSurviveARestart(t *testing.T) {
	t.Parallel()
	limit := func(messages, bytes int64) settings.Limit { return settings.Limit{Messages: messages, Bytes: bytes} }
	type step struct {
		does     string         // set, configure or open
		to       settings.Limit // the argument, or MaxBacklog of Options
		inEffect settings.Limit
	}
	for name, steps := range map[string][]step{
		"the same file":   {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(1, 2), limit(5, 6)}, {"open", limit(1, 2), limit(5, 6)}},
		"one field of it": {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(7, 2), limit(7, 6)}, {"open", limit(7, 2), limit(7, 6)}},
		"there and back":  {{"set", limit(5, 6), limit(5, 6)}, {"open", limit(7, 2), limit(7, 6)}, {"open", limit(1, 2), limit(1, 6)}},
		"to nothing":      {{"set", limit(0, 0), limit(0, 0)}, {"open", limit(1, 2), limit(0, 0)}, {"open", limit(1, 0), limit(0, 0)}},
		"as configured":   {{"set", limit(5, 6), limit(5, 6)}, {"set", limit(1, 2), limit(1, 2)}, {"open", limit(1, 3), limit(1, 3)}, {"open", limit(1, 2), limit(1, 2)}},
		"reloaded":        {{"set", limit(5, 6), limit(5, 6)}, {"configure", limit(1, 3), limit(5, 3)}, {"open", limit(1, 3), limit(5, 3)}, {"open", limit(1, 2), limit(5, 2)}},
		"reloaded before": {{"configure", limit(1, 3), limit(1, 3)}, {"set", limit(5, 3), limit(5, 3)}, {"open", limit(1, 3), limit(5, 3)}},
		"never set":       {{"configure", limit(1, 3), limit(1, 3)}, {"open", limit(1, 2), limit(1, 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data", MaxBacklog: limit(1, 2)}.On(fs))
				for i, s := range steps {
					var err error
					switch l := (settings.Limits{MaxBacklog: s.to}); s.does {
					case "set":
						err = b.SetLimits(t.Context(), l)
					case "configure":
						err = b.ConfigureLimits(t.Context(), l)
					case "open":
						if err = b.Close(); err == nil {
							b = open(t, broker.Options{Dir: "data", MaxBacklog: s.to}.On(fs))
						}
					}
					if err != nil {
						t.Fatal(err)
					}
					if got := b.Limits().MaxBacklog; got != s.inEffect {
						t.Errorf("step %d, %s %+v: %+v, want %+v", i+1, s.does, s.to, got, s.inEffect)
					}
				}
			})
		})
	}
}

// A set limit that replaces a configured one is in the log of the start.
func TestStartLogsSetLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data", MaxBacklog: settings.Limit{Messages: 12}}.On(fs))
		if err := b.SetLimits(t.Context(), settings.Limits{MaxBacklog: settings.Limit{Messages: 34}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil)), MaxBacklog: settings.Limit{Messages: 12}}.On(fs))
		for _, w := range []string{"set in use", "34", "12", "/v1/throttle"} {
			if !strings.Contains(log.String(), w) {
				t.Errorf("the log does not contain %q: %s", w, log.String())
			}
		}
	})
}
