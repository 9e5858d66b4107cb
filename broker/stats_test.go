package broker_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
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
	"github.com/tidegate/tidegate/transport"
)

func TestStats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, err := broker.Open(broker.Options{Dir: dir, MinInvisibleDuration: 1, ClientQuota: settings.Quota{MessagesPerSecond: 1, Burst: 3}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { b.Close() }()
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Bytes: 100}})
		send := func(m engine.Incoming) error {
			m.Topic, m.Body = "t", make([]byte, 20)
			return serve(b).Append(t.Context(), []engine.Incoming{m})[0].Err
		}
		for i := range 4 { // the fourth is beyond the client's quota
			if err := send(engine.Incoming{Message: &tidegate.Message{ID: fmt.Sprint("a", i)}, Client: "c"}); (err != nil) != (i == 3) {
				t.Fatal(i, err)
			}
		}
		for i := range 4 { // the last two are beyond the topic's limit
			if err := send(engine.Incoming{Message: &tidegate.Message{ID: fmt.Sprint("b", i)}}); (err != nil) != (i > 1) {
				t.Fatal(i, err)
			}
		}
		if err := send(engine.Incoming{Message: &tidegate.Message{ID: ""}}); err == nil {
			t.Fatal("a message without an ID was accepted")
		}
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
		if st.MessageStore.Fsync.Count() == 0 || st.MessageStore.Disk == 0 || st.GroupStore.Disk == 0 {
			t.Errorf("no fsync, or no file: %+v", st.MessageStore)
		}

		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Minute, Push: true})
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
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
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if closed := serve(b).Stats(); closed.MessageStore.Disk != 0 || len(closed.Topics) != 1 {
			t.Errorf("a closed broker reports %+v", closed)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "t", Body: []byte("b")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Minute})[0]
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
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
	if len(names) < 20 {
		t.Fatalf("only %d files were found", len(names))
	}
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if strings.Contains(i.Path.Value, "prometheus") && name != filepath.Join("internal", "store", "histogram.go") {
				t.Errorf("%s imports %s: the engine returns its Stats, package server turns them into metrics", name, i.Path.Value)
			}
		}
	}
}
