package broker_test

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestStats(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		b, err := broker.Open(broker.Options{Dir: dir, MinInvisibleDuration: 1, ClientQuota: settings.Quota{MessagesPerSecond: 1, Burst: 3}})
		assert.Must(t, err)
		defer func() { b.Close() }()
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Bytes: 100}})
		send := func(m engine.Incoming) error {
			m.Topic, m.Body = "t", make([]byte, 20)
			return serve(b).Append(t.Context(), []engine.Incoming{m})[0].Err
		}
		for i := range 4 { // the fourth is beyond the client's quota
			err := send(engine.Incoming{Message: &tidegate.Message{ID: fmt.Sprint("a", i)}, Client: "c"})
			assert.MustThat(t, (err != nil) == (i == 3), "%+v, %+v", i, err)
		}
		for i := range 4 { // the last two are beyond the topic's limit
			err := send(engine.Incoming{Message: &tidegate.Message{ID: fmt.Sprint("b", i)}})
			assert.MustThat(t, (err != nil) == (i > 1), "%+v, %+v", i, err)
		}
		assert.MustThat(t, send(engine.Incoming{Message: &tidegate.Message{ID: ""}}) != nil, "a message without an ID was accepted")
		time.Sleep(7 * time.Second)
		st := serve(b).Stats()
		if len(st.Topics) != 1 || st.Topics[0].Accepted != 5 || st.Topics[0].AcceptedBytes != 100 || st.Topics[0].Throttle == nil {
			t.Errorf("topics %+v: want one, with 5 messages of 100 bytes accepted, throttled", st.Topics)
		}
		for reason, want := range map[engine.RefusalReason]int64{engine.RefusedThrottled: 3, engine.RefusedInvalid: 1, engine.RefusedNoTopic: 0, engine.RefusedUnknown: 0, engine.RefusedOther: 0} {
			if st.Refused[reason] != want {
				t.Errorf("%d refused: %s, want %d", st.Refused[reason], reason, want)
			}
		}
		for limit, want := range map[string]int64{engine.ClientQuota: 1, "topic backlog bytes": 2, "topic backlog messages": 0, "other": 0} {
			if st.Throttled[limit] != want {
				t.Errorf("%d throttled by %s, want %d", st.Throttled[limit], limit, want)
			}
		}
		if n := st.MessageStore.Commit.Count(); n < 6 || st.MessageStore.CommitRecords.Sum < 7 || st.MessageStore.CommitRecords.Count() != n || st.MessageStore.CommitBytes < 100 {
			t.Errorf("message log: %d commits, %v records, %d bytes; want at least 6 commits with the topic's 2 records and 5 messages",
				n, st.MessageStore.CommitRecords.Sum, st.MessageStore.CommitBytes)
		}
		assert.That(t, st.MessageStore.Fsync.Count() != 0 && st.MessageStore.Disk != 0 && st.GroupStore.Disk != 0,
			"no fsync, or no file: %+v", st.MessageStore)

		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Minute, Push: true})
		settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		sub := serve(b).Stats().Groups[0]
		if sub.Group != "g" || sub.Topic != "t" || sub.UndeliveredMS != 9000 || sub.Ready != 4 || sub.Inflight != 1 || sub.Deliveries != [5]int64{2} {
			t.Errorf("subscription %+v: want 4 ready, 1 in flight, the oldest new message 9 s old", sub)
		}
		if l := serve(b).Stats().RetryLateness; l.Count() != 1 || l.Sum != 0 {
			t.Errorf("retry lateness %+v: want one retry, in time", l)
		}

		// A restart keeps the content and resets the counters.
		assert.Must(t, b.Close())
		closed := serve(b).Stats()
		assert.That(t, closed.MessageStore.Disk == 0 && len(closed.Topics) == 1, "a closed broker reports %+v", closed)
		if b, err = broker.Open(broker.Options{Dir: dir, MinInvisibleDuration: 1}); err != nil {
			t.Fatal(err)
		}
		st = serve(b).Stats()
		if st.Topics[0].Accepted != 0 || st.Topics[0].Stored != (status.Backlog{Messages: 5, Bytes: 100}) || st.Groups[0].Backlog != (status.Backlog{Messages: 5, Bytes: 100}) {
			t.Errorf("after a restart: %+v, %+v; want nothing accepted, 5 messages stored and in the backlog", st.Topics, st.Groups)
		}
	})
}

// A delayed message counts as accepted at its delivery time, also after a restart.
func TestDelayedMessagesAreAcceptedWhenDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		files := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(files))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		for _, after := range []time.Duration{time.Minute, time.Hour} {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(after)})
		}
		for i, after := range []time.Duration{0, time.Minute, time.Hour} {
			if i == 2 {
				b = reopen(t, b, files)
			}
			elapse(after)
			if st := serve(b).Stats().Topics[0]; st.Accepted != int64(min(i, 1)) || st.Delayed.Messages != int64(2-i) {
				t.Errorf("after %v: %+v", after, st)
			}
		}
	})
}

func TestRetryLatenessIsMeasured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "t", Body: []byte("b")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Minute})[0]
		settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		for _, s := range subscriptions(b) { // a processor that is busy for 3 s
			s.Stop()
		}
		time.Sleep(4*time.Second - time.Millisecond)
		// A receive whose wait ends looks for due messages as the timer does.
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Millisecond})
		if l := serve(b).Stats().RetryLateness; l.Count() != 1 || l.Sum != 3 {
			t.Errorf("lateness %+v, want one of 3 s", l)
		}
	})
}

// Only package server, the packages above it, and the file of the histograms import Prometheus.
func TestEngineDoesNotImportPrometheus(t *testing.T) {
	t.Parallel()
	var names []string
	for _, dir := range []string{".", "internal"} {
		if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if dir == "." && d != nil && d.IsDir() && name != "." {
				return fs.SkipDir
			}
			if strings.HasSuffix(name, ".go") {
				names = append(names, name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	assert.MustThat(t, len(names) >= 20, "only %d files were found", len(names))
	for _, name := range names {
		f := assert.Value(parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly))(t)
		for _, i := range f.Imports {
			assert.That(t, !strings.Contains(i.Path.Value, "prometheus") || name == filepath.Join("internal", "store", "histogram.go"),
				"%s imports %s: the engine returns its Stats, package server turns them into metrics", name, i.Path.Value)
		}
	}
}

// A survey counts the messages of each state, and has ages, rates and counts of the operations.
func TestSurvey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		opened := time.Now()
		putTopic(t, b, "orders", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 12}})
		putTopic(t, b, "quiet", settings.Topic{Type: settings.TopicDelay, Queues: 3})
		putGroup(t, b, "billing", settings.Group{})
		putGroup(t, b, "unused", settings.Group{})
		serve(b).Survey() // the first sample of the rates
		for i := range 12 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("12345")})
		}
		mustSend(t, b, &tidegate.Message{ID: "late", Topic: "quiet", Body: []byte("1"), DeliverAt: time.Now().Add(time.Hour)})
		if err := send(t, b, &tidegate.Message{ID: "13", Topic: "orders", Body: []byte("1")})[0].Err; codeOf(err) != tidegate.CodeTooManyRequests {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 5, InvisibleDuration: time.Hour})
		assert.MustEqual(t, "received", len(ds), 5)
		received := time.Now()
		settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
		settle(t, b, ds[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
		ackDeliveries(t, b, ds[2:3])
		time.Sleep(time.Second)

		s := serve(b).Survey()
		if !s.Opened.Equal(opened) || !s.At.Equal(time.Now()) {
			t.Errorf("opened %v, at %v; want %v, %v", s.Opened, s.At, opened, time.Now())
		}
		var names []string
		for _, row := range s.Topics {
			names = append(names, row.Name)
		}
		if got, want := fmt.Sprint(names), "[%DLQ%billing orders quiet]"; got != want {
			t.Errorf("topics %s, want %s", got, want)
		}
		orders := s.Topics[1]
		if th := orders.Throttle; th == nil || th.Limit != "topic backlog messages" {
			t.Errorf("throttle %+v, want that of the backlog", th)
		}
		orders.Throttle = nil
		if want := (status.TopicSummary{
			Name: "orders", Type: settings.TopicNormal, Queues: 1, Stored: status.Backlog{Messages: 12, Bytes: 60}, Backlog: status.Backlog{Messages: 10, Bytes: 50},
			OldestMS: 4000, InRate: 3, OutRate: orders.OutRate, Accepted: 12, Acked: 1, Groups: 1,
		}); orders != want || orders.OutRate <= 0 {
			t.Errorf("topic\n%+v, want\n%+v and a rate", orders, want)
		}
		if want := (status.TopicSummary{Name: "quiet", Type: settings.TopicDelay, Queues: 3, Delayed: status.Backlog{Messages: 1, Bytes: 1}}); s.Topics[2] != want {
			t.Errorf("topic\n%+v, want\n%+v", s.Topics[2], want)
		}
		assert.MustThat(t, len(s.Groups) == 2 && s.Groups[1] == (status.GroupSummary{Group: "unused"}), "groups %+v", s.Groups)
		if h := s.Groups[0].Held; h == nil || *h != (status.Holding{Messages: 2, Since: received, Until: received.Add(time.Hour)}) {
			t.Errorf("held %+v, want both messages in flight", h)
		}
		s.Groups[0].Held = nil
		if got, want := s.Groups[0], (status.GroupSummary{
			Group: "billing", Topic: "orders", Ready: 7, Inflight: 2, WaitingRetry: 1, Backlog: status.Backlog{Messages: 10, Bytes: 50},
			OldestMS: 4000, UndeliveredMS: 4000, InRate: 3, OutRate: s.Groups[0].OutRate, Acked: 1, DeadLetters: 1, DeadLettersHour: 1, DeadLettersStored: 1, Why: "working",
		}); got != want {
			t.Errorf("group\n%+v, want\n%+v", got, want)
		}
		if got, want := s.Totals, (status.Totals{
			Topics: 3, Groups: 2, Subscriptions: 1, Stored: status.Backlog{Messages: 13, Bytes: 65}, Delayed: status.Backlog{Messages: 1, Bytes: 1},
			Backlog: status.Backlog{Messages: 10, Bytes: 50}, Ready: 7, Inflight: 2, WaitingRetry: 1, OldestMS: 4000, UndeliveredMS: 4000,
			InRate: 3, OutRate: s.Groups[0].OutRate, DeadLettersHour: 1, DeadLettersStored: 1,
		}); got != want {
			t.Errorf("totals\n%+v, want\n%+v", got, want)
		}
		if c := s.Counters; c.Accepted != (status.Backlog{Messages: 13, Bytes: 65}) || c.Delivered != 5 || c.Acked != 1 || c.DeadLetters != 1 || c.Rejected["throttled"] != 1 || c.Throttled["topic backlog messages"] != 1 {
			t.Errorf("counters %+v", c)
		}
		assert.That(t, len(s.Throttles) == 1 && s.Throttles[0].Subject == "orders" && s.Throttles[0].On,
			"throttles %+v, want that of orders", s.Throttles)

		time.Sleep(66 * time.Minute)
		if g := serve(b).Survey().Groups[0]; g.DeadLettersHour != 0 || g.DeadLetters != 1 || g.DeadLettersStored != 1 {
			t.Errorf("an hour later %+v: want no dead letter of the last hour, and one stored", g)
		}
		assert.Must(t, assert.Err(b.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{})))
		if s := serve(b).Survey(); s.Groups[0].DeadLettersStored != 0 || s.Totals.DeadLettersStored != 0 || s.Groups[0].DeadLetters != 1 {
			t.Errorf("after the purge %+v: want no stored dead letter", s.Groups[0])
		}
		assert.Must(t, b.DeleteGroup(t.Context(), "billing"))
		assert.Must(t, b.DeleteTopic(t.Context(), "quiet"))
		putTopic(t, b, "a", settings.Topic{Queues: 1})
		s = serve(b).Survey()
		assert.That(t, len(s.Topics) == 3 && s.Topics[1].Name == "a" && len(s.Groups) == 1 && s.Groups[0].Group == "unused",
			"after changes, topics %+v, groups %+v", s.Topics, s.Groups)
	})
}

// A closed broker has the counts, and reads nothing.
func TestSurveyOfClosedBroker(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		assert.Must(t, b.Close())
		s := serve(b).Survey()
		assert.That(t, s.Totals.Backlog.Messages == 1 && s.Storage.DiskBytes == 0 && s.Groups[0].OldestMS == 0, "%+v", s)
	})
}

// An observer may observe some names, or all.
type observer struct {
	whole bool
	names []string
}

func (o observer) Broker() bool           { return o.whole }
func (o observer) Topic(name string) bool { return o.whole || slices.Contains(o.names, name) }
func (o observer) Group(name string) bool { return o.Topic(name) }

// historyOf returns the history of everything, or of names that begin with group or topic.
func historyOf(t *testing.T, b *broker.Broker, day bool, names ...string) *engine.HistoryResult {
	t.Helper()
	q := engine.HistoryQuery{Day: day, Observer: observer{whole: true}}
	for _, name := range names {
		if group, ok := strings.CutPrefix(name, "group "); ok {
			q.Groups = append(q.Groups, group)
		} else {
			q.Topics = append(q.Topics, name)
		}
	}
	h := assert.Value(serve(b).History(t.Context(), q))(t)
	return h
}

// wantSeries compares the lists of a series with texts such as "accepted [4 1]".
func wantSeries(t *testing.T, s *engine.HistorySeries, want ...string) {
	t.Helper()
	var got []string
	for _, list := range []struct {
		name   string
		values []int64
	}{
		{"accepted", s.Accepted}, {"delivered", s.Delivered}, {"acked", s.Acked}, {"redelivered", s.Redelivered},
		{"dead", s.DeadLetters}, {"backlog", s.Backlog}, {"retry", s.WaitingRetry},
	} {
		if list.values != nil {
			got = append(got, fmt.Sprint(list.name, " ", list.values))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has\n%s\nwant\n%s", s.Name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The history has the messages and the backlogs of each 10 s, of topics, groups and in total.
// While nothing changes the broker samples nothing, and the history goes on.
func TestHistory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opened := time.Now()
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "orders", settings.Topic{Queues: 1, DuplicateWindow: -1})
		putTopic(t, b, "quiet", settings.Topic{Queues: 1})
		putGroup(t, b, "billing", settings.Group{})
		time.Sleep(3 * time.Second)
		for i := range 4 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")})
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 3, InvisibleDuration: time.Hour})
		ackDeliveries(t, b, ds[:1])
		if _, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: 30 * time.Second}); err != nil { // due after 33 s, in slot 3
			t.Fatal(err)
		}
		settle(t, b, ds[2], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
		time.Sleep(9 * time.Second)
		mustSend(t, b, &tidegate.Message{ID: "5", Topic: "orders", Body: []byte("x")})
		time.Sleep(53 * time.Second) // after 65 s, in slot 6

		h := historyOf(t, b, false, "orders", "quiet", "none", "group billing", "group none")
		if !h.AsOf.Equal(time.Now()) || !h.Started.Equal(opened) || h.StepMS != 10_000 || len(h.Topics) != 2 || len(h.Groups) != 1 || h.Total != nil {
			t.Fatalf("%+v", h)
		}
		orders, billing := h.Topics[0], h.Groups[0]
		wantSeries(t, &orders, "accepted [4 1 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]")
		wantSeries(t, &h.Topics[1], "accepted [0 0 0 0 0 0 0]", "acked [0 0 0 0 0 0 0]", "backlog [0 0 0 0 0 0 0]")
		wantSeries(t, &billing, "delivered [3 0 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "redelivered [0 0 0 0 0 0 0]",
			"dead [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]", "retry [1 1 1 0 0 0 0]")
		if !orders.From.Equal(opened) || orders.Counters != (engine.HistoryCounters{Accepted: 5, Acked: 1}) ||
			billing.Counters != (engine.HistoryCounters{Delivered: 3, Acked: 1, DeadLetters: 1}) || orders.LeftOut || billing.LeftOut {
			t.Errorf("orders %+v, billing %+v", orders, billing)
		}
		total := historyOf(t, b, false)
		wantSeries(t, total.Total, "accepted [5 1 0 0 0 0 0]", "delivered [3 0 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "redelivered [0 0 0 0 0 0 0]",
			"dead [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]", "retry [1 1 1 0 0 0 0]") // a dead letter is stored, too
		assert.That(t, total.Total.Counters.Accepted == 6 && *total.LeftOut == (engine.HistoryLeftOut{}), "%+v", total)

		time.Sleep(time.Minute) // the last note of a change is sampled
		before, _ := b.Engine().Parts().HistoryUse(t.Context())
		time.Sleep(26 * time.Hour)
		rounds, _ := b.Engine().Parts().HistoryUse(t.Context())
		assert.That(t, rounds == before, "%d rounds in a day without a change", rounds-before)
		h = historyOf(t, b, true, "orders")
		zeros := fmt.Sprint(make([]int64, 289))
		wantSeries(t, &h.Topics[0], "accepted "+zeros, "acked "+zeros, "backlog "+strings.ReplaceAll(zeros, "0", "3"))
		if from := h.Topics[0].From; from.After(time.Now().Add(-24*time.Hour)) || from.Before(time.Now().Add(-24*time.Hour-5*time.Minute)) {
			t.Errorf("the day begins at %v, now is %v", from, time.Now())
		}
		mustSend(t, b, &tidegate.Message{ID: "6", Topic: "orders", Body: []byte("x")})
		time.Sleep(time.Second)
		s := historyOf(t, b, false, "orders").Topics[0]
		if n := len(s.Accepted); n != 361 || s.Accepted[n-1] != 1 || slices.Max(s.Accepted[:n-1]) != 0 || s.Backlog[n-1] != 4 || s.Backlog[n-2] != 3 {
			t.Errorf("after a day without a change: %v, backlogs %v", s.Accepted, s.Backlog)
		}
	})
}

// The messages of a deleted topic stay in the totals, and its place in the history is free. A topic
// of the same name begins anew.
func TestHistoryOfADeletedTopic(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "orders", settings.Topic{Queues: 1, DuplicateWindow: -1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")}, &tidegate.Message{ID: "2", Topic: "orders", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 1, InvisibleDuration: time.Hour})
		time.Sleep(15 * time.Second)
		_, used := b.Engine().Parts().HistoryUse(t.Context())
		assert.Must(t, b.DeleteTopic(t.Context(), "orders"))
		time.Sleep(10 * time.Second)
		_, now := b.Engine().Parts().HistoryUse(t.Context())
		assert.That(t, now < used, "%d bytes after the deletion, %d before it", now, used)
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		time.Sleep(5 * time.Second) // after 30 s
		h := historyOf(t, b, false, "orders", "group billing")
		wantSeries(t, &h.Topics[0], "accepted [1 0]", "acked [0 0]", "backlog [1 1]")
		if !h.Topics[0].From.Equal(h.Started.Add(20 * time.Second)) {
			t.Errorf("the new topic begins at %v", h.Topics[0].From.Sub(h.Started))
		}
		wantSeries(t, &h.Groups[0], "delivered [1 0 0 0]", "acked [0 0 0 0]", "redelivered [0 0 0 0]", "dead [0 0 0 0]", "backlog [2 0 0 0]", "retry [0 0 0 0]")
		wantSeries(t, historyOf(t, b, false).Total, "accepted [2 0 1 0]", "delivered [1 0 0 0]", "acked [0 0 0 0]", "redelivered [0 0 0 0]", "dead [0 0 0 0]",
			"backlog [2 0 0 0]", "retry [0 0 0 0]")
	})
}

// A restart begins a new history, with the backlogs of the first sample.
func TestHistoryAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := broker.NewMemory()
		b := open(t, broker.Options{Memory: memory})
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		time.Sleep(25 * time.Second)
		assert.Must(t, b.Close())
		restarted := time.Now()
		b = open(t, broker.Options{Memory: memory})
		time.Sleep(12 * time.Second)
		h := historyOf(t, b, false, "orders")
		wantSeries(t, &h.Topics[0], "accepted [0 0]", "acked [0 0]", "backlog [1 1]")
		if !h.Started.Equal(restarted) || !h.Topics[0].From.Equal(restarted) {
			t.Errorf("started %v, from %v; want %v", h.Started, h.Topics[0].From, restarted)
		}
	})
}

// The sums of a caller are those of the names that it may observe, and so are the counts of what
// the history left out. The total of the broker has all messages, however small the memory is.
func TestHistoryOfACaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const memory, topics = 16 << 10, 40
		b := open(t, broker.Options{MaxAutoGroups: 2 * topics}.HistoryMemory(memory))
		for i := range topics {
			putTopic(t, b, fmt.Sprintf("t%02d", i), settings.Topic{Queues: 1, DuplicateWindow: -1})
		}
		id := 0
		sendTo := func(topic string, n int) {
			for range n {
				id++
				mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(id), Topic: topic, Body: []byte("x")})
			}
		}
		time.Sleep(time.Second) // away from the ends of slots
		for range 6 {
			for i := range topics {
				sendTo(fmt.Sprintf("t%02d", i), 1+i/10)
				ds := receive(t, b, transport.ReceiveRequest{Group: fmt.Sprintf("g%02d", i), Topic: fmt.Sprintf("t%02d", i), Max: 1, InvisibleDuration: time.Hour})
				ackDeliveries(t, b, ds)
			}
			time.Sleep(10 * time.Second)
			_, used := b.Engine().Parts().HistoryUse(t.Context())
			assert.MustThat(t, used <= memory, "the history uses %d bytes of %d", used, memory)
		}
		all := historyOf(t, b, false)
		wantSeries(t, all.Total, "accepted [100 100 100 100 100 100 0]", "delivered [40 40 40 40 40 40 0]", "acked [40 40 40 40 40 40 0]",
			"redelivered [0 0 0 0 0 0 0]", "dead [0 0 0 0 0 0 0]", "backlog [60 120 180 240 300 360 360]", "retry [0 0 0 0 0 0 0]")
		if all.LeftOut.Topics == 0 || all.LeftOut.Groups == 0 || all.LeftOut.Topics+all.LeftOut.Groups == 2*topics {
			t.Fatalf("%+v is left out of %d topics and groups", *all.LeftOut, topics)
		}
		kept, lost := "", ""
		for i := range topics {
			name := fmt.Sprintf("t%02d", i)
			if s := historyOf(t, b, false, name).Topics[0]; s.LeftOut {
				lost = name
			} else {
				kept = name
				want := int64(1 + i/10)
				assert.That(t, s.Accepted[0] == want && s.Accepted[5] == want && s.Counters.Accepted == 6*want, "%s: %+v", name, s)
			}
		}
		some := func(names ...string) *engine.HistoryResult {
			h := assert.Value(serve(b).History(t.Context(), engine.HistoryQuery{Observer: observer{names: names}}))(t)
			return h
		}
		n := historyOf(t, b, false, kept).Topics[0]
		of := some(kept)
		if *of.LeftOut != (engine.HistoryLeftOut{}) || !slices.Equal(of.Total.Accepted, n.Accepted) || of.Total.Counters != (engine.HistoryCounters{Accepted: n.Counters.Accepted}) {
			t.Errorf("the total of %s alone is %+v, left out %+v", kept, of.Total, of.LeftOut)
		}
		assert.That(t, slices.Max(of.Total.Backlog)+slices.Max(of.Total.Delivered)+slices.Max(of.Total.Acked) == 0,
			"the total of a caller without groups has %+v", of.Total)
		assert.Equal(t, "left out of two topics", *some(kept, lost).LeftOut, (engine.HistoryLeftOut{Topics: 1}))
	})
}

// Each failure of a delivery is recorded with its cause and the fate of the message.
func TestFailures(t *testing.T) {
	t.Parallel()
	fail := func(after time.Duration, reason string) func(*testing.T, *broker.Broker, *tidegate.Delivery) error {
		return func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: after, Reason: reason})
			return err
		}
	}
	long := strings.Repeat("x", 2<<10)
	for name, c := range map[string]struct {
		group   settings.Group
		address settings.Address
		topic   settings.TopicType
		do      func(*testing.T, *broker.Broker, *tidegate.Delivery) error // nil for a timeout
		want    status.Failure
	}{
		"retry":        {settings.Group{}, settings.Address{}, "", fail(5*time.Second, "no account 17"), status.Failure{Reason: "no account 17", Cause: "failed", Fate: "retry", Delay: settings.Duration(5 * time.Second)}},
		"no reason":    {settings.Group{}, settings.Address{}, "", fail(0, ""), status.Failure{Cause: "failed", Fate: "retry"}},
		"long reason":  {settings.Group{}, settings.Address{}, "", fail(0, long), status.Failure{Reason: long[:1<<10], Cause: "failed", Fate: "retry"}},
		"last":         {settings.Group{MaxAttempts: 1}, settings.Address{}, "", fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "dead_letter"}},
		"removed":      {settings.Group{}, settings.Address{MaxDeliveryAttempts: new(1)}, "", fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "removed"}},
		"parked":       {settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark}, settings.Address{}, settings.TopicFIFO, fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "parked"}},
		"blocked":      {settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock}, settings.Address{}, settings.TopicFIFO, fail(time.Second, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "blocked", Delay: settings.Duration(time.Second)}},
		"timeout":      {settings.Group{}, settings.Address{}, "", nil, status.Failure{Cause: "timeout", Fate: "retry"}},
		"last timeout": {settings.Group{MaxAttempts: 1}, settings.Address{}, "", nil, status.Failure{Cause: "timeout", Fate: "dead_letter"}},
		"requested": {settings.Group{}, settings.Address{}, "", func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
			return err
		}, status.Failure{Reason: "poison", Cause: "dead_letter", Fate: "dead_letter"}},
		"retry topic": {settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, settings.Address{}, "", func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second})
			return err
		}, status.Failure{Cause: "reconsume_later", Fate: "retry_topic", Delay: settings.Duration(7 * time.Second)}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Type: c.topic, Queues: 1})
			putAddress(t, b, "t", c.address)
			putGroup(t, b, "g", c.group)
			m := &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")}
			if c.topic == settings.TopicFIFO {
				m.MessageGroup = "mg"
			}
			mustSend(t, b, m)
			d := one(t, b, "g", "t")
			if c.do == nil {
				elapse(31 * time.Second)
			} else if err := c.do(t, b, d); err != nil {
				t.Fatal(err)
			}
			page, err := serve(b).Failures("g", status.FailureQuery{})
			assert.MustThat(t, err == nil && len(page.Failures) == 1 && page.Next == "", "%+v, %v", page, err)
			got := page.Failures[0]
			assert.That(t, (got.Fingerprint != "") == (c.want.Reason != "") && time.Since(got.Time) <= time.Minute, "%+v", got)
			c.want.Time, c.want.Fingerprint, c.want.Topic, c.want.MessageID, c.want.Attempt = got.Time, got.Fingerprint, "t", "m", 1
			assert.Equal(t, "got", got, c.want)
			trace, err := serve(b).Trace("t", status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m"}}, 0, func(string) bool { return true })
			assert.MustThat(t, err == nil && len(trace.Messages) == 1, "%+v, %v", trace, err)
			c.want.MessageID = ""
			for _, f := range trace.Messages[0].Groups {
				assert.That(t, f.Group != "g" || len(f.Failures) == 1 && f.Failures[0] == c.want,
					"the trace has %+v, want %+v", f.Failures, c.want)
			}
		})
	}
}

// Pages have all failures once, the newest first; the settlements that are no failures have none.
func TestFailurePages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		for _, topic := range []string{"t", "u"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			for range 5 {
				mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
				settle(t, b, one(t, b, "g", topic), transport.Verdict{Kind: transport.Retry, Delay: time.Hour, Reason: topic})
			}
			mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
			assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{one(t, b, "g", topic)})[0])
			mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
			settle(t, b, one(t, b, "g", topic), transport.Verdict{Kind: transport.Snooze, Delay: time.Hour})
		}
		for limit := 1; limit < 12; limit++ {
			for topic, want := range map[string]string{"": "u4 u3 u2 u1 u0 t4 t3 t2 t1 t0", "t": "t4 t3 t2 t1 t0"} {
				var got []string
				for after := ""; ; {
					page, err := serve(b).Failures("g", status.FailureQuery{Topic: topic, Limit: limit, After: after})
					assert.MustThat(t, err == nil && len(page.Failures) <= limit, "%+v, %v", page, err)
					for _, f := range page.Failures {
						got = append(got, fmt.Sprint(f.Topic, f.Offset))
					}
					if after = page.Next; after == "" {
						break
					}
				}
				assert.That(t, strings.Join(got, " ") == want, "by %d, topic %q: %v, want %s", limit, topic, got, want)
			}
		}
		for _, c := range []struct {
			group string
			query status.FailureQuery
			want  tidegate.Code
		}{
			{"x", status.FailureQuery{}, protocol.CodeConsumerGroupNotFound},
			{"g", status.FailureQuery{Limit: 1001}, tidegate.CodeBadRequest},
			{"g", status.FailureQuery{After: "x"}, tidegate.CodeBadRequest},
			{"g", status.FailureQuery{After: "0"}, tidegate.CodeBadRequest},
		} {
			_, err := serve(b).Failures(c.group, c.query)
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == c.want, "%+v: %v", c, err)
		}
		assert.Must(t, b.DeleteGroup(t.Context(), "g"))
		putGroup(t, b, "g", settings.Group{})
		page, err := serve(b).Failures("g", status.FailureQuery{})
		assert.That(t, err == nil && len(page.Failures) == 0, "a new group has %+v, %v", page, err)
	})
}
