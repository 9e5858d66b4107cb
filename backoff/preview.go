package backoff

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// A Stage is one retry of a [Schedule].
type Stage struct {
	// Retry is the number of the retry, 1 for the first.
	Retry int

	// Lo and Hi are the bounds of the delay before the retry.
	Lo, Hi time.Duration

	// TotalLo and TotalHi are the bounds of the sum of all delays up to this one. They do not
	// exceed the largest time.Duration.
	TotalLo, TotalHi time.Duration
}

// A Schedule lists the retries of a policy with their delays.
type Schedule []Stage

// Preview returns the first n retries of p, one Stage each. It returns none if n is 0 or less. The
// bounds of a policy without a method Range are one call of its Delay.
func Preview(p Policy, n int) Schedule {
	var s Schedule
	var totalLo, totalHi time.Duration
	for i := range n {
		lo, hi := rangeOf(p, i)
		totalLo, totalHi = add(totalLo, lo), add(totalHi, hi)
		s = append(s, Stage{Retry: i + 1, Lo: lo, Hi: hi, TotalLo: totalLo, TotalHi: totalHi})
	}
	return s
}

// add returns a+b, neither negative, or the largest Duration if that is less.
func add(a, b time.Duration) time.Duration {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// String returns a table with a line for each retry, its delay and the total, and a last line such
// as "16 retries in 4h46m".
//
// It rounds to minutes from one hour on, to seconds from one minute on, and to hundredths of a
// second from one second on. The stages are exact.
func (s Schedule) String() string {
	if len(s) == 0 {
		return "no retries"
	}
	rows := [][3]string{{"retry", "after", "total"}}
	for _, st := range s {
		rows = append(rows, [3]string{fmt.Sprint(st.Retry), span(st.Lo, st.Hi), span(st.TotalLo, st.TotalHi)})
	}
	var width [3]int
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell)) // µs
		}
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%*s  %*s  %*s\n", width[0], row[0], width[1], row[1], width[2], row[2])
	}
	last := s[len(s)-1]
	noun := "retries"
	if len(s) == 1 {
		noun = "retry"
	}
	fmt.Fprintf(&b, "%d %s in %s", len(s), noun, span(last.TotalLo, last.TotalHi))
	return b.String()
}

// span returns a rounded duration, or two if they still differ when rounded.
func span(lo, hi time.Duration) string {
	a, b := rounded(lo), rounded(hi)
	if a == b {
		return a
	}
	return a + " to " + b
}

func rounded(d time.Duration) string {
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	}
	return short(d)
}
