package server_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/server"
)

// An expression is one PromQL expression of a file in monitoring.
type expression struct {
	where, text string
	tells       string // of an alert: its annotations
}

// dashboard returns the expressions of dashboard.json.
func dashboard(t *testing.T) []expression {
	t.Helper()
	var d struct {
		Title, UID string
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			FieldConfig struct{ Defaults struct{ Unit string } }
			GridPos     struct{ H, W, X, Y int }
			Targets     []struct{ RefID, Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || len(d.Panels) == 0 {
		t.Error("the dashboard has no title, uid or panels")
	}
	var out []expression
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			out = append(out, expression{where: "variable " + v.Name, text: fmt.Sprintf("sum by (%s) (%s)", m[2], m[1])})
		}
	}
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, p := range d.Panels {
		at := [2]int{p.GridPos.X, p.GridPos.Y}
		if ids[p.ID] || places[at] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: its id %d or its place %v is another panel's, or beyond the edge", p.Title, p.ID, at)
		}
		ids[p.ID], places[at] = true, true
		if p.Type == "row" {
			if p.GridPos.W != 24 || p.GridPos.H != 1 {
				t.Errorf("panel %q is a row of %d by %d", p.Title, p.GridPos.W, p.GridPos.H)
			}
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d, %q, has no title, description or target", p.ID, p.Title)
		}
		for _, target := range p.Targets {
			text := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			unit, counts := p.FieldConfig.Defaults.Unit, strings.Contains(text, "rate(") && !strings.Contains(text, "histogram_quantile") && !strings.Contains(text, " / ")
			if perSecond := slices.Contains([]string{"cps", "Bps", "reqps"}, unit); perSecond != counts {
				t.Errorf("panel %q has the unit %s, for %s", p.Title, unit, text)
			}
			out = append(out, expression{where: "panel " + p.Title, text: text})
		}
	}
	return out
}

// alerts returns the expressions of alerts.yml, and checks that each alert has the texts for
// operators.
func alerts(t *testing.T) []expression {
	t.Helper()
	text, err := os.ReadFile("monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	var out []expression
	seen := map[string]bool{}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] || g.Name == "" {
				t.Errorf("alert %q of group %q has no name, or the name of another alert", r.Alert, g.Name)
			}
			seen[r.Alert] = true
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("%s: severity is %q, want critical or warning", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s has no summary or no description", r.Alert)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: for: %v", r.Alert, err)
			}
			out = append(out, expression{where: "alert " + r.Alert, text: r.Expr, tells: fmt.Sprint(r.Annotations)})
		}
	}
	if len(out) == 0 {
		t.Error("there are no alerts")
	}
	return out
}

var (
	quoted     = regexp.MustCompile(`"[^"]*"`)
	matchers   = regexp.MustCompile(`\{[^}]*\}`)
	ranges     = regexp.MustCompile(`\[\d+[smhd]\]`)
	grouping   = regexp.MustCompile(`\b(by|on) \(([^)]*)\)`)
	identifier = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
	labelName  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
)

// operators are the words of an expression beside metrics.
var operators = []string{"sum", "min", "max", "rate", "increase", "histogram_quantile", "and"}

func metricIn(expr string) string { return regexp.MustCompile(`tidegate_\w+`).FindString(expr) }

// parts returns the metrics and the labels that an expression names.
func parts(expr string) (metrics, labels []string) {
	expr = quoted.ReplaceAllString(expr, `""`)
	for _, m := range matchers.FindAllString(expr, -1) {
		for _, l := range labelName.FindAllStringSubmatch(m, -1) {
			labels = append(labels, l[1])
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, identifier.FindAllString(g[2], -1)...)
	}
	expr = grouping.ReplaceAllString(ranges.ReplaceAllString(matchers.ReplaceAllString(expr, ""), ""), "")
	for _, name := range identifier.FindAllString(expr, -1) {
		if !slices.Contains(operators, name) {
			metrics = append(metrics, name)
		}
	}
	return metrics, labels
}

// Every metric and label in the dashboard and the alerts is one that a broker
// in use has, and every metric of ours is in the dashboard.
func TestMonitoring(t *testing.T) {
	var families map[string]*dto.MetricFamily
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		tellStory(t, e)
		scraped(t, e.s) // which is a request over HTTP, counted in the next scrape
		_, families = scraped(t, e.s)
	})
	labelsOf := map[string][]string{} // by the metrics that an expression may have
	for name, f := range families {
		suffixes := []string{""}
		labels := []string{"instance"} // which Prometheus adds
		if f.GetType() == dto.MetricType_HISTOGRAM {
			suffixes = []string{"_bucket", "_sum", "_count"}
			labels = append(labels, "le")
		}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		for _, s := range suffixes {
			labelsOf[name+s] = labels
		}
	}
	shown := map[string]bool{}
	check := func(e expression) (metrics []string) {
		metrics, labels := parts(e.text)
		if len(metrics) == 0 {
			t.Errorf("%s: no metric in %q", e.where, e.text)
		}
		for _, m := range metrics {
			known, ok := labelsOf[m]
			if !ok {
				t.Errorf("%s: a busy broker has no metric %s", e.where, m)
				continue
			}
			for _, l := range labels {
				if !slices.Contains(known, l) {
					t.Errorf("%s: %s has no label %s, only %q", e.where, m, l, known)
				}
			}
		}
		return metrics
	}
	for _, e := range dashboard(t) {
		for _, m := range check(e) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				m = strings.TrimSuffix(m, suffix)
			}
			shown[m] = true
		}
	}
	for _, e := range alerts(t) {
		check(e)
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(e.tells, -1) {
			if m[1] != "instance" && !strings.Contains(e.text, "by (") && !slices.Contains(labelsOf[metricIn(e.text)], m[1]) ||
				strings.Contains(e.text, "by (") && !regexp.MustCompile(`by \([^)]*\b`+m[1]+`\b`).MatchString(e.text) {
				t.Errorf("%s: its annotations name the label %s, which its expression does not have", e.where, m[1])
			}
		}
	}
	for name := range families {
		if strings.HasPrefix(name, "tidegate_") && !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// The alert for a storage that rejects all sends knows every limit that does:
// those that are of no topic and no group.
func TestMonitoringKnowsTheStoragesLimits(t *testing.T) {
	var told map[string]*dto.MetricFamily
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		tellStory(t, e)
		_, told = scraped(t, e.s)
	})
	var want, got []string
	for _, m := range told["tidegate_limit_reached"].GetMetric() {
		limit := m.GetLabel()[0].GetValue()
		if !strings.HasPrefix(limit, "topic_") && !strings.HasPrefix(limit, "group_") && limit != "cold_reads" { // which is a topic's
			want = append(want, limit)
		}
	}
	for _, e := range alerts(t) {
		if e.where == "alert TidegateStoragePressed" {
			got = strings.Split(regexp.MustCompile(`limit=~"([^"]*)"`).FindStringSubmatch(e.text)[1], "|")
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the alert knows %q, the broker has %q", got, want)
	}
}

// Failures inside the broker are logged, over gRPC and over HTTP.
func TestMonitoringOfFailures(t *testing.T) {
	all := fmt.Sprint(alerts(t))
	for _, m := range []string{"tidegate_rpc_answers_total", "tidegate_http_answers_total"} {
		if !strings.Contains(all, m) {
			t.Errorf("no alert looks at %s", m)
		}
	}
}

// A check that finds nothing anywhere would prove nothing.
func TestMonitoringParts(t *testing.T) {
	metrics, labels := parts(`histogram_quantile(0.99, sum by (le, rpc) (rate(a_bucket{code!~"x|y z",instance=~"$i"}[5m]))) > 2 * typo and on (group) b_total == 0`)
	if want := []string{"a_bucket", "typo", "b_total"}; !slices.Equal(metrics, want) {
		t.Errorf("metrics %q, want %q", metrics, want)
	}
	if want := []string{"code", "instance", "le", "rpc", "group"}; !slices.Equal(labels, want) {
		t.Errorf("labels %q, want %q", labels, want)
	}
}
