package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

// Effective has the values in effect for a message, each with its source as a text for people. The
// source is a policy, such as `PushOptions.Policies[2] (tag "invoice")`, or "Subscription.Retry",
// "server: settings of the group" or "default".
type Effective struct {
	Retry     backoff.Policy // the retry schedule; delays above 12 h mean 12 h
	RetryFrom string

	// MaxAttempts is the number of deliveries, including the first. It is at most the server's
	// maximum. Zero means that there is no maximum, or that a server without features, such as
	// RocketMQ, has not announced one.
	MaxAttempts     int
	MaxAttemptsFrom string

	// Exhausted is the end of a message whose delivery number MaxAttempts has failed. A FIFO group
	// of a tidegate broker may park or block the message group instead, as its on_exhausted sets.
	Exhausted     Exhaustion
	ExhaustedFrom string

	// Findings are sentences about settings without effect, for example a MaxAttempts above the
	// server's. Each begins with the name of a field.
	Findings []string
}

// previewed is the number of retries in a preview if there is no maximum.
const previewed = 10

// Preview returns the retries of a message whose handler always fails: a stage for each delivery
// after the first one, or the first ten if there is no maximum of attempts. The delays count from
// the end of the handler. They do not include the waits for a free handler.
func (e Effective) Preview() backoff.Schedule {
	return backoff.Preview(bounded{e.Retry}, retriesOf(e.MaxAttempts))
}

// retriesOf returns the number of retries in a preview.
func retriesOf(attempts int) int {
	if attempts == 0 {
		return previewed
	}
	return attempts - 1
}

// bounded is a schedule with delays that servers accept.
type bounded struct{ backoff.Policy }

// Range returns the bounds of a delay, see [backoff.Policy].
func (b bounded) Range(n int) (lo, hi time.Duration) {
	if p, ok := b.Policy.(interface {
		Range(n int) (lo, hi time.Duration)
	}); ok {
		lo, hi = p.Range(n)
	} else {
		lo = b.Delay(n)
		hi = lo
	}
	return min(lo, verdict.MaxDelay), min(hi, verdict.MaxDelay)
}

// String returns a line for each value with its source, and a line for each finding.
func (e Effective) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "retries: %s (%s)\n", firstDelays(e.Preview()), e.RetryFrom)
	if e.MaxAttempts > 0 {
		fmt.Fprintf(&b, "attempts: %d (%s)\n", e.MaxAttempts, e.MaxAttemptsFrom)
	} else {
		fmt.Fprintf(&b, "attempts: no maximum known (%s)\n", e.MaxAttemptsFrom)
	}
	fmt.Fprintf(&b, "exhausted: %v (%s)", e.Exhausted, e.ExhaustedFrom)
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\nnote: %s", f)
	}
	return b.String()
}

// shown is the number of delays in the text of an [Effective].
const shown = 4

// firstDelays returns the first delays in words, such as "after 10s, 30s, 1m0s, …".
func firstDelays(s backoff.Schedule) string {
	if len(s) == 0 {
		return "none"
	}
	var parts []string
	for _, st := range s[:min(len(s), shown)] {
		text := st.Lo.String()
		if st.Hi != st.Lo {
			text += " to " + st.Hi.String()
		}
		parts = append(parts, text)
	}
	if len(s) > shown {
		parts = append(parts, "…")
	}
	return "after " + strings.Join(parts, ", ")
}
