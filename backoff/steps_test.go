package backoff

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestStepsDelay(t *testing.T) {
	ladder := Steps{time.Second, time.Minute, time.Hour}
	for n, want := range map[int]time.Duration{
		math.MinInt: time.Second, -1: time.Second, 0: time.Second, 1: time.Minute, 2: time.Hour, 3: time.Hour,
		math.MaxInt: time.Hour,
	} {
		lo, hi := ladder.Range(n)
		d := ladder.Delay(n)
		assert.That(t, d == want && lo == want && hi == want, "n %d: Delay = %v, Range = %v, %v, want %v", n, d, lo, hi, want)
	}
	assert.Equal(t, "without steps", (Steps{}).Delay(5), 0)
	assert.Equal(t, "negative step", (Steps{-time.Second}).Delay(0), 0)
}

// RocketMQ: consumption retry: "Unordered messages (messages that are not ordered messages):
// incremental"
// RocketMQ: consumption retry: "If the number of retries exceeds 16, the interval of each
// subsequent retry is 2 hours"
func TestRetryLadderIsRocketMQs(t *testing.T) {
	const want = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
	assert.Equal(t, "RetryLadder =", RetryLadder().String(), want)
	assert.Equal(t, "the 17th retry comes after", RetryLadder().Delay(16), 2*time.Hour)
	RetryLadder()[0] = 0
	d := RetryLadder().Delay(0)
	assert.That(t, d == 10*time.Second, "a caller changed the ladder of the others: the first delay is %v", d)
}

func TestParseSteps(t *testing.T) {
	for text, want := range map[string]Steps{
		"1s 5s 10s 30s 1m 2m": {time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute},
		"\t500ms  1h30m\n":    {500 * time.Millisecond, 90 * time.Minute},
		"0 0s":                {0, 0},
		" ":                   nil,
	} {
		got, err := parseSteps(text)
		assert.That(t, err == nil && slices.Equal(got, want), "parseSteps(%q) = %v, %v, want %v", text, got, err, want)
	}

	_, err := parseSteps("1s 5 1m -2s 1d")
	assert.MustThat(t, err != nil, "no error")
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{`step 2 of 5, "5", is not a duration`, `step 4 of 5, "-2s", is negative`, `step 5 of 5, "1d", is not a duration`} {
		assert.That(t, i < len(lines) && strings.Contains(lines[i], want), "error\n%v\nhas no line %d with %q", err, i+1, want)
	}
}

func TestStepsString(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m", 70 * time.Minute: "1h10m",
		time.Hour + time.Second: "1h0m1s", 500 * time.Millisecond: "500ms", 0: "0s", 100 * time.Hour: "100h",
		time.Minute + 10*time.Second: "1m10s",
	} {
		got := (Steps{d}).String()
		assert.That(t, got == want, "%v prints as %q, want %q", d, got, want)
	}
}

func TestStepsInJSON(t *testing.T) {
	type config struct{ Retry, None Steps }
	text, err := json.Marshal(config{Retry: Steps{time.Second, time.Minute}})
	want := `{"Retry":"1s 1m","None":""}`
	assert.That(t, err == nil && string(text) == want, "Marshal = %s, %v, want %s", text, err, want)
	var c config
	if err := json.Unmarshal(text, &c); err != nil || c.Retry.String() != "1s 1m" || len(c.None) != 0 {
		t.Errorf("Unmarshal = %+v, %v", c, err)
	}
	if err := c.Retry.UnmarshalText([]byte("2s x")); err == nil || c.Retry.String() != "1s 1m" {
		t.Errorf("after a failed UnmarshalText (%v) the ladder is %v, want it unchanged", err, c.Retry)
	}
	if text, err := (Steps{0, -1}).MarshalText(); err == nil || !strings.Contains(err.Error(), "step 2 of 2 is -1ns") {
		t.Errorf("MarshalText of a negative step = %q, %v", text, err)
	}
}

// FuzzStepsRoundTrip: every duration of 0 or more is printed in a form without
// blanks that is read back exactly, and no longer than time's own.
func FuzzStepsRoundTrip(f *testing.F) {
	for _, d := range []int64{0, 1, 999, 1001, 1e9, 60e9, 3600e9, 3660e9, 5400e9, 36000e9, 3600e9 + 1, math.MaxInt64} {
		f.Add(d, d/7)
	}
	f.Fuzz(func(t *testing.T, a, b int64) {
		in := Steps{time.Duration(a & math.MaxInt64), time.Duration(b & math.MaxInt64)}
		out, err := parseSteps(in.String())
		assert.That(t, err == nil && slices.Equal(in, out), "%d prints as %q and is read back as %d, %v", in, in, out, err)
		if len(short(in[0])) > len(in[0].String()) {
			t.Errorf("%q is longer than %q", short(in[0]), in[0])
		}
	})
}

// FuzzParseSteps: the result is legal and has a step for every word. Printing and reading it again
// gives the same steps.
func FuzzParseSteps(f *testing.F) {
	f.Add("1s 5s 10s 30s 1m 2m")
	f.Add("1.5h -0s +3us 9223372036854775807ns 9223372036854775808ns")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSteps(text)
		if err != nil {
			assert.That(t, s == nil, "steps %v beside error %v", s, err)
			return
		}
		assert.That(t, len(s) == len(strings.Fields(text)) && s.Validate() == nil, "%q is read as %v (%v)", text, s, s.Validate())
		if again, err := parseSteps(s.String()); err != nil || !slices.Equal(s, again) {
			t.Errorf("%q is read as %v, which is read as %v, %v", text, s, again, err)
		}
	})
}

// TestRetryLadderTakes4h46m compares the total with a sum by hand (RocketMQ: consumption retry):
// 10 + 30 s, 1 to 10 min, 20 + 30 min, 1 + 2 h are 17 140 s, 4 h 45 min 40 s.
func TestRetryLadderTakes4h46m(t *testing.T) {
	s := Preview(RetryLadder(), 16)
	last := s[len(s)-1]
	if want := 17140 * time.Second; last.Retry != 16 || last.TotalLo != want || last.TotalHi != want {
		t.Errorf("after retry %d the totals are %v and %v, want %v after 16", last.Retry, last.TotalLo, last.TotalHi, want)
	}
	text := s.String()
	assert.That(t, strings.HasSuffix(text, "\n16 retries in 4h46m"), "the table does not end with 16 retries in 4h46m:\n%s", text)
}

func TestPreviewTotals(t *testing.T) {
	s := Preview(Default(), 30)
	var lo, hi time.Duration
	for i, st := range s {
		l, h := Default().Range(i)
		lo, hi = lo+l, hi+h
		want := (Stage{Retry: i + 1, Lo: l, Hi: h, TotalLo: lo, TotalHi: hi})
		assert.That(t, st == want, "stage %d is %+v, want %+v", i, st, want)
	}
	assert.Equal(t, "stages", len(s), 30)
}

func TestPreviewEdges(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt} {
		s := Preview(RetryLadder(), n)
		assert.That(t, len(s) == 0 && s.String() == "no retries", "Preview of %d retries is %v", n, s)
	}
	text := Preview(Steps{time.Second}, 1).String()
	assert.That(t, strings.HasSuffix(text, "\n1 retry in 1s"), "one retry:\n%s", text)
	long := Preview(Steps{math.MaxInt64 - 1, 1, 1}, 3)
	assert.That(t, long[1].TotalHi == math.MaxInt64 && long[2].TotalHi == math.MaxInt64, "totals overflow: %v", long)
}

func TestScheduleString(t *testing.T) {
	ladder := Steps{1500 * time.Nanosecond, 1234567 * time.Microsecond, 61500 * time.Millisecond, 100*time.Hour + 40*time.Second}
	const want = `retry   after   total
    1   1.5µs   1.5µs
    2   1.23s   1.23s
    3    1m2s    1m3s
    4  100h1m  100h2m
4 retries in 100h2m`
	got := Preview(ladder, 4).String()
	assert.That(t, got == want, "got\n%s\nwant\n%s", got, want)

	const jittered = `retry           after           total
    1   800ms to 1.2s   800ms to 1.2s
    2  1.28s to 1.92s  2.08s to 3.12s
2 retries in 2.08s to 3.12s`
	got = Preview(Default(), 2).String()
	assert.That(t, got == jittered, "got\n%s\nwant\n%s", got, jittered)
}

// every is a policy that does not know its bounds.
type every time.Duration

func (e every) Delay(n int) time.Duration { return time.Duration(e) * time.Duration(n+1) }

func TestRangeOf(t *testing.T) {
	lo, hi := rangeOf(every(time.Second), 2)
	assert.That(t, lo == 3*time.Second && hi == lo, "Range(2) = %v, %v, want 3s twice", lo, hi)
	lo, hi = rangeOf(Default(), 0)
	assert.That(t, lo == 800*time.Millisecond && hi == 1200*time.Millisecond, "Range(0) = %v, %v, want its own 800ms, 1.2s", lo, hi)
}
