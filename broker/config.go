package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// Bounds and defaults of settings.
const (
	DefaultQueues            = 8
	MaxQueues                = 1024
	DefaultMaxAttempts       = 17 // one delivery and 16 retries (RocketMQ: consumption retry)
	DefaultFIFORetryInterval = 3 * time.Second
	// ResumePercent of a backlog limit is where a throttle ends.
	ResumePercent = 80
)

// maxDuration bounds the durations of settings: a time that is as far ahead, or ago, must fit a
// stored one.
const maxDuration = 100 * 365 * 24 * time.Hour

// atMost returns what is wrong with a duration of a setting that is above maxDuration.
func atMost[D ~int64](field string, d D) error {
	if time.Duration(d) <= maxDuration {
		return nil
	}
	return fmt.Errorf("%s is %v: give at most %v", field, time.Duration(d), maxDuration)
}

// minAge is the smallest limit of an age.
const minAge = Duration(100 * time.Millisecond)

// A Limit bounds a backlog: what a consumer group has not consumed yet, be it
// ready, in flight or waiting for a retry. A topic's counts the messages, and bytes, that wait for
// their delivery time too. Zero fields do not bound.
type Limit struct {
	Messages int64 `json:"messages,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"` // of bodies

	// Age is the maximum age of the oldest unconsumed message. The broker reads it up to ten times
	// a second while messages are sent.
	Age Duration `json:"age,omitempty"`
}

func (l Limit) validate(field string) error {
	var errs []error
	if l.Messages < 0 || l.Bytes < 0 {
		errs = append(errs, fmt.Errorf("%s is %d messages, %d bytes: neither may be negative; 0 is no limit", field, l.Messages, l.Bytes))
	}
	if l.Age != 0 && l.Age < minAge {
		errs = append(errs, fmt.Errorf("%s.age is %v: give %v or more; 0 is no limit", field, time.Duration(l.Age), time.Duration(minAge)))
	}
	errs = append(errs, atMost(field+".age", l.Age))
	return errors.Join(errs...)
}

func badConfig(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &tidegate.Error{Op: op, Subject: name, Code: tidegate.CodeBadRequest, Err: err}
}

// A Duration is a time.Duration that JSON writes as "1m30s" and reads from
// such a text. In settings it is at most 876 000 h, 100 years.
type Duration time.Duration

// MarshalJSON returns the quoted text of d; "-1s" for all that is negative,
// which stands for none or for ever.
func (d Duration) MarshalJSON() ([]byte, error) {
	if d < 0 {
		return []byte(`"-1s"`), nil
	}
	return json.Marshal(time.Duration(d).String())
}

// UnmarshalJSON reads a quoted duration such as "1m30s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration: give a text such as \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration: give a text such as \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}
