package settings

import (
	"encoding/json"
	"fmt"
	"time"
)

// MaxDuration is the maximum of all durations of settings, 876 000 h. A time that far in the future
// or past can still be stored.
const MaxDuration = 100 * 365 * 24 * time.Hour

const maxMilliseconds = Milliseconds(MaxDuration / time.Millisecond)

// atMost returns an error with the field's name if d is above MaxDuration, or nil.
func atMost[D ~int64](field string, d D) error {
	if time.Duration(d) <= MaxDuration {
		return nil
	}
	return fmt.Errorf("%s is %v; give at most %v", field, time.Duration(d), MaxDuration)
}

// A Duration is a time.Duration that is a string in JSON, such as "1m30s". It is at most
// MaxDuration.
type Duration time.Duration

// String returns the text of d, as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON returns the quoted text of d. The text of every negative duration is "-1s", because
// all negative values mean none or never.
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
		return fmt.Errorf("%s is not a duration; give a text such as \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration; give a text such as \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}

// Milliseconds is a number of milliseconds, the unit of Artemis's address settings. In JSON it is
// that number. A quoted duration such as "5s" is also accepted.
type Milliseconds int64

// Duration returns m as a time.Duration.
func (m Milliseconds) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// parseMilliseconds reads a whole number of milliseconds, or a duration such as "5s" or "1m30s". A
// duration with a fraction of a millisecond is an error.
func parseMilliseconds(text string) (Milliseconds, error) {
	var n json.Number
	if err := json.Unmarshal([]byte(text), &n); err == nil {
		if v, err := n.Int64(); err == nil {
			return Milliseconds(v), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q is not a time; give whole milliseconds such as 5000, or a duration such as \"5s\"", text)
	}
	return Milliseconds(d / time.Millisecond), nil
}

// UnmarshalJSON reads a number of milliseconds or a quoted duration.
func (m *Milliseconds) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	v, err := parseMilliseconds(text)
	if err != nil {
		return err
	}
	*m = v
	return nil
}
