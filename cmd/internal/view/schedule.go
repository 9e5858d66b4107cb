package view

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Redelivery has the settings that decide when a failing message is delivered.
type Redelivery struct {
	MaxAttempts int                             // negative means no maximum
	Wait        func(attempt int) time.Duration // after the failed attempt
	Steps       int                             // of the retry schedule; the last one repeats
	FIFO        bool                            // successors of the message group wait
	Exhausted   string                          // the fate after the last attempt
	Handler     time.Duration                   // of each attempt
	Lease       time.Duration                   // 0 means not known
	Retention   time.Duration                   // of the topic; 0 means none or not known
}

// A Schedule lists the deliveries of a message whose handler always fails.
type Schedule struct {
	Attempts []ScheduledAttempt `json:"attempts"`
	End      string             `json:"end"`
	Findings []string           `json:"findings"` // settings that are probably wrong
}

// A ScheduledAttempt is one delivery.
type ScheduledAttempt struct {
	Attempt int    `json:"attempt"`
	Wait    string `json:"wait"`  // after the failed attempt before
	After   string `json:"after"` // since the begin of the first one

	wait, after time.Duration
}

// endless is the number of attempts that are listed if there is no maximum.
const endless = 20

// ScheduleOf lists the attempts and judges them.
func ScheduleOf(r Redelivery) Schedule {
	n := r.MaxAttempts
	if n < 0 {
		n = endless
	}
	s := Schedule{Attempts: []ScheduledAttempt{}, Findings: []string{}}
	var begin time.Duration
	for attempt := 1; attempt <= n; attempt++ {
		a := ScheduledAttempt{Attempt: attempt}
		if attempt > 1 {
			a.wait = r.Wait(attempt - 1)
			begin += r.Handler + a.wait
		}
		a.after = begin
		a.Wait, a.After = a.wait.String(), a.after.String()
		s.Attempts = append(s.Attempts, a)
	}
	end := begin + r.Handler
	if r.MaxAttempts < 0 {
		s.End = fmt.Sprintf("no maximum: it is retried every %s", output.Duration(r.Wait(n)))
	} else {
		s.End = fmt.Sprintf("%s after %s, %s after the begin of the first one", r.Exhausted, output.Count(int64(n), "attempt"), output.Duration(end))
	}
	s.judge(r, end)
	return s
}

// judge adds the findings.
func (s *Schedule) judge(r Redelivery, end time.Duration) {
	find := func(format string, args ...any) { s.Findings = append(s.Findings, fmt.Sprintf(format, args...)) }
	n := len(s.Attempts)
	if n == 1 {
		find("max_attempts is 1: a message that fails once is not retried")
	}
	if r.MaxAttempts > 0 && !r.FIFO && r.Steps >= n && n > 1 {
		find("the retry schedule has %d waits, and %s use %d of them", r.Steps, output.Count(int64(n), "attempt"), n-1)
	}
	if r.Retention > 0 {
		for _, a := range s.Attempts {
			if a.after > r.Retention {
				find("attempt %d comes %s after the first, and the topic keeps messages for %s", a.Attempt, output.Duration(a.after), output.Duration(r.Retention))
				break
			}
		}
	}
	if r.Lease > 0 && r.Handler > r.Lease {
		find("the handler takes %s and the lease ends after %s: a consumer that does not extend the lease receives the message twice at the same time",
			output.Duration(r.Handler), output.Duration(r.Lease))
	}
	if r.FIFO && n > 1 {
		find("the successors in the message group wait for up to %s", output.Duration(end))
	}
	if r.MaxAttempts < 0 && r.FIFO {
		find("a message that always fails stops its message group without end")
	}
}

// ScheduleColumns are the columns of a schedule.
var ScheduleColumns = []output.Column[ScheduledAttempt]{
	{Name: "ATTEMPT", Cell: func(a ScheduledAttempt) any { return a.Attempt }},
	{Name: "WAIT", Cell: func(a ScheduledAttempt) any { return a.wait }},
	{Name: "AFTER", Cell: func(a ScheduledAttempt) any { return a.after }},
}
