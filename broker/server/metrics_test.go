package server_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// scraped returns the response of GET /metrics: every sample by its name and labels, histograms by
// their _count and _sum, and the families besides.
func scraped(t testing.TB, s *server.Server) (map[string]float64, map[string]*dto.MetricFamily) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := e.b.PutTopic(t.Context(), topic, c); err != nil {
			t.Fatal(err)
		}
	}
	put("orders", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 5}})
	if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 3}); err != nil {
		t.Fatal(err)
	}
	receive := func(n int, push bool) []*tidegate.Delivery {
		t.Helper()
		ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "orders", Queue: -1, Max: n, InvisibleDuration: time.Minute, Push: push})
		if err != nil || len(ds) != n {
			t.Fatalf("received %d messages, %v; want %d", len(ds), err, n)
		}
		return ds
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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
		if r.Err == nil {
			t.Fatal("a NORMAL topic accepted a message with a message group")
		}
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
	if st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
		t.Fatalf("receive: %v", st)
	}
}

// RocketMQ: sending retry and throttling: "Use observable metrics to monitor the system capacity
// and scale the underlying resources accordingly"
func TestMetricsOfAStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		tellStory(t, e)
		e.send(msg("orders", "id6"))
		parked, err := e.ReceiveMessage(as(t.Context(), "c2"), receiveRequest("normal"))
		if err != nil {
			t.Fatal(err)
		}
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
		if _, err := frames(parked, nil); err != nil {
			t.Error(err)
		}

		// The series of deleted topics and groups vanish.
		if err := e.b.DeleteTopic(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if err := e.b.DeleteGroup(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		tellStory(t, e)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		problems, err := promlint.New(bytes.NewReader(w.Body.Bytes())).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

// The number of series depends on topics and groups alone, and not on clients, messages, attempts
// or the content of requests.
func TestMetricsCardinality(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		for _, g := range []string{"g1", "g2"} { // for ever: no dead letters, whose topic would be new
			if _, err := e.b.PutGroup(t.Context(), g, settings.Group{MaxAttempts: -1}); err != nil {
				t.Fatal(err)
			}
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
		if n := more(first, second); n != 0 {
			t.Errorf("%d more series, without a new topic or group", n)
		}
		if got := second[`tidegate_group_deliveries_total{attempt="9+",group="g1",topic="normal"}`]; got == 0 {
			t.Error("no delivery beyond the eighth attempt: this test no longer tests the limit of attempts")
		}
		use("c", "g2", 1)
		third, _ := scraped(t, e.s)
		if n := more(second, third); n != 24 {
			t.Errorf("%d series for another group in one topic, want 24", n)
		}
	})
}

func TestMetricsOfAClosedBroker(t *testing.T) {
	e := start(t, server.Options{})
	if err := e.b.Close(); err != nil {
		t.Fatal(err)
	}
	got, _ := scraped(t, e.s)
	compare(t, got, map[string]float64{"tidegate_store_healthy": 0, "tidegate_ready": 0, `tidegate_topic_stored_messages{topic="normal"}`: 0})
}

func TestMetricsTakesGet(t *testing.T) {
	e := start(t, server.Options{})
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405} {
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		if w.Code != want || want == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, Allow %q; want %d", method, w.Code, w.Header().Get("Allow"), want)
		}
	}
}
