package view

import (
	"slices"
	"testing"
)

func TestMetrics(t *testing.T) {
	text := "# HELP tidegate_ready 1 while\n# TYPE tidegate_ready gauge\ntidegate_ready 1\n" +
		"tidegate_bucket{topic=\"a b\",le=\"+Inf\"} 12\ntidegate_seconds_sum 1.5e-05\n\n"
	for match, want := range map[string][]Metric{
		"":        {{"tidegate_ready", "1"}, {`tidegate_bucket{topic="a b",le="+Inf"}`, "12"}, {"tidegate_seconds_sum", "1.5e-05"}},
		`topic=`:  {{`tidegate_bucket{topic="a b",le="+Inf"}`, "12"}},
		`_sum$`:   {{"tidegate_seconds_sum", "1.5e-05"}},
		`nothing`: {},
	} {
		if got, err := Metrics(text, match); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", match, got, err, want)
		}
	}
	if _, err := Metrics(text, "("); err == nil {
		t.Error("an invalid expression is accepted")
	}
	if n := (Metric{Value: "1.2345e+04"}).Number(); n != int64(12345) {
		t.Errorf("the number is %v", n)
	}
}
