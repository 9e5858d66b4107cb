package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// scraped returns the response of GET /metrics: every sample by its name and labels, histograms by
// their _count and _sum, and the families besides.
func scraped(t testing.TB, s *server.Server) (map[string]float64, map[string]*dto.MetricFamily) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	assert.MustThat(t, w.Code == http.StatusOK, "GET /metrics: %d %s", w.Code, w.Body)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families := assert.Value(p.TextToMetricFamilies(w.Body))(t)
	samples := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := func(suffix string) string {
				if labels == nil {
					return name + suffix
				}
				return name + suffix + "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.Counter != nil:
				samples[key("")] = m.Counter.GetValue()
			case m.Gauge != nil:
				samples[key("")] = m.Gauge.GetValue()
			case m.Histogram != nil:
				samples[key("_count")] = float64(m.Histogram.GetSampleCount())
				samples[key("_sum")] = m.Histogram.GetSampleSum()
			}
		}
	}
	return samples, families
}

// compare compares samples with the wanted ones.
func compare(t testing.TB, got, want map[string]float64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[name]; !ok || v != want[name] {
			t.Errorf("%s is %v (there: %t), want %v", name, v, ok, want[name])
		}
	}
}

// tellStory lets a topic "orders" and a group "g" see all that can happen to
// messages, in virtual time.
func tellStory(t *testing.T, e *env) {
	t.Helper()
	put := func(topic string, c settings.Topic) {
		t.Helper()
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), topic, c)))
	}
	put("orders", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 5}})
	assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 3})))
	receive := func(n int, push bool) []*tidegate.Delivery {
		t.Helper()
		ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "orders", Queue: -1, Max: n, InvisibleDuration: time.Minute, Push: push})
		assert.MustThat(t, err == nil && len(ds) == n, "received %d messages, %v; want %d", len(ds), err, n)
		return ds
	}
	must := func(err error) {
		t.Helper()
		assert.Must(t, err)
	}

	// Six sends of 5 bytes, of which the limit lets five through, one to no topic and one without a
	// body.
	for i := range 6 {
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("orders", fmt.Sprint("id", i))}})
		if want := map[bool]rmqpb.Code{false: rmqpb.Code_OK, true: rmqpb.Code_TOO_MANY_REQUESTS}[i == 5]; err != nil || r.GetStatus().GetCode() != want {
			t.Fatalf("send %d: %v, %v; want %v", i, r, err, want)
		}
	}
	// id1 is already stored: the response has its receipt.
	e.send(msg("orders", "id1"))
	e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("nowhere", "x")}})
	for _, r := range e.b.Send(t.Context(), []*tidegate.Message{{ID: "y", Topic: "orders", MessageGroup: "odd", Body: []byte("b")}}) {
		assert.MustThat(t, r.Err != nil, "a NORMAL topic accepted a message with a message group")
	}

	// Of four transactions one is committed, one rolled back, one given up, and one waits.
	put("tx", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{Timeout: settings.Duration(time.Second), CheckInterval: settings.Duration(time.Second), CheckMax: 1}})
	begin := func(id string, firstCheck time.Duration) engine.TransactionEnd {
		r := e.b.Engine().Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: id, Topic: "tx", Body: []byte("b")}, Half: true, FirstCheck: firstCheck}})[0]
		must(r.Err)
		return engine.TransactionEnd{Topic: "tx", TransactionID: r.Receipt.TransactionID}
	}
	for i, how := range []transport.Resolution{transport.Commit, transport.Rollback} {
		end := begin(fmt.Sprint("ended", i), 0)
		end.Resolution = how
		must(e.b.Engine().EndTransaction(t.Context(), end))
	}
	begin("waits", time.Hour)
	begin("orphan", 0)

	// Five messages: one is acknowledged, one given up, one fails three times, one fails once and
	// waits, and one is in flight.
	ds := receive(5, true)
	must(e.b.Ack(t.Context(), ds[:1])[0])
	_, err := e.b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
	must(err)
	retry := func(d *tidegate.Delivery, after time.Duration) {
		_, err := e.b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: after})
		must(err)
	}
	failing := ds[2]
	for range 2 {
		retry(failing, 10*time.Second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		failing = receive(1, true)[0]
	}
	retry(failing, 10*time.Second)
	retry(ds[3], time.Hour)

	// One receive through the wire finds nothing after its time; one is parked.
	st, _ := e.receive(as(t.Context(), "c1"), receiveRequest("orders", func(r *rmqpb.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(time.Second) }))
	assert.MustThat(t, st.GetCode() == rmqpb.Code_MESSAGE_NOT_FOUND, "receive: %v", st)
}

// RocketMQ: sending retry and throttling: "Use observable metrics to monitor the system capacity
// and scale the underlying resources accordingly"
func TestMetricsOfAStory(t *testing.T) {
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
		tellStory(t, e)
		e.send(msg("orders", "id6"))
		parked := assert.Value(e.ReceiveMessage(as(t.Context(), "c2"), receiveRequest("normal")))(t)
		time.Sleep(time.Second)
		synctest.Wait()
		got, families := scraped(t, e.s)
		const og = `{group="g",topic="orders"}`
		compare(t, got, map[string]float64{
			`tidegate_topic_accepted_messages_total{topic="orders"}`:  6,
			`tidegate_topic_accepted_bytes_total{topic="orders"}`:     30,
			`tidegate_topic_duplicate_messages_total{topic="orders"}`: 1,
			`tidegate_topic_stored_messages{topic="orders"}`:          6,
			`tidegate_topic_stored_bytes{topic="orders"}`:             30,
			`tidegate_topic_backlog_messages{topic="orders"}`:         3,
			`tidegate_topic_throttled{topic="orders"}`:                0,
			`tidegate_topic_accepted_messages_total{topic="%DLQ%g"}`:  2,
			`tidegate_refused_messages_total{reason="throttled"}`:     1,
			`tidegate_topic_half_messages{topic="tx"}`:                1,

			`tidegate_topic_transactions_ended_total{outcome="committed",topic="tx"}`:   1,
			`tidegate_topic_transactions_ended_total{outcome="rolled_back",topic="tx"}`: 1,
			`tidegate_topic_transactions_ended_total{outcome="abandoned",topic="tx"}`:   1,
			`tidegate_topic_transaction_checks_total{outcome="sent",topic="tx"}`:        0,
			`tidegate_topic_transaction_checks_total{outcome="unheard",topic="tx"}`:     1,

			`tidegate_refused_messages_total{reason="invalid"}`: 1,
			`tidegate_refused_messages_total{reason="unknown"}`: 0,

			`tidegate_refused_messages_total{reason="topic_not_found"}`:         1,
			`tidegate_throttled_messages_total{limit="topic_backlog_messages"}`: 1,
			`tidegate_throttled_messages_total{limit="client_quota"}`:           0,

			"tidegate_group_backlog_messages" + og:                                                    3,
			"tidegate_group_backlog_bytes" + og:                                                       15,
			"tidegate_group_ready_messages" + og:                                                      1,
			"tidegate_group_in_flight_messages" + og:                                                  1,
			"tidegate_group_waiting_retry_messages" + og:                                              1,
			"tidegate_group_acknowledged_messages_total" + og:                                         1,
			"tidegate_group_waiting_receives" + og:                                                    0,
			"tidegate_group_oldest_undelivered_age_seconds" + og:                                      1,
			`tidegate_limit_reached{limit="topic_backlog_messages"}`:                                  0,
			`tidegate_limit_reached{limit="free_disk"}`:                                               0,
			`tidegate_throttled_messages_total{limit="free_disk"}`:                                    0,
			"tidegate_group_oldest_age_seconds" + og:                                                  22,
			`tidegate_group_waiting_receives{group="g",topic="normal"}`:                               1,
			`tidegate_group_oldest_undelivered_age_seconds{group="g",topic="normal"}`:                 0,
			`tidegate_group_deliveries_total{attempt="1",group="g",topic="orders"}`:                   5,
			`tidegate_group_deliveries_total{attempt="2",group="g",topic="orders"}`:                   1,
			`tidegate_group_deliveries_total{attempt="3",group="g",topic="orders"}`:                   1,
			`tidegate_group_deliveries_total{attempt="4-8",group="g",topic="orders"}`:                 0,
			`tidegate_group_deliveries_total{attempt="9+",group="g",topic="orders"}`:                  0,
			`tidegate_group_dead_letters_total{group="g",reason="attempts_exhausted",topic="orders"}`: 1,
			`tidegate_group_dead_letters_total{group="g",reason="asked_for",topic="orders"}`:          1,

			"tidegate_retry_lateness_seconds_count": 2,
			"tidegate_retry_lateness_seconds_sum":   0, // time is virtual: nothing is late
			"tidegate_store_healthy":                1,
			"tidegate_ready":                        1,
			"tidegate_sessions":                     2, // a session begins with a receive

			`tidegate_rpc_answers_total{code="OK",rpc="SendMessage"}`:                   7,
			`tidegate_rpc_answers_total{code="TOO_MANY_REQUESTS",rpc="SendMessage"}`:    1,
			`tidegate_rpc_answers_total{code="TOPIC_NOT_FOUND",rpc="SendMessage"}`:      1,
			`tidegate_rpc_answers_total{code="MESSAGE_NOT_FOUND",rpc="ReceiveMessage"}`: 1,
			`tidegate_rpc_duration_seconds_count{rpc="SendMessage"}`:                    9,
			`tidegate_rpc_duration_seconds_count{rpc="ReceiveMessage"}`:                 1,
			`tidegate_rpc_duration_seconds_sum{rpc="ReceiveMessage"}`:                   1, // it was parked for a second
		})
		for _, name := range []string{"tidegate_store_disk_bytes", "tidegate_store_commit_seconds", "tidegate_store_fsync_seconds"} {
			if n := len(families[name].GetMetric()); n != 2 {
				t.Errorf("%s has %d series, want one for each database", name, n)
			}
		}
		// One record for each message, each dead letter with its mark, and settings.
		if h := families["tidegate_store_commit_records"].GetMetric()[1].GetHistogram(); h.GetSampleSum() < 6+2*2 {
			t.Errorf("the commits of the message log had %v records; there were 6 messages and 2 dead letters with their marks", h.GetSampleSum())
		}
		e.s.Parts().Sessions.Terminate("c2")
		assert.NoError(t, assert.Err(frames(parked, nil)))

		// The series of deleted topics and groups vanish.
		assert.Must(t, e.b.DeleteTopic(t.Context(), "orders"))
		assert.Must(t, e.b.DeleteGroup(t.Context(), "g"))
		got, _ = scraped(t, e.s)
		for name := range got {
			if strings.Contains(name, `"orders"`) || strings.Contains(name, `group="g"`) {
				t.Errorf("%s exists after the deletion of topic and group", name)
			}
		}
	})
}

// promlint has Prometheus's recommendations for names, units and help.
func TestMetricsLint(t *testing.T) {
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
		tellStory(t, e)
		w := e.serve(httptest.NewRequest(http.MethodGet, "/metrics", nil))
		problems := assert.Value(promlint.New(bytes.NewReader(w.Body.Bytes())).Lint())(t)
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

// The number of series depends on topics and groups alone, and not on clients, messages, attempts
// or the content of requests.
func TestMetricsCardinality(t *testing.T) {
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
		for _, g := range []string{"g1", "g2"} { // for ever: no dead letters, whose topic would be new
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), g, settings.Group{MaxAttempts: -1})))
		}
		use := func(client, group string, rounds int) {
			for i := range rounds {
				id := fmt.Sprint(client, i)
				ctx := as(t.Context(), id)
				e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", id)}})
				e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("missing"+id, id)}})
				e.AckMessage(ctx, &rmqpb.AckMessageRequest{Group: res(group), Topic: res("none" + id), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: id}}})
				e.receive(ctx, receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) {
					r.Group, r.InvisibleDuration = res(group), durationpb.New(time.Second)
				}))
				time.Sleep(time.Second)
				synctest.Wait()
			}
		}
		use("a", "g1", 2)
		scraped(t, e.s) // the first scrape is counted in the second
		first, _ := scraped(t, e.s)
		use("b", "g1", 20) // attempts go up to 20, with as many clients
		second, _ := scraped(t, e.s)
		more := func(a, b map[string]float64) (n int) {
			for name := range b {
				if _, ok := a[name]; !ok && strings.HasPrefix(name, "tidegate_") {
					n++
					if strings.Contains(name, "group=") {
						continue
					}
					t.Errorf("%s is new", name)
				}
			}
			return n
		}
		assert.Equal(t, "more series, without a new topic or group", more(first, second), 0)
		if got := second[`tidegate_group_deliveries_total{attempt="9+",group="g1",topic="normal"}`]; got == 0 {
			t.Error("no delivery beyond the eighth attempt: this test no longer tests the limit of attempts")
		}
		use("c", "g2", 1)
		third, _ := scraped(t, e.s)
		assert.Equal(t, "series for another group in one topic", more(second, third), 24)
	})
}

func TestMetricsOfAClosedBroker(t *testing.T) {
	e := start(t, server.Options{})
	assert.Must(t, e.b.Close())
	got, _ := scraped(t, e.s)
	compare(t, got, map[string]float64{"tidegate_store_healthy": 0, "tidegate_ready": 0, `tidegate_topic_stored_messages{topic="normal"}`: 0})
}

func TestMetricsTakesGet(t *testing.T) {
	e := start(t, server.Options{})
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405} {
		w := e.serve(httptest.NewRequest(method, "/metrics", nil))
		if w.Code != want || want == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, Allow %q; want %d", method, w.Code, w.Header().Get("Allow"), want)
		}
	}
}

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
	text := assert.Value(os.ReadFile("monitoring/dashboard.json"))(t)
	assert.Must(t, json.Unmarshal(text, &d))
	assert.That(t, d.Title != "" && d.UID != "" && len(d.Panels) != 0, "the dashboard has no title, uid or panels")
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
			assert.That(t, p.GridPos.W == 24 && p.GridPos.H == 1, "panel %q is a row of %d by %d", p.Title, p.GridPos.W, p.GridPos.H)
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
	text := assert.Value(os.ReadFile("monitoring/alerts.yml"))(t)
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
	assert.Must(t, d.Decode(&f))
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
	assert.That(t, len(out) != 0, "there are no alerts")
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
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
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
		assert.That(t, len(metrics) != 0, "%s: no metric in %q", e.where, e.text)
		for _, m := range metrics {
			known, ok := labelsOf[m]
			if !ok {
				t.Errorf("%s: a busy broker has no metric %s", e.where, m)
				continue
			}
			for _, l := range labels {
				assert.That(t, slices.Contains(known, l), "%s: %s has no label %s, only %q", e.where, m, l, known)
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
		assert.That(t, !strings.HasPrefix(name, "tidegate_") || shown[name], "the dashboard does not show %s", name)
	}
}

// The alert for a storage that rejects all sends knows every limit that does:
// those that are of no topic and no group.
func TestMonitoringKnowsTheStoragesLimits(t *testing.T) {
	var told map[string]*dto.MetricFamily
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
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
	assert.That(t, len(want) != 0 && slices.Equal(got, want), "the alert knows %q, the broker has %q", got, want)
}

// Failures inside the broker are logged, over gRPC and over HTTP.
func TestMonitoringOfFailures(t *testing.T) {
	all := fmt.Sprint(alerts(t))
	for _, m := range []string{"tidegate_rpc_answers_total", "tidegate_http_answers_total"} {
		assert.That(t, strings.Contains(all, m), "no alert looks at %s", m)
	}
}

// An operation without calls has no durations, which are 18 series each: they were 7 of 10 series
// of an idle broker. Its responses are counted from 0 on.
func TestSeriesOfAnIdleBroker(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		w := e.serve(httptest.NewRequest("GET", "/metrics", nil))
		byName := map[string]int{}
		for line := range strings.Lines(w.Body.String()) {
			if !strings.HasPrefix(line, "#") {
				name, _, _ := strings.Cut(line, "{")
				name, _, _ = strings.Cut(name, " ")
				byName[name]++
			}
		}
		for _, name := range []string{"tidegate_http_duration_seconds_bucket", "tidegate_rpc_duration_seconds_bucket"} {
			if n := byName[name]; n != 0 {
				t.Errorf("%d series %s before the first request", n, name)
			}
		}
		if byName["tidegate_http_answers_total"] < 30 || byName["tidegate_rpc_answers_total"] != 17 {
			t.Errorf("%d and %d counters of responses; want one for each operation", byName["tidegate_http_answers_total"], byName["tidegate_rpc_answers_total"])
		}
	})
}
