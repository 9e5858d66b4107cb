package broker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// kill sends messages to a topic and makes them dead letters of g, a second
// after one another, with their ID as the reason.
func kill(t *testing.T, b *broker.Broker, ms ...*tidegate.Message) {
	t.Helper()
	for _, m := range ms {
		mustSend(t, b, m)
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: m.Topic})
		if len(ds) != 1 {
			t.Fatalf("%d deliveries", len(ds))
		}
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "because of " + m.ID}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

func letterIDs(p status.DeadLetterPage) (out []string) {
	for _, l := range p.DeadLetters {
		out = append(out, l.MessageID)
	}
	return out
}

func listLetters(t *testing.T, b *broker.Broker, f status.DeadLetterFilter) []string {
	t.Helper()
	page, err := b.DeadLetters("g", status.DeadLetterQuery{DeadLetterFilter: f})
	if err != nil {
		t.Fatal(err)
	}
	return letterIDs(page)
}

// Dead letters are read without being consumed, by pages, and filtered.
func TestDeadLettersAreBrowsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "u", settings.Topic{})
		if _, err := b.DeadLetters("g", status.DeadLetterQuery{}); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("of a group that is not there: %v", err)
		}
		putGroup(t, b, "g", settings.Group{})
		if got := listLetters(t, b, status.DeadLetterFilter{}); len(got) != 0 {
			t.Errorf("at first: %v", got)
		}
		start := time.Now()
		for i, topic := range []string{"t", "u", "t", "t", "u"} {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: topic, Body: []byte{byte(i)}})
		}
		for want, f := range map[string]status.DeadLetterFilter{
			"m0 m1 m2 m3 m4": {},
			"m0 m2 m3":       {Topic: "t"},
			"m1 m4":          {MessageIDs: []string{"m4", "m1", "x"}},
			"m3":             {Reason: "of m3"},
			"m2 m3 m4":       {Since: start.Add(2 * time.Second)},
			"m0 m1":          {Before: start.Add(2 * time.Second)},
			"m2":             {Topic: "t", Since: start.Add(time.Second), Before: start.Add(3 * time.Second)},
			"":               {Topic: "v"},
		} {
			if got := strings.Join(listLetters(t, b, f), " "); got != want {
				t.Errorf("%+v: %q, want %q", f, got, want)
			}
		}
		var all []string
		for after, pages := "", 0; pages == 0 || after != ""; pages++ {
			page, err := b.DeadLetters("g", status.DeadLetterQuery{After: after, Limit: 2})
			if err != nil || len(page.DeadLetters) > 2 {
				t.Fatalf("%+v, %v", page, err)
			}
			all, after = append(all, letterIDs(page)...), page.Next
		}
		if got := strings.Join(all, " "); got != "m0 m1 m2 m3 m4" {
			t.Errorf("by pages: %s", got)
		}
		page, err := b.DeadLetters("g", status.DeadLetterQuery{Limit: 1, Bodies: true})
		if err != nil {
			t.Fatal(err)
		}
		l := page.DeadLetters[0]
		want := tidegate.DeadLetter{Topic: "t", MessageID: "m0", Queue: l.Origin.Queue, Group: "g", Attempts: 1, Reason: "because of m0"}
		if l.Origin != want || l.Offset != 0 || !l.StoredAt.Equal(start) || string(l.Body) != "\x00" {
			t.Errorf("%+v", l)
		}
		for _, bad := range []status.DeadLetterQuery{{After: "x"}, {After: "1"}, {After: "0--1"}, {Limit: -1}, {Limit: 1001}} {
			if _, err := b.DeadLetters("g", bad); !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if err := b.DeleteGroup(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
		if got := listLetters(t, b, status.DeadLetterFilter{}); len(got) != 5 {
			t.Errorf("of a group that was deleted: %v", got)
		}
	})
}

// A redriven message has the content of the sent message: its body, tag, keys, group, trace and
// properties. It also has the same ID, although the topic remembers that, and a count.
func TestDeadLettersAreRedriven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 3})
		m := &tidegate.Message{
			ID: "m", Topic: "t", MessageGroup: "mg", Tag: "tag", Keys: []string{"a", "b"}, Properties: map[string]string{"k": "v"},
			TraceContext: "00-x", Body: []byte("body"),
		}
		kill(t, b, m)
		for round := 1; round <= 3; round++ {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
			if err != nil || done != (status.DeadLetterRedrive{Redriven: 1}) {
				t.Fatalf("%+v, %v", done, err)
			}
			if got := listLetters(t, b, status.DeadLetterFilter{}); len(got) != 0 {
				t.Errorf("they are still there: %v", got)
			}
			if topic, err := b.Topic("%DLQ%g"); err != nil || topic.StoredMessages != 0 || topic.StoredBytes != 0 || topic.Backlog != (status.Backlog{}) {
				t.Errorf("the dead letters' topic is %+v, %v", topic, err)
			}
			if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done != (status.DeadLetterRedrive{}) {
				t.Errorf("once more: %+v, %v", done, err)
			}
			if round == 2 { // its place is not given away
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				if topic, err := b.Topic("%DLQ%g"); err != nil || topic.StoredMessages != 0 || topic.StoredBytes != 0 {
					t.Errorf("after a restart the dead letters' topic is %+v, %v", topic, err)
				}
			}
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
			got := d.Message
			want := *m.Clone()
			want.Properties = map[string]string{"k": "v", protocol.PropertyDeadLetterRedrives: fmt.Sprint(round)}
			if d.Attempt != 1 || !reflect.DeepEqual(got, want) {
				t.Errorf("attempt %d of %+v, want %+v", d.Attempt, got, want)
			}
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"}); err != nil {
				t.Fatal(err)
			}
			page, err := b.DeadLetters("g", status.DeadLetterQuery{})
			if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Redrives != round || page.DeadLetters[0].Offset != int64(round) {
				t.Fatalf("%+v, %v", page, err)
			}
		}
		done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{MaxRedrives: 3})
		if err != nil || done != (status.DeadLetterRedrive{TooOften: 1}) {
			t.Errorf("the fourth time: %+v, %v", done, err)
		}
	})
}

// The selected letters move, the rest stays. A target that does not exist, or rejects such
// messages, leaves a dead letter in its place.
func TestRedriveSelects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		for _, topic := range []string{"t", "u", "v"} {
			putTopic(t, b, topic, settings.Topic{})
		}
		putTopic(t, b, "fifo", settings.Topic{Type: settings.TopicFIFO})
		for i, topic := range []string{"t", "u", "t", "u", "v", "t"} {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: topic, Body: []byte("x")})
		}
		if err := b.DeleteTopic(t.Context(), "v"); err != nil {
			t.Fatal(err)
		}
		redrive := func(sel status.DeadLetterSelection, want status.DeadLetterRedrive, left string) {
			t.Helper()
			done, err := b.RedriveDeadLetters(t.Context(), "g", sel)
			next := done.Next
			if done.Next = ""; err != nil || done != want {
				t.Errorf("%+v: %+v, %v; want %+v", sel, done, err, want)
			}
			if got := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "); got != left {
				t.Errorf("%+v leaves %q, want %q", sel, got, left)
			}
			if (next != "") != (sel.Limit > 0) {
				t.Errorf("%+v continues at %q", sel, next)
			}
		}
		redrive(status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m2"}}}, status.DeadLetterRedrive{Redriven: 1}, "m0 m1 m3 m4 m5")
		redrive(status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Topic: "u"}, Limit: 1}, status.DeadLetterRedrive{Redriven: 1}, "m0 m3 m4 m5")
		redrive(status.DeadLetterSelection{To: "fifo"}, status.DeadLetterRedrive{NoTarget: 4}, "m0 m3 m4 m5")
		redrive(status.DeadLetterSelection{}, status.DeadLetterRedrive{Redriven: 3, NoTarget: 1}, "m4")
		redrive(status.DeadLetterSelection{To: "u"}, status.DeadLetterRedrive{Redriven: 1}, "")
		for topic, want := range map[string]int{"t": 3 + 2, "u": 2 + 3} { // m0 m2 m5 twice; m1 m3 twice, m4
			if n := len(receiveAll(t, b, topic)); n != want && topic == "u" || topic == "t" && n != 6 {
				t.Errorf("topic %s has %d messages", topic, n)
			}
		}
		for want, sel := range map[string]status.DeadLetterSelection{"40402": {To: "v"}, "another topic": {To: "%DLQ%g"}, "100000": {Limit: 100_001}} {
			if _, err := b.RedriveDeadLetters(t.Context(), "g", sel); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v", sel, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.RedriveDeadLetters(ctx, "g", status.DeadLetterSelection{}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// A topic that throttles stops a redrive, which reports its progress. The rest follows later.
func TestRedriveStopsAtAThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for i := range 9 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("x")})
		}
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 5}})
		done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
		if !errors.Is(err, tidegate.ErrThrottled) || done.Redriven != 5 || done.Throttle == nil || done.Next != "0-5" {
			t.Fatalf("%+v, %v", done, err)
		}
		if got := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "); got != "m5 m6 m7 m8" {
			t.Errorf("left: %s", got)
		}
		ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		done, err = b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{After: done.Next})
		if err != nil || done != (status.DeadLetterRedrive{Redriven: 4}) {
			t.Errorf("%+v, %v", done, err)
		}
	})
}

// Purged letters are gone, also for the consumers of the dead letters and in the counters.
func TestDeadLettersArePurged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		for i := range 6 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("0123456789")})
		}
		read := func() *tidegate.Delivery {
			return receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g", InvisibleDuration: time.Second})[0]
		}
		read() // m0: in flight, and read ahead
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m0", "m1", "m3", "m5"}}})
		if err != nil || done != (status.DeadLetterPurge{Purged: 4}) {
			t.Fatalf("%+v, %v", done, err)
		}
		for round := range 2 {
			topic, err := b.Topic("%DLQ%g")
			if err != nil || topic.StoredMessages != 2 || topic.StoredBytes != 20 {
				t.Errorf("the topic is %+v, %v", topic, err)
			}
			if got := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "); got != "m2 m4" {
				t.Errorf("left: %s", got)
			}
			if round == 0 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, want := range []string{"m2", "m4", "m6"} {
			if want == "m6" { // behind a hole, at a place of its own
				kill(t, b, &tidegate.Message{ID: "m6", Topic: "t", Body: []byte("0123456789")})
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g", InvisibleDuration: time.Hour, Wait: time.Second})
			if len(ds) != 1 || ds[0].ID != want {
				t.Fatalf("received %v, want %s", idsOf(ds), want)
			}
			ackDeliveries(t, b, ds)
		}
		if g, err := b.Group("reader"); err != nil || g.Topics[0].Backlog != (status.Backlog{}) {
			t.Errorf("the reader is left with %+v, %v", g.Topics, err)
		}
		if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Purged != 3 {
			t.Errorf("the rest: %+v, %v", done, err)
		}
		for _, to := range []status.Position{{Earliest: true}, {Latest: true}, {Time: time.Now()}} {
			if _, err := b.Rewind(t.Context(), "reader", "%DLQ%g", to); err != nil {
				t.Fatal(err)
			}
			kill(t, b, &tidegate.Message{Topic: "t", Body: []byte("0123456789")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g"})
			if len(ds) != 1 {
				t.Fatalf("rewound to %+v: %d messages", to, len(ds))
			}
			ackDeliveries(t, b, ds)
			if g, err := b.Group("reader"); err != nil || g.Topics[0].Backlog != (status.Backlog{}) {
				t.Errorf("rewound to %+v the reader is left with %+v, %v", to, g.Topics, err)
			}
			if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Purged != 1 {
				t.Errorf("%+v, %v", done, err)
			}
		}
	})
}

// Whenever the power fails during a redrive: each message is among the dead
// letters or in its topic, never both and never neither.
func TestRedriveAcrossPowerLoss(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(5), loseRedrive)
}

func loseRedrive(t *testing.T, seed uint64) {
	const n, pages = 100, 10
	b := losePower(t, rand.New(rand.NewPCG(seed, 0)), pages, func(b *broker.Broker, p *powerCut) {
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		for i := range n {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
		}
		for i := 0; i < n; {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
			for _, d := range ds {
				if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
					t.Fatal(err)
				}
			}
			i += len(ds)
		}
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		for page, after := 0, ""; page == 0 || after != ""; page++ {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n / pages, After: after})
			if err != nil {
				t.Fatal(err)
			}
			after = done.Next
			p.responded(func() {})
		}
	})
	checkClasses(t, b, "g", "")
	seen := map[string]int{}
	for _, topic := range []string{"t", "%DLQ%g"} {
		for _, d := range receiveAll(t, b, topic) {
			seen[d.ID]++
		}
	}
	if len(seen) != n || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("%d messages of %d, %v", len(seen), n, seen)
	}
}

// An unreadable dead letter is skipped and counted. It does not keep those after it.
func TestDamagedDeadLetter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(context.Context, *broker.Broker) error
		left string
	}{
		"browse": {func(context.Context, *broker.Broker) error { return nil }, "[0 2]"},
		"redrive": {func(ctx context.Context, b *broker.Broker) error {
			done, err := b.RedriveDeadLetters(ctx, "g", status.DeadLetterSelection{})
			if done.Redriven != 2 || done.Next != "" {
				return fmt.Errorf("%+v, %w", done, err)
			}
			return err
		}, "[]"},
		"purge": {func(ctx context.Context, b *broker.Broker) error {
			done, err := b.PurgeDeadLetters(ctx, "g", status.DeadLetterSelection{})
			if done.Purged != 2 || done.Next != "" {
				return fmt.Errorf("%+v, %w", done, err)
			}
			return err
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{})
				for i := range 3 {
					kill(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
				}
				corruptMessage(t, b, "%DLQ%g", 0, 1)
				if err := c.do(t.Context(), b); err != nil {
					t.Error(err)
				}
				before := serve(b).Stats().Damaged
				if got := fmt.Sprint(listLetters(t, b, status.DeadLetterFilter{})); got != c.left {
					t.Errorf("%s are left, want %s", got, c.left)
				}
				if n := serve(b).Stats().Damaged - before; n != 1 {
					t.Errorf("%d damaged messages were counted", n)
				}
			})
		})
	}
}

// Messages that retention has passed, and that only an unacknowledged delivery keeps, are not among
// the dead letters that are browsed, redriven or purged: the counters stay right.
func TestKeptDeadLettersAreLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		kill(t, b, &tidegate.Message{Topic: "t", ID: "old", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", InvisibleDuration: time.Hour})
		elapse(2 * time.Minute)
		kill(t, b, &tidegate.Message{Topic: "t", ID: "new", Body: []byte("x")})
		if got := fmt.Sprint(listLetters(t, b, status.DeadLetterFilter{})); got != "[new]" {
			t.Errorf("%s are listed", got)
		}
		if n := stored(t, b, "%DLQ%g"); n != 2 {
			t.Errorf("%d dead letters are stored, want 2", n)
		}
		if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Purged != 1 {
			t.Error(done, err)
		}
		if n := stored(t, b, "%DLQ%g"); n != 1 {
			t.Errorf("%d dead letters are stored, want that which is in flight", n)
		}
		if err := b.Ack(t.Context(), d)[0]; err != nil {
			t.Error(err)
		}
		elapse(2 * time.Minute)
		if n := stored(t, b, "%DLQ%g"); n != 0 {
			t.Errorf("%d dead letters are stored, want none", n)
		}
	})
}
