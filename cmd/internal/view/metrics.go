package view

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Metric is one series of Prometheus' text format with its value.
type Metric struct {
	Series string `json:"series"` // name and labels
	Value  string `json:"value"`  // a text, because +Inf and NaN are no numbers in JSON
}

// Metrics returns the series of a text whose names or labels match a regular expression; empty
// matches all.
func Metrics(text, match string) ([]Metric, error) {
	matches, err := regexp.Compile(match)
	if err != nil {
		return nil, fmt.Errorf("--match is %q: %w", match, err)
	}
	out := []Metric{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") || !matches.MatchString(line[:at]) {
			continue
		}
		out = append(out, Metric{line[:at], line[at+1:]})
	}
	return out, nil
}

// Number is the value as a number, if it is one.
func (m Metric) Number() any {
	if n, err := strconv.ParseFloat(m.Value, 64); err == nil && n == float64(int64(n)) {
		return int64(n)
	}
	return m.Value
}
