package output

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a number of bytes. A table shows it as 1.2 GiB.
type Bytes int64

// String returns the number with a binary unit and at most three digits before the point.
func (b Bytes) String() string {
	if b < 1024 && b > -1024 {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	v, units := float64(b), "KMGTPE"
	for i := range units {
		v /= 1024
		if math.Abs(v) < 1023.95 || i == len(units)-1 {
			return fmt.Sprintf("%.1f %ciB", v, units[i])
		}
	}
	return ""
}

// Number returns an integer in groups of three digits: 12 345.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

// Duration returns the two largest units of a duration: 2h 03m, 4m 12s, 1.5s, 20ms.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	d = d.Round(time.Second)
	days, h, m, s := d/(24*time.Hour), d/time.Hour%24, d/time.Minute%60, d/time.Second%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %02dh", days, h)
	case h > 0:
		return fmt.Sprintf("%dh %02dm", h, m)
	case m > 0:
		return fmt.Sprintf("%dm %02ds", m, s)
	}
	return fmt.Sprintf("%ds", s)
}

// A TimeStyle is a form of times in tables.
type TimeStyle string

// The forms of times.
const (
	Relative TimeStyle = "relative" // 3m 10s ago
	Local    TimeStyle = "local"    // RFC 3339 in the zone of the machine
	UTC      TimeStyle = "utc"      // RFC 3339 in UTC
)

// Time returns a time in a form, seen from now. The zero time is "-".
func (s TimeStyle) Time(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case s == Local:
		return t.Local().Format(time.RFC3339)
	case s == UTC:
		return t.UTC().Format(time.RFC3339)
	case t.After(now.Add(time.Second)):
		return "in " + Duration(t.Sub(now))
	}
	return Duration(max(0, now.Sub(t))) + " ago"
}

// ParseTime reads a time of the command line: RFC 3339, a duration before now (-15m) or after now
// (10m), or Unix seconds (@1784887200).
func ParseTime(text string, now time.Time) (time.Time, error) {
	if seconds, ok := strings.CutPrefix(text, "@"); ok {
		if n, err := strconv.ParseInt(seconds, 10, 64); err == nil {
			return time.Unix(n, 0), nil
		}
	} else if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	} else if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: give RFC 3339 (2026-11-23T14:00:00Z), a duration from now (-15m), or Unix seconds (@1784887200)", text)
}
