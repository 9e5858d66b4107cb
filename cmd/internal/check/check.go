// Package check judges measured values by bounds, for monitoring. It has the levels of Nagios, and
// prints the forms of Nagios and Prometheus.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// The levels are the exit codes of those of Nagios plugins.
const (
	OK = iota
	Warning
	Critical
	Unknown
)

// NoBound is the text of a finding without a reason.
const NoBound = "no bound is reached"

// Names are those of the levels.
var Names = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// A Finding is the result of a check.
type Finding struct {
	Subject string  `json:"subject"`
	Name    string  `json:"name,omitempty"` // of the subject
	Level   int     `json:"level"`          // the exit code
	Status  string  `json:"status"`
	Text    string  `json:"text"`
	Values  []Value `json:"values"`
}

// A Value is one measured value with its bounds; -1 means no bound.
type Value struct {
	Name     string `json:"name"`
	Value    int64  `json:"value"`
	Warning  int64  `json:"warning"`
	Critical int64  `json:"critical"`
}

// A Bound has the flags of one measured value.
type Bound struct {
	Name              string
	Unit              string // of the value in texts; empty for a number of things
	Below             bool   // small values are bad
	Warning, Critical int64
}

// Register adds the flags.
func (b *Bound) Register(c *cobra.Command, what string) {
	from := " from `N` " + what + " on"
	if b.Below {
		from = " at `N` " + what + " or less"
	}
	c.Flags().Int64Var(&b.Warning, b.Name+"-warn", -1, "warn"+from+" (default: never)")
	c.Flags().Int64Var(&b.Critical, b.Name+"-crit", -1, "critical"+from+" (default: never)")
	for _, name := range []string{"-warn", "-crit"} {
		c.Flags().Lookup(b.Name + name).DefValue = "0" // the text has it
	}
}

// RegisterTime adds the flags of a time, whose value is in seconds.
func (b *Bound) RegisterTime(c *cobra.Command, what string) {
	b.Warning, b.Critical = -1, -1
	c.Flags().Var((*seconds)(&b.Warning), b.Name+"-warn", "warn if "+what+" is at least this `time` old")
	c.Flags().Var((*seconds)(&b.Critical), b.Name+"-crit", "critical if "+what+" is at least this `time` old")
}

// seconds is the flag of a time in whole seconds; -1 means that it is not given.
type seconds int64

// Type is the name of the value in the help.
func (s *seconds) Type() string { return "time" }

// String returns the value.
func (s *seconds) String() string {
	if *s < 0 {
		return ""
	}
	return (time.Duration(*s) * time.Second).String()
}

// Set reads the value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return errors.New("it is a time of at least 1s, as in 5m")
	}
	*s = seconds(d / time.Second)
	return nil
}

// Judge adds a value to a finding.
func (b *Bound) Judge(f *Finding, value int64) {
	f.Values = append(f.Values, Value{b.Name, value, b.Warning, b.Critical})
	level, mark := OK, int64(0)
	reached := func(mark int64) bool { return mark >= 0 && (value == mark || value < mark == b.Below) }
	switch {
	case reached(b.Critical):
		level, mark = Critical, b.Critical
	case reached(b.Warning):
		level, mark = Warning, b.Warning
	}
	if level > OK {
		f.Raise(level, fmt.Sprintf("%s is %d%s, the bound is %d%[3]s", b.Name, value, b.Unit, mark))
	}
}

// Raise makes a finding at least as bad as a level, with its reason.
func (f *Finding) Raise(level int, reason string) {
	f.Level = max(f.Level, level)
	if f.Text != "" {
		f.Text += "; "
	}
	f.Text += reason
}

// Series are the values as Prometheus reads them from a file of the node exporter.
func (f *Finding) Series(subject, name string) string {
	var b strings.Builder
	labels := fmt.Sprintf("{subject=%q,name=%q}", subject, name)
	fmt.Fprintf(&b, "# HELP tidegate_check_level Result of a check: 0 OK, 1 warning, 2 critical, 3 unknown.\n# TYPE tidegate_check_level gauge\ntidegate_check_level%s %d\n", labels, f.Level)
	for _, v := range f.Values {
		name := "tidegate_check_" + strings.ReplaceAll(v.Name, "-", "_")
		fmt.Fprintf(&b, "# HELP %s A value of a check.\n# TYPE %[1]s gauge\n%[1]s%[2]s %[3]d\n", name, labels, v.Value)
	}
	return b.String()
}

// Line is the line of Nagios: the level, the reasons and the values.
func (f *Finding) Line(subject string) string {
	var perf []string
	for _, v := range f.Values {
		edge := func(n int64) string {
			if n < 0 {
				return ""
			}
			return fmt.Sprint(n)
		}
		perf = append(perf, fmt.Sprintf("%s=%d;%s;%s", v.Name, v.Value, edge(v.Warning), edge(v.Critical)))
	}
	line := fmt.Sprintf("TIDEGATE %s - %s: %s", f.Status, subject, cmp.Or(output.Safe(f.Text), NoBound))
	if len(perf) > 0 {
		line += " | " + strings.Join(perf, " ")
	}
	return line
}
