// Package metrics exports the counts of the engine to Prometheus, and counts requests by result and
// duration. It has the names, labels and help texts of all metrics except those of access.
package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/status"
)

// A collector exports the counts of the engine to Prometheus. It stores nothing between scrapes, so
// deleted topics and groups disappear from the output.
type collector struct {
	of   Source
	part selection
}

// A Source has the exported counts.
type Source interface {
	// The engine's.
	Stats() engine.Stats
	Throttles() []status.LimitState
	Healthy() error

	// Serving reports whether the server takes requests, and Clients how many gave
	// a sign of life of late.
	Serving() bool
	Clients() int
}

// Handler responds to GET /metrics with the counts of the source, the other collectors, and the
// metrics of the Go runtime and the process. The query selects series of topics and groups: topic
// and group by name, and totals=only their sums. It logs errors.
func Handler(of Source, log *slog.Logger, others ...prometheus.Collector) http.Handler {
	others = append(others, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := func(part selection) http.Handler {
		r := prometheus.NewRegistry()
		r.MustRegister(&collector{of, part})
		r.MustRegister(others...)
		return promhttp.HandlerFor(r, promhttp.HandlerOpts{
			ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelError),
			ErrorHandling: promhttp.ContinueOnError,
		})
	}
	all := handler(selection{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := all
		if part := selectionOf(r); part != (selection{}) {
			h = handler(part)
		}
		h.ServeHTTP(w, r)
	})
}

// The values of labels are names of existing topics and groups, and fixed words, but never clients,
// messages or other texts of a request. A client that can receive can create groups, at most
// broker.Options.MaxAutoGroups.
var (
	topicLabels = []string{"topic"}
	groupLabels = []string{"topic", "group"}
	storeLabels = []string{"database"} // "messages" or "groups"

	descTopicStoredMessages   = desc("topic_stored_messages", "Messages stored in the topic, consumed or not.", topicLabels)
	descTopicStoredBytes      = desc("topic_stored_bytes", "Bytes of message bodies stored in the topic, consumed or not.", topicLabels)
	descTopicBacklogMessages  = desc("topic_backlog_messages", "Backlog of the topic's slowest group in messages; without a group, all stored messages.", topicLabels)
	descTopicBacklogBytes     = desc("topic_backlog_bytes", "Backlog of the topic's slowest group in bytes; without a group, all stored messages.", topicLabels)
	descTopicAcceptedMessages = desc("topic_accepted_messages_total", "Messages accepted by the topic, including dead letters. Delayed messages count at their delivery time, half messages at their commit.", topicLabels)
	descTopicAcceptedBytes    = desc("topic_accepted_bytes_total", "Bytes of message bodies accepted by the topic, counted at the same time as their messages.", topicLabels)
	descTopicDuplicates       = desc("topic_duplicate_messages_total", "Duplicate sends, which got the receipt of the stored message.", topicLabels)
	descTopicRemoved          = desc("topic_removed_messages_total", "Removed messages, by cause: retention by time, by bytes, after consumption by every group, or a purge.", append(topicLabels, "cause"))
	descTopicThrottled        = desc("topic_throttled", "1 while sends to the topic are throttled, 0 otherwise.", topicLabels)

	descTopicDelayedMessages = desc("topic_delayed_messages", "Messages waiting for their delivery time. They are not stored messages yet, but count for the limits of the topic.", topicLabels)
	descTopicDelayedBytes    = desc("topic_delayed_bytes", "Bytes of message bodies waiting for their delivery time.", topicLabels)

	descTopicHalf   = desc("topic_half_messages", "Half messages of unresolved transactions.", topicLabels)
	descTopicEnded  = desc("topic_transactions_ended_total", "Ended transactions, by outcome: committed, rolled back, or abandoned after the last check.", append(topicLabels, "outcome"))
	descTopicChecks = desc("topic_transaction_checks_total", "Transaction checks, by outcome: sent to a producer, or unheard because no producer was connected.", append(topicLabels, "outcome"))

	descGroupBacklogMessages = desc("group_backlog_messages", "Messages of the topic that the group has not consumed.", groupLabels)
	descGroupBacklogBytes    = desc("group_backlog_bytes", "Bytes of message bodies that the group has not consumed.", groupLabels)
	descGroupReady           = desc("group_ready_messages", "Messages ready for delivery: new messages, and retries that are due. Those of parked and blocked message groups are not ready.", groupLabels)
	descGroupInflight        = desc("group_in_flight_messages", "Messages delivered and neither acknowledged nor failed yet.", groupLabels)
	descGroupWaitingRetry    = desc("group_waiting_retry_messages", "Messages waiting for their retry.", groupLabels)
	descGroupOldest          = desc("group_oldest_age_seconds", "Age of the oldest message that the group has not consumed: ready, in flight or waiting for a retry. 0 if there is none.", groupLabels)
	descGroupUndelivered     = desc("group_oldest_undelivered_age_seconds", "Age of the oldest message that was never delivered to the group. 0 if there is none.", groupLabels)
	descGroupParked          = desc("group_parked_messages", "Messages in parked message groups. A message group is parked after the last attempt of a message.", groupLabels)
	descGroupBlocked         = desc("group_blocked_messages", "Messages behind the failed messages of blocked message groups. Such a message is retried without end.", groupLabels)
	descGroupParkedGroups    = desc("group_parked_message_groups", "Message groups that are parked after the last attempt of a message.", groupLabels)
	descGroupBlockedGroups   = desc("group_blocked_message_groups", "Message groups blocked by a message that has used all its attempts and is retried without end.", groupLabels)
	descGroupWaiting         = desc("group_waiting_receives", "Receives waiting for a message.", groupLabels)
	descGroupDeliveries      = desc("group_deliveries_total", "Deliveries by delivery attempt.", append(groupLabels, "attempt"))
	descGroupAcknowledged    = desc("group_acknowledged_messages_total", "Messages that the group acknowledged.", groupLabels)
	descGroupFiltered        = desc("group_filtered_messages_total", "Messages skipped because the filter of the consumer did not match them.", groupLabels)
	descGroupOvertaken       = desc("group_overtaken_messages_total", "Messages that retention removed before the group consumed them.", groupLabels)
	descGroupDeadLetters     = desc("group_dead_letters_total", "Messages that became dead letters of the group, by reason: after their last attempt, or at the request of a consumer.", append(groupLabels, "reason"))

	descGroupDiscarded = desc("group_discarded_messages_total", "Messages removed for the group without becoming dead letters, by reason: after their last attempt without a dead-letter-address, or expired before delivery.", append(groupLabels, "reason"))

	descRefused         = desc("refused_messages_total", "Rejected messages, by reason.", []string{"reason"})
	descThrottled       = desc("throttled_messages_total", "Messages rejected with TOO_MANY_REQUESTS, by limit.", []string{"limit"})
	descLimitOn         = desc("limit_reached", "Topics that the limit throttles now. For limits of groups, subscriptions; for limits of all sends, 0 or 1.", []string{"limit"})
	descDamaged         = desc("damaged_messages_total", "Corrupt messages that were skipped, counted for each group. Corrupt dead letters count each time they are listed.", nil)
	descDelayedLateness = desc("delayed_lateness_seconds", "Time from the delivery time of a delayed message until it was in its queue.", nil)
	descRetryLateness   = desc("retry_lateness_seconds", "Time from the due time of a retry until the message was ready.", nil)

	descClockTrusted = desc("clock_trusted", "1 while the broker trusts its wall clock. 0 for ten minutes after the clock was set, or after a start with a clock that differs by more than an hour from the newest time in the data directory.", nil)
	descClockKept    = desc("clock_kept_messages", "Messages that are too old by a wall clock that is not trusted, and are kept, by the reason for which they would be removed: the retention of their topic, or the expiry-delay of their address.", []string{"reason"})

	descHealthy       = desc("store_healthy", "1 while messages can be stored, 0 otherwise.", nil)
	descCommit        = desc("store_commit_seconds", "Duration of the commit of a batch, including the fsync if the commit waits for it.", storeLabels)
	descCommitRecords = desc("store_commit_records", "Records in a commit. One fsync covers all of them.", storeLabels)
	descCommitBytes   = desc("store_commit_bytes_total", "Bytes committed.", storeLabels)
	descFsync         = desc("store_fsync_seconds", "Duration of the fsyncs of the write-ahead log.", storeLabels)
	descDisk          = desc("store_disk_bytes", "Size of the files of the database.", storeLabels)
	descWAL           = desc("store_wal_bytes", "Size of the write-ahead log.", storeLabels)
	descMemTables     = desc("store_memtable_bytes", "Size of the memory tables, which are not flushed to disk tables yet.", storeLabels)
	descDebt          = desc("store_compaction_debt_bytes", "Estimated bytes that must be compacted.", storeLabels)
	descReadAmp       = desc("store_read_amplification", "Maximum number of tables that one read searches.", storeLabels)
	descL0            = desc("store_l0_files", "Tables in level 0.", storeLabels)
	descCompactions   = desc("store_compactions_total", "Compactions.", storeLabels)
	descFlushes       = desc("store_flushes_total", "Flushes of memory tables.", storeLabels)
	descCacheHits     = desc("store_cache_hits_total", "Blocks found in the cache.", nil)
	descCacheMisses   = desc("store_cache_misses_total", "Blocks read from disk.", nil)

	descSessions = desc("sessions", "Clients with an open Telemetry stream, a waiting receive, or a recent request or heartbeat.", nil)
	descReady    = desc("ready", "1 while the server accepts requests and messages can be stored, 0 otherwise.", nil)
)

// descs are all that desc returned; it is called by the variables above alone.
var descs []*prometheus.Desc

func desc(name, help string, labels []string) *prometheus.Desc {
	d := prometheus.NewDesc("tidegate_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs {
		out <- d
	}
}

// A scrape writes one response of a collector.
type scrape chan<- prometheus.Metric

func (out scrape) gauge(d *prometheus.Desc, v int64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
}

func (out scrape) counter(d *prometheus.Desc, v int64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (out scrape) histogram(d *prometheus.Desc, h engine.Histogram, labels ...string) {
	buckets := make(map[float64]uint64, len(h.Bounds))
	var n uint64
	for i, bound := range h.Bounds {
		n += h.Counts[i]
		buckets[bound] = n // Prometheus' buckets have those below them in them
	}
	out <- prometheus.MustNewConstHistogram(d, h.Count(), h.Sum, buckets, labels...)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	out := scrape(to)
	st := c.of.Stats()
	c.part.apply(&st)
	for i := range st.Topics {
		out.topic(&st.Topics[i])
	}
	for i := range st.Groups {
		out.subscription(&st.Groups[i])
	}
	for reason, n := range st.Refused {
		out.counter(descRefused, n, string(reason))
	}
	for limit, n := range st.Throttled {
		out.counter(descThrottled, n, strings.ReplaceAll(limit, " ", "_"))
	}
	reached := map[string]int64{}
	for _, l := range c.of.Throttles() {
		reached[l.Limit] += one(l.On)
	}
	for limit := range st.Throttled {
		switch limit {
		case "client quota", "fair share", "other": // which reject a client, not a topic
			continue
		}
		out.gauge(descLimitOn, reached[limit], strings.ReplaceAll(limit, " ", "_"))
	}
	out.counter(descDamaged, st.Damaged)
	out.histogram(descRetryLateness, st.RetryLateness)
	out.histogram(descDelayedLateness, st.DelayedLateness)
	out.store(&st.MessageStore, "messages")
	out.store(&st.GroupStore, "groups")
	out.counter(descCacheHits, st.CacheHits)
	out.counter(descCacheMisses, st.CacheMisses)
	out.clock(st.Clock)
	healthy := c.of.Healthy() == nil
	out.gauge(descHealthy, one(healthy))
	out.gauge(descReady, one(healthy && c.of.Serving()))
	out.gauge(descSessions, int64(c.of.Clients()))
}

func (out scrape) clock(c *status.Clock) {
	out.gauge(descClockTrusted, one(c == nil))
	if c == nil {
		c = &status.Clock{}
	}
	out.gauge(descClockKept, c.Kept, "retention")
	out.gauge(descClockKept, c.Postponed, "expiry")
}

func (out scrape) topic(t *engine.TopicCount) {
	out.gauge(descTopicStoredMessages, t.Stored.Messages, t.Name)
	out.gauge(descTopicStoredBytes, t.Stored.Bytes, t.Name)
	out.gauge(descTopicDelayedMessages, t.Delayed.Messages, t.Name)
	out.gauge(descTopicDelayedBytes, t.Delayed.Bytes, t.Name)
	out.gauge(descTopicBacklogMessages, t.Backlog.Messages, t.Name)
	out.gauge(descTopicBacklogBytes, t.Backlog.Bytes, t.Name)
	out.counter(descTopicAcceptedMessages, t.Accepted, t.Name)
	out.counter(descTopicAcceptedBytes, t.AcceptedBytes, t.Name)
	out.counter(descTopicDuplicates, t.Duplicates, t.Name)
	for cause, n := range t.Removed {
		out.counter(descTopicRemoved, n, t.Name, retention.Cause(cause).String())
	}
	out.gauge(descTopicThrottled, one(t.Throttle != nil), t.Name)
	if x := t.Transactions; x != nil {
		out.gauge(descTopicHalf, t.Half, t.Name)
		out.counter(descTopicEnded, x.Committed, t.Name, "committed")
		out.counter(descTopicEnded, x.RolledBack, t.Name, "rolled_back")
		out.counter(descTopicEnded, x.Abandoned, t.Name, "abandoned")
		out.counter(descTopicChecks, x.Checks, t.Name, "sent")
		out.counter(descTopicChecks, x.Unheard, t.Name, "unheard")
	}
}

func (out scrape) subscription(s *engine.GroupCount) {
	out.gauge(descGroupBacklogMessages, s.Backlog.Messages, s.Topic, s.Group)
	out.gauge(descGroupBacklogBytes, s.Backlog.Bytes, s.Topic, s.Group)
	out.gauge(descGroupReady, s.Ready, s.Topic, s.Group)
	out.gauge(descGroupInflight, s.Inflight, s.Topic, s.Group)
	out.gauge(descGroupWaitingRetry, s.WaitingRetry, s.Topic, s.Group)
	out.gauge(descGroupParked, s.Parked, s.Topic, s.Group)
	out.gauge(descGroupBlocked, s.Blocked, s.Topic, s.Group)
	out <- prometheus.MustNewConstMetric(descGroupOldest, prometheus.GaugeValue, float64(s.OldestMS)/1000, s.Topic, s.Group)
	out.gauge(descGroupParkedGroups, s.ParkedGroups, s.Topic, s.Group)
	out.gauge(descGroupBlockedGroups, s.BlockedGroups, s.Topic, s.Group)
	out.gauge(descGroupWaiting, s.Waiting, s.Topic, s.Group)
	out <- prometheus.MustNewConstMetric(descGroupUndelivered, prometheus.GaugeValue, float64(s.UndeliveredMS)/1000, s.Topic, s.Group)
	for i, n := range s.Deliveries {
		out.counter(descGroupDeliveries, n, s.Topic, s.Group, attemptLabels[i])
	}
	out.counter(descGroupAcknowledged, s.Acked, s.Topic, s.Group)
	out.counter(descGroupFiltered, s.Filtered, s.Topic, s.Group)
	out.counter(descGroupOvertaken, s.Overtaken, s.Topic, s.Group)
	out.counter(descGroupDeadLetters, s.DeadLetters-s.GivenUp, s.Topic, s.Group, "attempts_exhausted")
	out.counter(descGroupDeadLetters, s.GivenUp, s.Topic, s.Group, "asked_for")
	out.counter(descGroupDiscarded, s.Discarded, s.Topic, s.Group, "attempts_exhausted")
	out.counter(descGroupDiscarded, s.Expired, s.Topic, s.Group, "expired")
}

func (out scrape) store(s *engine.StoreStats, name string) {
	out.histogram(descCommit, s.Commit, name)
	out.histogram(descCommitRecords, s.CommitRecords, name)
	out.counter(descCommitBytes, s.CommitBytes, name)
	out.histogram(descFsync, s.Fsync, name)
	out.gauge(descDisk, s.Disk, name)
	out.gauge(descWAL, s.WAL, name)
	out.gauge(descMemTables, s.MemTables, name)
	out.gauge(descDebt, s.CompactionDebt, name)
	out.gauge(descReadAmp, s.ReadAmplification, name)
	out.gauge(descL0, s.L0Files, name)
	out.counter(descCompactions, s.Compactions, name)
	out.counter(descFlushes, s.Flushes, name)
}

// attemptLabels are the classes of engine.AttemptBounds: "1", "2", "3", "4-8", "9+".
var attemptLabels = func() []string {
	var labels []string
	from := 1
	for _, to := range engine.AttemptBounds {
		if from == to {
			labels = append(labels, fmt.Sprint(to))
		} else {
			labels = append(labels, fmt.Sprintf("%d-%d", from, to))
		}
		from = to + 1
	}
	return append(labels, fmt.Sprintf("%d+", from))
}()

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// allSubjects is the value of the labels topic and group of a sum. It is no name of a topic.
const allSubjects = "*"

// A selection is a part of the series with the labels topic and group. The zero value is all.
type selection struct {
	totals       bool   // only the sums, with the label "*"
	topic, group string // only these; empty means all
}

// selectionOf reads the query of a request. It ignores unknown parameters, as Prometheus may add
// some.
func selectionOf(r *http.Request) selection {
	q := r.URL.Query()
	return selection{totals: q.Get("totals") == "only", topic: q.Get("topic"), group: q.Get("group")}
}

// apply leaves the selected topics and subscriptions in st, or their sums.
func (s selection) apply(st *engine.Stats) {
	if s.topic != "" || s.group != "" {
		st.Groups = slices.DeleteFunc(st.Groups, func(x engine.GroupCount) bool {
			return s.topic != "" && x.Topic != s.topic || s.group != "" && x.Group != s.group
		})
		st.Topics = slices.DeleteFunc(st.Topics, func(x engine.TopicCount) bool {
			return s.topic != "" && x.Name != s.topic || s.topic == "" // a group alone selects no topic
		})
	}
	if !s.totals {
		return
	}
	t := engine.TopicCount{TopicSummary: status.TopicSummary{Name: allSubjects}}
	for i := range st.Topics {
		addTopic(&t, &st.Topics[i])
	}
	g := engine.GroupCount{GroupSummary: status.GroupSummary{Group: allSubjects, Topic: allSubjects}}
	for i := range st.Groups {
		addSubscription(&g, &st.Groups[i])
	}
	st.Topics, st.Groups = []engine.TopicCount{t}, []engine.GroupCount{g}
}

func addBacklog(to *status.Backlog, b status.Backlog) {
	to.Messages += b.Messages
	to.Bytes += b.Bytes
}

// addTopic adds a topic to the sum. The throttle of the sum is one of those in force.
func addTopic(sum, t *engine.TopicCount) {
	addBacklog(&sum.Stored, t.Stored)
	addBacklog(&sum.Delayed, t.Delayed)
	addBacklog(&sum.Backlog, t.Backlog)
	sum.Accepted += t.Accepted
	sum.AcceptedBytes += t.AcceptedBytes
	sum.Half += t.Half
	sum.Duplicates += t.Duplicates
	for cause, n := range t.Removed {
		sum.Removed[cause] += n
	}
	if t.Throttle != nil {
		sum.Throttle = t.Throttle
	}
	if x := t.Transactions; x != nil {
		if sum.Transactions == nil {
			sum.Transactions = &engine.TransactionStats{}
		}
		to := sum.Transactions
		to.Committed += x.Committed
		to.RolledBack += x.RolledBack
		to.Abandoned += x.Abandoned
		to.Checks += x.Checks
		to.Unheard += x.Unheard
	}
}

// addSubscription adds a subscription to the sum. The ages of the sum are the highest.
func addSubscription(sum, s *engine.GroupCount) {
	addBacklog(&sum.Backlog, s.Backlog)
	sum.Ready += s.Ready
	sum.Inflight += s.Inflight
	sum.WaitingRetry += s.WaitingRetry
	sum.Parked += s.Parked
	sum.Blocked += s.Blocked
	sum.ParkedGroups += s.ParkedGroups
	sum.BlockedGroups += s.BlockedGroups
	sum.Acked += s.Acked
	sum.Redelivered += s.Redelivered
	sum.DeadLetters += s.DeadLetters
	sum.Overtaken += s.Overtaken
	sum.Discarded += s.Discarded
	sum.Expired += s.Expired
	sum.Filtered += s.Filtered
	sum.Waiting += s.Waiting
	sum.GivenUp += s.GivenUp
	for i, n := range s.Deliveries {
		sum.Deliveries[i] += n
	}
	sum.OldestMS, sum.UndeliveredMS = max(sum.OldestMS, s.OldestMS), max(sum.UndeliveredMS, s.UndeliveredMS)
}
