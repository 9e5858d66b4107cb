package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A fixed source has a different value, none of them 0, for each value of an engine.
type fixed struct {
	broken  error
	serving bool
}

func (fixed) Clients() int     { return 901 }
func (s fixed) Serving() bool  { return s.serving }
func (s fixed) Healthy() error { return s.broken }

func (fixed) Throttles() []status.LimitState {
	limit := func(name string, on bool) status.LimitState {
		return status.LimitState{Throttle: status.Throttle{Limit: name}, On: on}
	}
	return []status.LimitState{
		limit("topic backlog bytes", true), limit("topic backlog bytes", true), limit("topic backlog bytes", true), limit("topic backlog bytes", false),
		limit("group backlog age", true), limit("group backlog age", true), limit("disk full", true), limit("free disk", false),
	}
}

func (fixed) Stats() engine.Stats {
	histogram := func(n uint64, sum float64) engine.Histogram {
		return engine.Histogram{Bounds: []float64{0.5, 2}, Counts: []uint64{n, n + 1, n + 2}, Sum: sum}
	}
	store := func(n int64) engine.StoreStats {
		return engine.StoreStats{
			Commit: histogram(uint64(n), 1.5), CommitRecords: histogram(uint64(n)+10, 2.5), CommitBytes: n + 3, Fsync: histogram(uint64(n)+20, 3.5),
			Disk: n + 4, WAL: n + 5, MemTables: n + 6, CompactionDebt: n + 7, ReadAmplification: n + 8, L0Files: n + 9, Compactions: n + 10, Flushes: n + 11,
		}
	}
	return engine.Stats{
		Topics: []engine.TopicCount{{
			TopicSummary: status.TopicSummary{
				Name: "t", Stored: status.Backlog{Messages: 101, Bytes: 102}, Delayed: status.Backlog{Messages: 103, Bytes: 104},
				Backlog: status.Backlog{Messages: 105, Bytes: 106}, Accepted: 107, Half: 114, Throttle: &status.Throttle{},
			},
			AcceptedBytes: 108, Duplicates: 109,
			Removed:      [...]int64{110, 111, 112, 113},
			Transactions: &engine.TransactionStats{Committed: 115, RolledBack: 116, Abandoned: 117, Checks: 118, Unheard: 119},
		}, {TopicSummary: status.TopicSummary{Name: "free"}}},
		Groups: []engine.GroupCount{{
			GroupSummary: status.GroupSummary{
				Group: "g", Topic: "t", Ready: 201, Inflight: 202, WaitingRetry: 203, Parked: 204, Blocked: 225, Backlog: status.Backlog{Messages: 205, Bytes: 206},
				ParkedGroups: 207, BlockedGroups: 208, Acked: 209, Redelivered: 210, DeadLetters: 2110, Filtered: 224,
				Waiting: 215, OldestMS: 222_000, UndeliveredMS: 223_500,
			},
			Overtaken: 212, Discarded: 213, Expired: 214, Deliveries: [...]int64{216, 217, 218, 219, 220}, GivenUp: 221,
		}},
		Refused: map[engine.RefusalReason]int64{
			engine.RefusedThrottled: 301, engine.RefusedInvalid: 302, engine.RefusedNoTopic: 303, engine.RefusedUnknown: 304, engine.RefusedOther: 305,
		},
		Throttled: map[string]int64{"topic backlog bytes": 401, "group backlog age": 402, "disk full": 403, "free disk": 404, "client quota": 405, "fair share": 406, "other": 407},
		Clock:     &status.Clock{Kept: 551, Postponed: 552},
		Damaged:   501, RetryLateness: histogram(502, 4.5), DelayedLateness: histogram(503, 5.5), MessageStore: store(600), GroupStore: store(700), CacheHits: 801, CacheMisses: 802,
	}
}

// The expected text of /metrics, by hand.
const fixed1 = `
tidegate_clock_kept_messages{reason="expiry"} 552
tidegate_clock_kept_messages{reason="retention"} 551
tidegate_clock_trusted 0
tidegate_damaged_messages_total 501
tidegate_delayed_lateness_seconds_bucket{le="+Inf"} 1512
tidegate_delayed_lateness_seconds_bucket{le="0.5"} 503
tidegate_delayed_lateness_seconds_bucket{le="2"} 1007
tidegate_delayed_lateness_seconds_count 1512
tidegate_delayed_lateness_seconds_sum 5.5
tidegate_group_acknowledged_messages_total{group="g",topic="t"} 209
tidegate_group_backlog_bytes{group="g",topic="t"} 206
tidegate_group_backlog_messages{group="g",topic="t"} 205
tidegate_group_blocked_message_groups{group="g",topic="t"} 208
tidegate_group_blocked_messages{group="g",topic="t"} 225
tidegate_group_dead_letters_total{group="g",reason="asked_for",topic="t"} 221
tidegate_group_dead_letters_total{group="g",reason="attempts_exhausted",topic="t"} 1889
tidegate_group_deliveries_total{attempt="1",group="g",topic="t"} 216
tidegate_group_deliveries_total{attempt="2",group="g",topic="t"} 217
tidegate_group_deliveries_total{attempt="3",group="g",topic="t"} 218
tidegate_group_deliveries_total{attempt="4-8",group="g",topic="t"} 219
tidegate_group_deliveries_total{attempt="9+",group="g",topic="t"} 220
tidegate_group_discarded_messages_total{group="g",reason="attempts_exhausted",topic="t"} 213
tidegate_group_discarded_messages_total{group="g",reason="expired",topic="t"} 214
tidegate_group_filtered_messages_total{group="g",topic="t"} 224
tidegate_group_in_flight_messages{group="g",topic="t"} 202
tidegate_group_oldest_age_seconds{group="g",topic="t"} 222
tidegate_group_oldest_undelivered_age_seconds{group="g",topic="t"} 223.5
tidegate_group_overtaken_messages_total{group="g",topic="t"} 212
tidegate_group_parked_message_groups{group="g",topic="t"} 207
tidegate_group_parked_messages{group="g",topic="t"} 204
tidegate_group_ready_messages{group="g",topic="t"} 201
tidegate_group_waiting_receives{group="g",topic="t"} 215
tidegate_group_waiting_retry_messages{group="g",topic="t"} 203
tidegate_limit_reached{limit="disk_full"} 1
tidegate_limit_reached{limit="free_disk"} 0
tidegate_limit_reached{limit="group_backlog_age"} 2
tidegate_limit_reached{limit="topic_backlog_bytes"} 3
tidegate_ready 1
tidegate_refused_messages_total{reason="invalid"} 302
tidegate_refused_messages_total{reason="other"} 305
tidegate_refused_messages_total{reason="throttled"} 301
tidegate_refused_messages_total{reason="topic_not_found"} 303
tidegate_refused_messages_total{reason="unknown"} 304
tidegate_retry_lateness_seconds_bucket{le="+Inf"} 1509
tidegate_retry_lateness_seconds_bucket{le="0.5"} 502
tidegate_retry_lateness_seconds_bucket{le="2"} 1005
tidegate_retry_lateness_seconds_count 1509
tidegate_retry_lateness_seconds_sum 4.5
tidegate_sessions 901
tidegate_store_cache_hits_total 801
tidegate_store_cache_misses_total 802
tidegate_store_commit_bytes_total{database="groups"} 703
tidegate_store_commit_bytes_total{database="messages"} 603
tidegate_store_commit_records_bucket{database="groups",le="+Inf"} 2133
tidegate_store_commit_records_bucket{database="groups",le="0.5"} 710
tidegate_store_commit_records_bucket{database="groups",le="2"} 1421
tidegate_store_commit_records_bucket{database="messages",le="+Inf"} 1833
tidegate_store_commit_records_bucket{database="messages",le="0.5"} 610
tidegate_store_commit_records_bucket{database="messages",le="2"} 1221
tidegate_store_commit_records_count{database="groups"} 2133
tidegate_store_commit_records_count{database="messages"} 1833
tidegate_store_commit_records_sum{database="groups"} 2.5
tidegate_store_commit_records_sum{database="messages"} 2.5
tidegate_store_commit_seconds_bucket{database="groups",le="+Inf"} 2103
tidegate_store_commit_seconds_bucket{database="groups",le="0.5"} 700
tidegate_store_commit_seconds_bucket{database="groups",le="2"} 1401
tidegate_store_commit_seconds_bucket{database="messages",le="+Inf"} 1803
tidegate_store_commit_seconds_bucket{database="messages",le="0.5"} 600
tidegate_store_commit_seconds_bucket{database="messages",le="2"} 1201
tidegate_store_commit_seconds_count{database="groups"} 2103
tidegate_store_commit_seconds_count{database="messages"} 1803
tidegate_store_commit_seconds_sum{database="groups"} 1.5
tidegate_store_commit_seconds_sum{database="messages"} 1.5
tidegate_store_compaction_debt_bytes{database="groups"} 707
tidegate_store_compaction_debt_bytes{database="messages"} 607
tidegate_store_compactions_total{database="groups"} 710
tidegate_store_compactions_total{database="messages"} 610
tidegate_store_disk_bytes{database="groups"} 704
tidegate_store_disk_bytes{database="messages"} 604
tidegate_store_flushes_total{database="groups"} 711
tidegate_store_flushes_total{database="messages"} 611
tidegate_store_fsync_seconds_bucket{database="groups",le="+Inf"} 2163
tidegate_store_fsync_seconds_bucket{database="groups",le="0.5"} 720
tidegate_store_fsync_seconds_bucket{database="groups",le="2"} 1441
tidegate_store_fsync_seconds_bucket{database="messages",le="+Inf"} 1863
tidegate_store_fsync_seconds_bucket{database="messages",le="0.5"} 620
tidegate_store_fsync_seconds_bucket{database="messages",le="2"} 1241
tidegate_store_fsync_seconds_count{database="groups"} 2163
tidegate_store_fsync_seconds_count{database="messages"} 1863
tidegate_store_fsync_seconds_sum{database="groups"} 3.5
tidegate_store_fsync_seconds_sum{database="messages"} 3.5
tidegate_store_healthy 1
tidegate_store_l0_files{database="groups"} 709
tidegate_store_l0_files{database="messages"} 609
tidegate_store_memtable_bytes{database="groups"} 706
tidegate_store_memtable_bytes{database="messages"} 606
tidegate_store_read_amplification{database="groups"} 708
tidegate_store_read_amplification{database="messages"} 608
tidegate_store_wal_bytes{database="groups"} 705
tidegate_store_wal_bytes{database="messages"} 605
tidegate_throttled_messages_total{limit="client_quota"} 405
tidegate_throttled_messages_total{limit="disk_full"} 403
tidegate_throttled_messages_total{limit="fair_share"} 406
tidegate_throttled_messages_total{limit="free_disk"} 404
tidegate_throttled_messages_total{limit="group_backlog_age"} 402
tidegate_throttled_messages_total{limit="other"} 407
tidegate_throttled_messages_total{limit="topic_backlog_bytes"} 401
tidegate_topic_accepted_bytes_total{topic="t"} 108
tidegate_topic_accepted_messages_total{topic="t"} 107
tidegate_topic_backlog_bytes{topic="t"} 106
tidegate_topic_backlog_messages{topic="t"} 105
tidegate_topic_delayed_bytes{topic="t"} 104
tidegate_topic_delayed_messages{topic="t"} 103
tidegate_topic_duplicate_messages_total{topic="t"} 109
tidegate_topic_half_messages{topic="t"} 114
tidegate_topic_removed_messages_total{cause="bytes",topic="t"} 111
tidegate_topic_removed_messages_total{cause="consumed",topic="t"} 112
tidegate_topic_removed_messages_total{cause="purge",topic="t"} 113
tidegate_topic_removed_messages_total{cause="time",topic="t"} 110
tidegate_topic_stored_bytes{topic="t"} 102
tidegate_topic_stored_messages{topic="t"} 101
tidegate_topic_throttled{topic="free"} 0
tidegate_topic_throttled{topic="t"} 1
tidegate_topic_transaction_checks_total{outcome="sent",topic="t"} 118
tidegate_topic_transaction_checks_total{outcome="unheard",topic="t"} 119
tidegate_topic_transactions_ended_total{outcome="abandoned",topic="t"} 117
tidegate_topic_transactions_ended_total{outcome="committed",topic="t"} 115
tidegate_topic_transactions_ended_total{outcome="rolled_back",topic="t"} 116
`

// samples returns the lines of tidegate's own samples by name, except those of the topic without a
// throttle.
func samples(t *testing.T, of Source) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(of, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return lines(w.Body.String())
}

func lines(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "tidegate_") && (!strings.Contains(name, `topic="free"`) || strings.HasPrefix(name, "tidegate_topic_throttled")) {
			out[name] = value
		}
	}
	return out
}

// Every value of the engine is in the sample with its name, and in no other one.
func TestEveryMetricHasItsValue(t *testing.T) {
	got, want := samples(t, fixed{serving: true}), lines(fixed1)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		assert.That(t, got[name] == want[name], "%s is %q, want %s", name, got[name], want[name])
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is %s, and not in the list: which value is it to have?", name, got[name])
		}
	}
}

func TestReadyAndHealthy(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, c := range []struct {
		of             fixed
		ready, healthy string
	}{
		{fixed{nil, true}, "1", "1"},
		{fixed{nil, false}, "0", "1"},
		{fixed{broken, true}, "0", "0"},
		{fixed{broken, false}, "0", "0"},
	} {
		got := samples(t, c.of)
		if got["tidegate_ready"] != c.ready || got["tidegate_store_healthy"] != c.healthy {
			t.Errorf("%+v: ready %s, healthy %s; want %s, %s", c.of, got["tidegate_ready"], got["tidegate_store_healthy"], c.ready, c.healthy)
		}
	}
}

// filled returns a value of which every number is n, so that a sum that forgets a field shows.
func filled[T any](n int64) (v T) {
	var fill func(reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() { //nolint:exhaustive // texts and maps stay empty
		case reflect.Int64:
			v.SetInt(n)
		case reflect.Struct:
			for _, f := range v.Fields() {
				if f.CanSet() {
					fill(f)
				}
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		}
	}
	fill(reflect.ValueOf(&v).Elem())
	return v
}

// The totals are the sums of every number; ages are the highest.
func TestTotalsSumEveryField(t *testing.T) {
	var st engine.Stats
	for i, n := range []int64{3, 4} {
		topic, sub := filled[engine.TopicCount](n), filled[engine.GroupCount](n)
		topic.Name, sub.Topic, sub.Group = fmt.Sprint("t", i), fmt.Sprint("t", i), "g"
		topic.Throttle = nil
		topic.Removed = [...]int64{n, 0, 0, 0}
		st.Topics, st.Groups = append(st.Topics, topic), append(st.Groups, sub)
	}
	st.Topics[1].Throttle = &status.Throttle{}
	selection{totals: true}.apply(&st)
	topic, sub := filled[engine.TopicCount](7), filled[engine.GroupCount](7)
	topic.Name, sub.Topic, sub.Group = "*", "*", "*"
	topic.Throttle, topic.Removed = &status.Throttle{}, [...]int64{7, 0, 0, 0}
	sub.OldestMS, sub.UndeliveredMS = 4, 4
	topic.OldestMS, topic.Acked, topic.Groups = 0, 0, 0 // no metric shows these
	sub.Held, sub.Clients, sub.DeadLettersHour, sub.DeadLettersStored = nil, 0, 0, 0
	if len(st.Topics) != 1 || !reflect.DeepEqual(st.Topics[0], topic) {
		t.Errorf("the sum of the topics is\n%+v, want\n%+v", st.Topics[0], topic)
	}
	if len(st.Groups) != 1 || !reflect.DeepEqual(st.Groups[0], sub) {
		t.Errorf("the sum of the groups is\n%+v, want\n%+v", st.Groups[0], sub)
	}
}

func TestSelectionOfMetrics(t *testing.T) {
	h := Handler(fixed{serving: true}, slog.New(slog.DiscardHandler))
	for query, c := range map[string]struct{ has, hasNot []string }{
		"":                   {[]string{`topic_stored_messages{topic="t"} 101`, `topic_stored_messages{topic="free"} 0`}, []string{`"*"`}},
		"?totals=only":       {[]string{`topic_stored_messages{topic="*"} 101`, `group_ready_messages{group="*",topic="*"} 201`, "tidegate_sessions 901"}, []string{`topic="t"`, `group="g"`}},
		"?topic=free":        {[]string{`topic_stored_messages{topic="free"} 0`}, []string{`topic="t"`}},
		"?group=g":           {[]string{`group_ready_messages{group="g",topic="t"} 201`}, []string{"topic_stored_messages{"}},
		"?group=none":        {[]string{"tidegate_sessions 901"}, []string{`group="g"`}},
		"?topic=t&unknown=1": {[]string{`topic_stored_messages{topic="t"} 101`}, []string{`topic="free"`}},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics"+query, nil))
		for _, text := range c.has {
			assert.That(t, strings.Contains(w.Body.String(), text), "%q has no %s", query, text)
		}
		for _, text := range c.hasNot {
			assert.That(t, !strings.Contains(w.Body.String(), text), "%q has %s", query, text)
		}
	}
}

// aSource has one of everything that has labels.
type aSource struct{}

func (aSource) Stats() engine.Stats {
	return engine.Stats{
		Topics:    []engine.TopicCount{{TopicSummary: status.TopicSummary{Name: "t"}, Transactions: &engine.TransactionStats{}}},
		Groups:    []engine.GroupCount{{GroupSummary: status.GroupSummary{Group: "g", Topic: "t"}}},
		Refused:   map[engine.RefusalReason]int64{"full": 1},
		Throttled: map[string]int64{"topic backlog messages": 1},
	}
}
func (aSource) Throttles() []status.LimitState { return nil }
func (aSource) Healthy() error                 { return nil }
func (aSource) Serving() bool                  { return true }
func (aSource) Clients() int                   { return 1 }

// All collected series were described: a registry that checks it accepts them.
func TestCollectorDescribesItsMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	assert.Must(t, r.Register(&collector{of: aSource{}}))
	families, err := r.Gather()
	assert.NoError(t, err)
	assert.Equal(t, "metrics that are described", len(families), len(descs))
}

func TestCodeLabel(t *testing.T) {
	for st, want := range map[rmqpb.Code]string{
		rmqpb.Code_OK: "OK", rmqpb.Code_TOO_MANY_REQUESTS: "TOO_MANY_REQUESTS", 12345: "OTHER", -1: "OTHER",
	} {
		if got := codeLabel(st, nil); got != want {
			t.Errorf("code %d: %q, want %q", st, got, want)
		}
	}
	assert.Equal(t, "no error", codeLabel(rmqpb.Code_OK, t.Context().Err()), "OK")
}
