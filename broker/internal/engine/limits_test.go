package engine

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

// Names has each constant of a limit, so that each of them has a counter.
func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "throttle.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var constants []string
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.ValueSpec); ok && len(c.Values) == 1 && !strings.HasPrefix(c.Names[0].Name, "unit") && !strings.HasPrefix(c.Names[0].Name, "remedy") {
			if value, ok := c.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
				constants = append(constants, strings.Trim(value.Value, `"`))
			}
		}
		return true
	})
	slices.Sort(constants)
	if got := slices.Sorted(slices.Values(Names[:])); !slices.Equal(got, constants) || !slices.Contains(got, topicMessages) {
		t.Errorf("the constants are %q, Names has %q", constants, got)
	}
}

// Each limit that rejects sends has a remedy. The limit of a client's quota has its own error.
func TestEachLimitHasARemedy(t *testing.T) {
	for _, name := range Names {
		if (remedies[name] == "") != (name == ClientQuota) {
			t.Errorf("the remedy of %q is %q", name, remedies[name])
		}
	}
}

// The error about a full disk has the number of missing bytes, and the remedy.
func TestDiskFullText(t *testing.T) {
	t.Parallel()
	err := Rejected(*diskFull(&store.DiskFull{Missing: 98746368}))
	for _, w := range []string{"530 TOO_MANY_REQUESTS", "the disk of the data directory is full", "when 98746368 more bytes are free", "no restart"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the text lacks %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "the limit is 1") {
		t.Errorf("%v", err)
	}
}

// The states of the storage name only limits that are set, each in its unit.
func TestPressureStates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits settings.Pressure
		want   []string
		on     bool
	}{
		{settings.Pressure{MinFreeDisk: 10, MaxCompactionDebt: 7, MaxWriteStall: settings.Duration(time.Second)}, []string{
			"free disk is 5, the limit is 10; sends are accepted again at 12;", "write stall is 2s, the limit is 1s;", "compaction debt is 7, the limit is 7; sends are accepted again at 5;",
		}, true},
		{settings.Pressure{MinFreeDisk: -1, MaxCompactionDebt: 8, MaxWriteStall: -1}, []string{"compaction debt is 7, the limit is 8; sends are accepted again at 6;"}, false},
	} {
		var p storage
		p.limits.Store(&c.limits)
		states := p.decide(store.Pressure{Disk: true, Free: 5, Total: 1000, CompactionDebt: 7}, 2*time.Second, time.Now())
		if len(states) != len(c.want) {
			t.Fatalf("%+v: %+v", c.limits, states)
		}
		for i, l := range states {
			if !strings.HasPrefix(text(l.Throttle), c.want[i]) || l.On != c.on || l.Since.IsZero() == c.on {
				t.Errorf("%+v: %v, %+v; want %q", c.limits, l, l, c.want[i])
			}
		}
	}
}

// openLimits returns limits on an empty store in memory.
func openLimits(t *testing.T, s settings.Limits) *Limits {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st, err := store.Open(store.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := NewLimits(LimitsConfig{Store: st, Logger: logger}, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Check takes a message from the rate of its topic. Without a message it takes nothing, and a topic
// of dead letters has no limits.
func TestCheckTakesFromTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := openLimits(t, settings.Limits{})
		config := settings.Topic{MaxRate: settings.Rate{MessagesPerSecond: 1, Burst: 2}}.WithDefaults()
		slow := newTopic(TopicConfig{Name: "slow"}, config)
		letters := newTopic(TopicConfig{Name: tidegate.DeadLetterTopic("g")}, config)
		by := &Sender{Client: "c", Size: 1}
		for range 3 {
			if th := l.Check(slow, time.Now(), nil); th != nil {
				t.Fatalf("without a message: %v", th)
			}
			if th := l.Check(letters, time.Now(), by); th != nil {
				t.Fatalf("dead letters: %v", th)
			}
		}
		for i := range 3 {
			if th := l.Check(slow, time.Now(), by); (th != nil) != (i == 2) {
				t.Fatalf("message %d: %v", i, th)
			} else if th != nil && (th.Limit != topicRateMessages || th.Subject != "slow" || time.Duration(th.RetryAfter) != time.Second) {
				t.Errorf("%+v", th)
			}
		}
		states := l.States([]*Topic{slow, letters}, true, time.Now())
		if len(states) != 1 || states[0].Limit != topicRateMessages || !states[0].On {
			t.Errorf("the states are %+v", states)
		}
		for _, c := range []settings.Topic{{}, config} {
			slow.SetSettings(c)
			rateChanged(slow)
			if th := l.Check(slow, time.Now(), by); th != nil {
				t.Errorf("after a change to %+v: %v", c.MaxRate, th)
			}
		}
	})
}

// Set changes nothing if a value is invalid. An unchanged quota keeps the used burst of a client.
func TestSetAndQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quota := settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: .5}}
		l := openLimits(t, quota)
		if err := l.WithinQuota("c"); err != nil {
			t.Fatal(err)
		}
		bad := quota
		bad.MaxBacklog.Messages = -1
		if err := l.Set(bad); err == nil || l.Settings() != quota {
			t.Errorf("after %v the limits are %+v", err, l.Settings())
		}
		quota.MaxBacklog.Messages = 5
		if err := l.Set(quota); err != nil {
			t.Fatal(err)
		}
		err := l.WithinQuota("c")
		if wait := tidegate.RetryAfter(err); !errors.Is(err, tidegate.ErrThrottled) || wait != 2*time.Second {
			t.Errorf("above the quota: %v, wait %v", err, wait)
		}
		if err := l.WithinQuota("other"); err != nil {
			t.Errorf("another client: %v", err)
		}
		if err := l.Set(settings.Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := l.WithinQuota("c"); err != nil {
			t.Errorf("without a quota: %v", err)
		}
	})
}
