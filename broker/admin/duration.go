package admin

import (
	"encoding/json"
	"fmt"
	"time"
)

// A Duration is a time.Duration that is a string in JSON, such as "1m30s".
type Duration time.Duration

// String returns the text.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes the text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON parses the text with time.ParseDuration.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%.50s is not a duration: give a string such as \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}
