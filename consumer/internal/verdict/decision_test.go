package verdict

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A delay of more than 12 h means 12 h, unless the server decides.
func TestLongRetryDelays(t *testing.T) {
	day := transport.ConsumerSettings{Retry: backoff.Steps{24 * time.Hour}}
	failed := Read(errors.New("no connection"))
	for _, r := range []Rules{
		NewRules(nil, day, transport.Capabilities{}),
		NewRules(day.Retry.(backoff.Steps), transport.ConsumerSettings{}, transport.Capabilities{RetryResult: true}),
	} {
		v := Judge(1, failed, r)
		assert.That(t, v.Delay == 12*time.Hour && !v.ByServer, "%+v: got %+v", r, v)
	}
}

// A transport would send a set of kinds as an extension of the lease.
func TestReconsumeNeedsOneKind(t *testing.T) {
	for kind, want := range map[transport.VerdictKind]bool{
		transport.RetryTopic: true, transport.NegativeAck: true, transport.RetryTopic | transport.NegativeAck: false,
		transport.Release: false, transport.Retry: false, transport.DeadLetter: false, transport.Snooze: false,
	} {
		f := Read(&Reconsume{Verdict: transport.Verdict{Kind: kind}})
		assert.That(t, (f.Reconsume != nil) == want, "%v is read as %+v", kind, f)
	}
}

func TestNewRules(t *testing.T) {
	own, pushed := backoff.Steps{time.Second}, backoff.Steps{time.Minute}
	ours := transport.Capabilities{Suspend: true}
	for _, tt := range []struct {
		name    string
		own     backoff.Policy
		pushed  transport.ConsumerSettings
		caps    transport.Capabilities
		attempt int
		delay   time.Duration
	}{
		{"nothing known", nil, transport.ConsumerSettings{}, transport.Capabilities{}, 0, 10 * time.Second},
		{"a silent server of ours", nil, transport.ConsumerSettings{}, ours, 17, 10 * time.Second},
		{"pushed", nil, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, transport.Capabilities{}, 4, time.Minute},
		{"for ever", nil, transport.ConsumerSettings{MaxAttempts: -1}, ours, 0, 10 * time.Second},
		{"a server that decides", nil, transport.ConsumerSettings{MaxAttempts: 4}, transport.Capabilities{RetryResult: true}, 0, 10 * time.Second},
		{"own schedule", own, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, ours, 4, time.Second},
	} {
		if r := NewRules(tt.own, tt.pushed, tt.caps); r.MaxAttempts != tt.attempt || r.Schedule.Delay(0) != tt.delay {
			t.Errorf("%s: got %+v, want %d attempts and a first delay of %v", tt.name, r, tt.attempt, tt.delay)
		}
	}
}

// The lower maximum applies, and it is the server's also if the server decides about each failure.
func TestLimit(t *testing.T) {
	decides := transport.Capabilities{RetryResult: true}
	for _, tt := range []struct {
		own, server int
		caps        transport.Capabilities
		limit       int
		ours        bool
	}{
		{0, 0, transport.Capabilities{}, 0, false},
		{5, 0, transport.Capabilities{}, 5, true},
		{5, 2, transport.Capabilities{}, 2, false},
		{5, 2, decides, 2, false},
		{2, 5, decides, 2, true},
		{5, 5, decides, 5, true},
		{5, -1, decides, 5, true},
		{18, 0, decides, 17, false},
		{0, 3, decides, 3, false},
		{0, -1, decides, 0, false},
	} {
		r := NewRules(nil, transport.ConsumerSettings{MaxAttempts: tt.server}, tt.caps)
		r.OwnAttempts = tt.own
		if limit, ours := r.Limit(); limit != tt.limit || ours != tt.ours {
			t.Errorf("%d attempts of the policies, %d of the server: %d, %v; want %d, %v", tt.own, tt.server, limit, ours, tt.limit, tt.ours)
		}
	}
}

// The reason that travels with a dead letter does not grow with the error.
func TestReasonIsBounded(t *testing.T) {
	for _, text := range []string{
		"", "  \n ", "a\nb\tc\x00d", strings.Repeat("ü", 2000), strings.Repeat("x", 1<<20), "\xff\xfe", strings.Repeat("\xff", 5000),
		strings.Repeat("a", maxReason-1) + "ü",
	} {
		r := reason(errors.New(text))
		assert.That(t, r != "" && len(r) <= maxReason && utf8.ValidString(r) && !strings.ContainsAny(r, "\n\t\x00"),
			"reason of %.20q… (%d bytes) is %.40q… (%d bytes)", text, len(text), r, len(r))
	}
}
