package wire_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

func TestVerdictHeaders(t *testing.T) {
	const reason, late, repeat, ladder, snooze = "x-tidegate-reason", "x-tidegate-reconsume", "true", "x-tidegate-ladder", "x-tidegate-snooze"
	for _, tt := range []struct {
		verdict transport.Verdict
		headers []string
	}{
		{transport.Verdict{Kind: transport.Retry, Delay: time.Second, Reason: "out of stock: Müller"}, []string{reason, "out%20of%20stock:%20M%C3%BCller"}},
		{transport.Verdict{Kind: transport.Retry}, []string{reason, ""}},
		{transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule}, []string{reason, "", ladder, repeat}},
		{transport.Verdict{Kind: transport.Snooze, Delay: time.Minute}, []string{snooze, repeat}},
		{transport.Verdict{Kind: transport.RetryTopic, Delay: time.Minute}, []string{late, "delay"}},
		{transport.Verdict{Kind: transport.RetryTopic, Level: 18}, []string{late, "level=18"}},
		{transport.Verdict{Kind: transport.RetryTopic}, []string{late, "next"}},
		{transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, []string{late, "negative"}},
	} {
		got := wire.VerdictHeaders(tt.verdict)
		if !slices.Equal(got, tt.headers) {
			t.Errorf("%+v: %q, want %q", tt.verdict, got, tt.headers)
		}
		delay := tt.verdict.Delay
		if delay == transport.BySchedule {
			delay = time.Minute // for servers without schedules
		}
		if v, ok, err := wire.ChangeVerdict(header(got), delay, tt.verdict.Kind == transport.Retry); err != nil || !ok || v != tt.verdict {
			t.Errorf("%q is read as %+v, %t, %v; want %+v", got, v, ok, err, tt.verdict)
		}
	}
	if got := wire.VerdictHeaders(transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); !slices.Equal(got, []string{reason, "no%20use"}) {
		t.Errorf("a dead letter has %q", got)
	}
	if got := wire.VerdictHeaders(transport.Verdict{}); got != nil {
		t.Errorf("a release has %q", got)
	}
	for kind := transport.Retry; !strings.HasPrefix(kind.String(), "VerdictKind("); kind <<= 1 {
		if got := wire.VerdictHeaders(transport.Verdict{Kind: kind}); len(got) == 0 { // a server would only extend the lease
			t.Errorf("%v has no header", kind)
		}
	}
}

func header(pairs []string) func(string) string {
	return func(name string) string {
		if i := slices.Index(pairs, name); i >= 0 {
			return pairs[i+1]
		}
		return ""
	}
}

func TestChangeWithoutAVerdict(t *testing.T) {
	if v, ok, err := wire.ChangeVerdict(header(nil), time.Minute, false); ok || err != nil || v.Delay != time.Minute {
		t.Errorf("an extension is read as %+v, %t, %v", v, ok, err)
	}
	if v, _, _ := wire.ChangeVerdict(header(nil), -time.Hour, true); v.Delay >= 0 || v.Delay == transport.BySchedule {
		t.Errorf("a negative delay became %v", v.Delay)
	}
	for _, value := range []string{"later", "level=", "level=0", "level=x", "delay"} {
		if v, _, err := wire.ChangeVerdict(header([]string{wire.HeaderReconsume, value}), 0, true); err == nil || !strings.Contains(err.Error(), value) {
			t.Errorf("%s is read as %+v, %v", value, v, err)
		}
	}
}

func TestReasons(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a b%\n": "a%20b%25%0A", "é": "%C3%A9",
		strings.Repeat("x", 2000):                         strings.Repeat("x", wire.MaxReason),
		strings.Repeat("x", wire.MaxReason-5) + "é" + "y": strings.Repeat("x", wire.MaxReason-5), // a rune is not split
	} {
		got := wire.VerdictHeaders(transport.Verdict{Kind: transport.DeadLetter, Reason: in})[1]
		if got != want {
			t.Errorf("%.20q: %.40q, want %.40q", in, got, want)
		}
		if back, err := url.PathUnescape(got); err != nil || !strings.HasPrefix(in, back) {
			t.Errorf("%.20q is decoded to %q, %v", in, back, err)
		}
	}
	for in, want := range map[string]string{
		"plain": "plain", "a%20b%0A": "a b\n", "100%": "100%", "%FF": "\uFFFD", "": "",
		strings.Repeat("x", 2000):           strings.Repeat("x", 1024),
		strings.Repeat("%C3%BC", 600) + "z": strings.Repeat("ü", 512),
	} {
		if got := wire.VerdictReason(in); got != want {
			t.Errorf("VerdictReason(%.20q) = %.40q; want %.40q", in, got, want)
		}
	}
}

func TestResults(t *testing.T) {
	for _, tt := range []struct {
		result transport.RetryResult
		text   string
	}{
		{transport.RetryResult{}, ""},
		{transport.RetryResult{Fate: transport.FateAgain}, "0"},
		{transport.RetryResult{Fate: transport.FateAgain, Delay: 1500 * time.Millisecond}, "1500"},
		{transport.RetryResult{Fate: transport.FateDeadLetter}, "dead-letter"},
		{transport.RetryResult{Fate: transport.FateParked}, "parked"},
	} {
		if got := wire.FormatResult(tt.result); got != tt.text {
			t.Errorf("%+v: %q, want %q", tt.result, got, tt.text)
		}
		if got := wire.ParseResult([]string{"7", tt.text}); got != tt.result { // the last value counts
			t.Errorf("%q is read as %+v, want %+v", tt.text, got, tt.result)
		}
	}
	if got := wire.FormatResult(transport.RetryResult{Fate: transport.FateAgain, Delay: 1}); got != "1" {
		t.Errorf("a nanosecond is %q ms; a retry is never early", got)
	}
	for _, values := range [][]string{nil, {"-1"}, {"9223372036855"}, {"soon"}} { // the third: ms that are no time.Duration
		if got := wire.ParseResult(values); got != (transport.RetryResult{}) {
			t.Errorf("%q is read as %+v", values, got)
		}
	}
}
