package backoff

import (
	"encoding"
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	_ Policy                   = Steps{}
	_ ranged                   = Steps{}
	_ encoding.TextMarshaler   = Steps{}
	_ encoding.TextUnmarshaler = (*Steps)(nil)
)

// Steps is a list of fixed delays. The first step is the delay before the first retry; the last
// step repeats without end. An empty list means no delay.
//
// The text form is that of RocketMQ's messageDelayLevel, "1s 5s 10s 30s 1m 2m"; UnmarshalText
// reads it. Several goroutines may share a list if none changes it.
type Steps []time.Duration

// RetryLadder returns a new copy of RocketMQ's retry schedule for unordered messages (RocketMQ:
// consumption retry): 16 delays from 10 s to 2 h. All later delays are 2 h.
func RetryLadder() Steps {
	return Steps{
		10 * time.Second, 30 * time.Second, 1 * time.Minute, 2 * time.Minute,
		3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute,
		7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
		20 * time.Minute, 30 * time.Minute, 1 * time.Hour, 2 * time.Hour,
	}
}

// Delay returns step n, counted from 0, or the last step if n is larger. A negative n means 0. A
// negative step, which Validate rejects, means 0.
func (s Steps) Delay(n int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return max(s[min(max(n, 0), len(s)-1)], 0)
}

// Range returns Delay(n) twice, because the steps have no jitter.
func (s Steps) Range(n int) (lo, hi time.Duration) {
	d := s.Delay(n)
	return d, d
}

// Validate returns an error that lists every negative step by its position, counted from 1, or nil.
// Steps may decrease, and there may be none.
func (s Steps) Validate() error {
	var errs []error
	for i, d := range s {
		if d < 0 {
			errs = append(errs, fmt.Errorf("backoff: step %d of %d is %v; it must be 0s or more", i+1, len(s), d))
		}
	}
	return errors.Join(errs...)
}

// parseSteps parses the text form.
func parseSteps(text string) (Steps, error) {
	var s Steps
	var errs []error
	words := strings.Fields(text)
	for i, word := range words {
		d, err := time.ParseDuration(word)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("backoff: step %d of %d, %q, is not a duration; give one such as 500ms, 10s or 1h30m",
				i+1, len(words), word))
		case d < 0:
			errs = append(errs, fmt.Errorf("backoff: step %d of %d, %q, is negative; it must be 0s or more",
				i+1, len(words), word))
		default:
			s = append(s, d)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the steps in the form that UnmarshalText reads: "10s 1m 1h30m".
func (s Steps) String() string {
	words := make([]string, len(s))
	for i, d := range s {
		words[i] = short(d)
	}
	return strings.Join(words, " ")
}

// MarshalText returns String, or the error of Validate.
func (s Steps) MarshalText() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return []byte(s.String()), nil
}

// UnmarshalText sets s to the durations of text, such as "500ms 1m 1h30m": each in the form of
// [time.ParseDuration], separated by white space. Text without words means no steps. The error
// lists every word that is not a duration, or is negative, with its position, counted from 1; s is
// then unchanged.
func (s *Steps) UnmarshalText(text []byte) error {
	parsed, err := parseSteps(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// short returns d as its String method does, but without the minutes and
// seconds that are 0: 1m rather than 1m0s, 1h rather than 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
