package backoff

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestRetryLadderTakes4h46m compares the total with a sum by hand (RocketMQ: consumption retry):
// 10 + 30 s, 1 to 10 min, 20 + 30 min, 1 + 2 h are 17 140 s, 4 h 45 min 40 s.
func TestRetryLadderTakes4h46m(t *testing.T) {
	s := Preview(RetryLadder(), 16)
	last := s[len(s)-1]
	if want := 17140 * time.Second; last.Retry != 16 || last.TotalLo != want || last.TotalHi != want {
		t.Errorf("after retry %d the totals are %v and %v, want %v after 16", last.Retry, last.TotalLo, last.TotalHi, want)
	}
	if text := s.String(); !strings.HasSuffix(text, "\n16 retries in 4h46m") {
		t.Errorf("the table does not end with 16 retries in 4h46m:\n%s", text)
	}
}

func TestPreviewTotals(t *testing.T) {
	s := Preview(Default(), 30)
	var lo, hi time.Duration
	for i, st := range s {
		l, h := Default().Range(i)
		lo, hi = lo+l, hi+h
		if want := (Stage{Retry: i + 1, Lo: l, Hi: h, TotalLo: lo, TotalHi: hi}); st != want {
			t.Errorf("stage %d is %+v, want %+v", i, st, want)
		}
	}
	if len(s) != 30 {
		t.Errorf("%d stages, want 30", len(s))
	}
}

func TestPreviewEdges(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt} {
		if s := Preview(RetryLadder(), n); len(s) != 0 || s.String() != "no retries" {
			t.Errorf("Preview of %d retries is %v", n, s)
		}
	}
	if text := Preview(Steps{time.Second}, 1).String(); !strings.HasSuffix(text, "\n1 retry in 1s") {
		t.Errorf("one retry:\n%s", text)
	}
	long := Preview(Steps{math.MaxInt64 - 1, 1, 1}, 3)
	if long[1].TotalHi != math.MaxInt64 || long[2].TotalHi != math.MaxInt64 {
		t.Errorf("totals overflow: %v", long)
	}
}

func TestScheduleString(t *testing.T) {
	ladder := Steps{1500 * time.Nanosecond, 1234567 * time.Microsecond, 61500 * time.Millisecond, 100*time.Hour + 40*time.Second}
	const want = `retry   after   total
    1   1.5µs   1.5µs
    2   1.23s   1.23s
    3    1m2s    1m3s
    4  100h1m  100h2m
4 retries in 100h2m`
	if got := Preview(ladder, 4).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	const jittered = `retry           after           total
    1   800ms to 1.2s   800ms to 1.2s
    2  1.28s to 1.92s  2.08s to 3.12s
2 retries in 2.08s to 3.12s`
	if got := Preview(Default(), 2).String(); got != jittered {
		t.Errorf("got\n%s\nwant\n%s", got, jittered)
	}
}

// every is a policy that does not know its bounds.
type every time.Duration

func (e every) Delay(n int) time.Duration { return time.Duration(e) * time.Duration(n+1) }

func TestRangeOf(t *testing.T) {
	if lo, hi := rangeOf(every(time.Second), 2); lo != 3*time.Second || hi != lo {
		t.Errorf("Range(2) = %v, %v, want 3s twice", lo, hi)
	}
	if lo, hi := rangeOf(Default(), 0); lo != 800*time.Millisecond || hi != 1200*time.Millisecond {
		t.Errorf("Range(0) = %v, %v, want its own 800ms, 1.2s", lo, hi)
	}
}
