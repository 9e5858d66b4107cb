package backoff

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

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
