package broker_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
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
		assert.MustEqual(t, "deliveries", len(ds), 1)
		settle(t, b, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "because of " + m.ID})
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
	page := assert.Value(b.DeadLetters("g", status.DeadLetterQuery{DeadLetterFilter: f}))(t)
	return letterIDs(page)
}

// Dead letters are read without being consumed, by pages, and filtered.
func TestDeadLettersAreBrowsed(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "u", settings.Topic{})
		assert.Is(t, "of a group that is not there", assert.Err(b.DeadLetters("g", status.DeadLetterQuery{})), tidegate.ErrNotFound)
		putGroup(t, b, "g", settings.Group{})
		assert.Equal(t, "at first", len(listLetters(t, b, status.DeadLetterFilter{})), 0)
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
			got := strings.Join(listLetters(t, b, f), " ")
			assert.That(t, got == want, "%+v: %q, want %q", f, got, want)
		}
		var all []string
		for after, pages := "", 0; pages == 0 || after != ""; pages++ {
			page, err := b.DeadLetters("g", status.DeadLetterQuery{After: after, Limit: 2})
			assert.MustThat(t, err == nil && len(page.DeadLetters) <= 2, "%+v, %v", page, err)
			all, after = append(all, letterIDs(page)...), page.Next
		}
		assert.Equal(t, "by pages", strings.Join(all, " "), "m0 m1 m2 m3 m4")
		page := assert.Value(b.DeadLetters("g", status.DeadLetterQuery{Limit: 1, Bodies: true}))(t)
		l := page.DeadLetters[0]
		want := tidegate.DeadLetter{Topic: "t", MessageID: "m0", Queue: l.Origin.Queue, Group: "g", Attempts: 1, Reason: "because of m0"}
		assert.That(t, l.Origin == want && l.Offset == 0 && l.StoredAt.Equal(start) && string(l.Body) == "\x00", "%+v", l)
		for _, bad := range []status.DeadLetterQuery{{After: "x"}, {After: "1"}, {After: "0--1"}, {Limit: -1}, {Limit: 1001}} {
			_, err := b.DeadLetters("g", bad)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v", bad, err)
		}
		assert.Must(t, b.DeleteGroup(t.Context(), "g"))
		assert.Equal(t, "of a group that was deleted", len(listLetters(t, b, status.DeadLetterFilter{})), 5)
	})
}

// A redriven message has the content of the sent message: its body, tag, keys, group, trace and
// properties. It also has the same ID, although the topic remembers that, and a count.
func TestDeadLettersAreRedriven(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 3})
		m := &tidegate.Message{
			ID: "m", Topic: "t", MessageGroup: "mg", Tag: "tag", Keys: []string{"a", "b"}, Properties: map[string]string{"k": "v"},
			TraceContext: "00-x", Body: []byte("body"),
		}
		kill(t, b, m)
		for round := 1; round <= 3; round++ {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
			assert.MustThat(t, err == nil && done == (status.DeadLetterRedrive{Redriven: 1}), "%+v, %v", done, err)
			assert.Equal(t, "they are still there", len(listLetters(t, b, status.DeadLetterFilter{})), 0)
			if topic, err := b.Topic("%DLQ%g"); err != nil || topic.StoredMessages != 0 || topic.StoredBytes != 0 || topic.Backlog != (status.Backlog{}) {
				t.Errorf("the dead letters' topic is %+v, %v", topic, err)
			}
			if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done != (status.DeadLetterRedrive{}) {
				t.Errorf("once more: %+v, %v", done, err)
			}
			if round == 2 { // its place is not given away
				b = reopen(t, b, fs)
				if topic, err := b.Topic("%DLQ%g"); err != nil || topic.StoredMessages != 0 || topic.StoredBytes != 0 {
					t.Errorf("after a restart the dead letters' topic is %+v, %v", topic, err)
				}
			}
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
			got := d.Message
			want := *m.Clone()
			want.Properties = map[string]string{"k": "v", protocol.PropertyDeadLetterRedrives: fmt.Sprint(round)}
			assert.That(t, d.Attempt == 1 && reflect.DeepEqual(got, want), "attempt %d of %+v, want %+v", d.Attempt, got, want)
			settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"})
			page, err := b.DeadLetters("g", status.DeadLetterQuery{})
			if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Redrives != round || page.DeadLetters[0].Offset != int64(round) {
				t.Fatalf("%+v, %v", page, err)
			}
		}
		done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{MaxRedrives: 3})
		assert.That(t, err == nil && done == (status.DeadLetterRedrive{TooOften: 1}), "the fourth time: %+v, %v", done, err)
	})
}

// The selected letters move, the rest stays. A target that does not exist, or rejects such
// messages, leaves a dead letter in its place.
func TestRedriveSelects(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		for _, topic := range []string{"t", "u", "v"} {
			putTopic(t, b, topic, settings.Topic{})
		}
		putTopic(t, b, "fifo", settings.Topic{Type: settings.TopicFIFO})
		for i, topic := range []string{"t", "u", "t", "u", "v", "t"} {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: topic, Body: []byte("x")})
		}
		assert.Must(t, b.DeleteTopic(t.Context(), "v"))
		redrive := func(sel status.DeadLetterSelection, want status.DeadLetterRedrive, left string) {
			t.Helper()
			done, err := b.RedriveDeadLetters(t.Context(), "g", sel)
			next := done.Next
			if done.Next = ""; err != nil || done != want {
				t.Errorf("%+v: %+v, %v; want %+v", sel, done, err, want)
			}
			got := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " ")
			assert.That(t, got == left, "%+v leaves %q, want %q", sel, got, left)
			assert.That(t, (next != "") == (sel.Limit > 0), "%+v continues at %q", sel, next)
		}
		redrive(status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m2"}}}, status.DeadLetterRedrive{Redriven: 1}, "m0 m1 m3 m4 m5")
		redrive(status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Topic: "u"}, Limit: 1}, status.DeadLetterRedrive{Redriven: 1}, "m0 m3 m4 m5")
		redrive(status.DeadLetterSelection{To: "fifo"}, status.DeadLetterRedrive{NoTarget: 4}, "m0 m3 m4 m5")
		redrive(status.DeadLetterSelection{}, status.DeadLetterRedrive{Redriven: 3, NoTarget: 1}, "m4")
		redrive(status.DeadLetterSelection{To: "u"}, status.DeadLetterRedrive{Redriven: 1}, "")
		for topic, want := range map[string]int{"t": 3 + 2, "u": 2 + 3} { // m0 m2 m5 twice; m1 m3 twice, m4
			n := len(receiveAll(t, b, topic))
			assert.That(t, (n == want || topic != "u") && (topic != "t" || n == 6), "topic %s has %d messages", topic, n)
		}
		for want, sel := range map[string]status.DeadLetterSelection{"40402": {To: "v"}, "another topic": {To: "%DLQ%g"}, "100000": {Limit: 100_001}} {
			_, err := b.RedriveDeadLetters(t.Context(), "g", sel)
			assert.That(t, err != nil && strings.Contains(err.Error(), want), "%+v: %v", sel, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.RedriveDeadLetters(ctx, "g", status.DeadLetterSelection{})
		assert.That(t, err == nil || errors.Is(err, context.Canceled), "cancelled: %v", err)
	})
}

// One redrive, purge or other holder runs at a time.
func TestOneHolderOfDeadLetters(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		kill(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")})
		release := assert.Value(b.Engine().Parts().Letters.Hold(t.Context()))(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() { ended <- assert.Err(b.PurgeDeadLetters(ctx, "g", status.DeadLetterSelection{})) }()
		}
		synctest.Wait()
		left := listLetters(t, b, status.DeadLetterFilter{})
		assert.That(t, len(ended) == 0 && len(left) == 1, "%d purges have ended while another holder runs, and leave %q", len(ended), left)
		cause := errors.New("enough")
		cancel(cause)
		assert.Is(t, "the cancelled purge returned", <-ended, cause)
		release()
		assert.NoError(t, <-ended)
		assert.Slices(t, "left are", listLetters(t, b, status.DeadLetterFilter{}), nil)
	})
}

// A topic that throttles stops a redrive, which reports its progress. The rest follows later.
func TestRedriveStopsAtAThrottle(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for i := range 9 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("x")})
		}
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 5}})
		done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
		assert.MustThat(t, errors.Is(err, tidegate.ErrThrottled) && done.Redriven == 5 && done.Throttle != nil && done.Next == "0-5",
			"%+v, %v", done, err)
		assert.Equal(t, "left", strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "), "m5 m6 m7 m8")
		ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		done, err = b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{After: done.Next})
		assert.That(t, err == nil && done == (status.DeadLetterRedrive{Redriven: 4}), "%+v, %v", done, err)
	})
}

// Purged letters are gone, also for the consumers of the dead letters and in the counters.
func TestDeadLettersArePurged(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{})
		for i := range 6 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("0123456789")})
		}
		read := func() *tidegate.Delivery {
			return receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g", InvisibleDuration: time.Second})[0]
		}
		read() // m0: in flight, and read ahead
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m0", "m1", "m3", "m5"}}})
		assert.MustThat(t, err == nil && done == (status.DeadLetterPurge{Purged: 4}), "%+v, %v", done, err)
		for round := range 2 {
			topic, err := b.Topic("%DLQ%g")
			assert.That(t, err == nil && topic.StoredMessages == 2 && topic.StoredBytes == 20, "the topic is %+v, %v", topic, err)
			assert.Equal(t, "left", strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "), "m2 m4")
			if round == 0 {
				b = reopen(t, b, fs)
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
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "reader", "%DLQ%g", to)))
			kill(t, b, &tidegate.Message{Topic: "t", Body: []byte("0123456789")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g"})
			assert.MustThat(t, len(ds) == 1, "rewound to %+v: %d messages", to, len(ds))
			ackDeliveries(t, b, ds)
			if g, err := b.Group("reader"); err != nil || g.Topics[0].Backlog != (status.Backlog{}) {
				t.Errorf("rewound to %+v the reader is left with %+v, %v", to, g.Topics, err)
			}
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
			assert.That(t, err == nil && done.Purged == 1, "%+v, %v", done, err)
		}
	})
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
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			for i := range 3 {
				kill(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
			}
			corruptMessage(t, b, "%DLQ%g", 0, 1)
			assert.NoError(t, c.do(t.Context(), b))
			before := serve(b).Stats().Damaged
			assert.Equal(t, "are left", fmt.Sprint(listLetters(t, b, status.DeadLetterFilter{})), c.left)
			assert.Equal(t, "damaged messages were counted", serve(b).Stats().Damaged-before, 1)
		})
	}
}

// Messages that retention has passed, and that only an unacknowledged delivery keeps, are not among
// the dead letters that are browsed, redriven or purged: the counters stay right.
func TestKeptDeadLettersAreLeftAlone(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		kill(t, b, &tidegate.Message{Topic: "t", ID: "old", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", InvisibleDuration: time.Hour})
		elapse(2 * time.Minute)
		kill(t, b, &tidegate.Message{Topic: "t", ID: "new", Body: []byte("x")})
		assert.Equal(t, "are listed", fmt.Sprint(listLetters(t, b, status.DeadLetterFilter{})), "[new]")
		assert.Equal(t, "dead letters are stored", stored(t, b, "%DLQ%g"), 2)
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
		assert.That(t, err == nil && done.Purged == 1, "%+v, %+v", done, err)
		assert.Equal(t, "dead letters are stored", stored(t, b, "%DLQ%g"), 1)
		assert.NoError(t, b.Ack(t.Context(), d)[0])
		elapse(2 * time.Minute)
		assert.Equal(t, "dead letters are stored", stored(t, b, "%DLQ%g"), 0)
	})
}

// edit redrives the first dead letter of g with an edit.
func edit(t *testing.T, b *broker.Broker, alone bool, e status.DeadLetterEdit) (status.DeadLetterRedrive, error) {
	t.Helper()
	page, err := b.DeadLetters("g", status.DeadLetterQuery{})
	assert.MustThat(t, err == nil && len(page.DeadLetters) != 0, "%+v, %v", page, err)
	l := page.DeadLetters[0]
	e.Queue, e.Offset = l.Queue, l.Offset
	return b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{l.MessageID}}, ToGroupOnly: alone, Edit: &e})
}

// An edited letter comes with its changes and a new ID, to the group alone or to all groups. It
// keeps the rest, also through a restart and further failures and edits. The trace of the first
// message leads to the new one.
func TestEditedRedrive(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{true, false} {
		for name, group := range map[string]settings.Group{
			"no retry topics": {}, "retry topics": {RetryTopic: settings.RetryTopic{Enabled: true, DeadLetterTopic: "%DLQ%g"}},
		} {
			subtest(t, fmt.Sprint(name, ", alone: ", alone), func(t *testing.T) {
				b, fs := openData(t)
				putTopic(t, b, "t", settings.Topic{Queues: 2})
				putGroup(t, b, "g", group)
				nothing(t, b, "g", "t")
				nothing(t, b, "h", "t")
				kill(t, b, &tidegate.Message{ID: "m", Topic: "t", Tag: "tag", Keys: []string{"k"}, Properties: map[string]string{"p": "v", "r": "s"}, Body: []byte("x")})
				ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
				tag, value := "", "w"
				for round := 1; round <= 2; round++ {
					id, body := fmt.Sprint("m.redrive-", round), fmt.Sprint("body ", round)
					done, err := edit(t, b, alone, status.DeadLetterEdit{BodyText: body, Tag: &tag, Keys: []string{}, Properties: map[string]*string{"p": &value, "r": nil}})
					assert.MustThat(t, err == nil && done == (status.DeadLetterRedrive{Redriven: 1, SentAs: id}),
						"round %d: %+v, %v", round, done, err)
					left := listLetters(t, b, status.DeadLetterFilter{})
					assert.That(t, len(left) == 0, "round %d: %v are dead letters still", round, left)
					f := fateOfGroup(t, b, "g")
					assert.That(t, (f.RedrivenAs == id || round != 1) && (!alone || f.Topic == "%RETRY%g_t"),
						"round %d: the trace has %+v", round, f)
					b = reopen(t, b, fs)
					if alone {
						nothing(t, b, "h", "t")
					} else {
						ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
					}
					d := one(t, b, "g", "t")
					if d.ID != id || d.Topic != "t" || d.Attempt != 1 || d.Tag != "" || len(d.Keys) > 0 || string(d.Body) != body ||
						d.Properties["p"] != "w" || d.Properties["r"] != "" || d.Properties[protocol.PropertyDeadLetterRedrives] != fmt.Sprint(round) {
						t.Fatalf("round %d: %+v", round, d)
					}
					settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
					elapse(time.Minute)
					if d = one(t, b, "g", "t"); d.ID != id || d.Attempt != 2 {
						t.Errorf("round %d: after a retry %+v", round, d)
					}
					settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"})
					page, err := b.DeadLetters("g", status.DeadLetterQuery{})
					if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != "t" || page.DeadLetters[0].MessageID != id || page.DeadLetters[0].Origin.Redrives != round {
						t.Fatalf("round %d: %+v, %v", round, page, err)
					}
				}
			})
		}
	}
}

// An edit that cannot be executed exactly is rejected or has no effect, and the letter stays as it
// is.
func TestEditedRedriveRejects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxBodySize: 1000})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		kill(t, b, &tidegate.Message{ID: "m", Topic: "t", Properties: map[string]string{"p": "v"}, Body: []byte("x")})
		text := func(s string) *string { return &s }
		var many []string
		for range 200 {
			many = append(many, strings.Repeat("k", 100))
		}
		for name, tt := range map[string]struct {
			e    status.DeadLetterEdit
			says string
		}{
			"two bodies":      {status.DeadLetterEdit{Body: []byte("a"), BodyText: "a"}, "one of the two"},
			"large body":      {status.DeadLetterEdit{Body: make([]byte, 1001)}, "the limit is 1000"},
			"tag":             {status.DeadLetterEdit{Tag: text("a|b")}, "tag"},
			"blank key":       {status.DeadLetterEdit{Keys: []string{" "}}, "key"},
			"keys":            {status.DeadLetterEdit{Keys: many}, "16384"},
			"empty property":  {status.DeadLetterEdit{Properties: map[string]*string{"p": text("")}}, "is empty"},
			"count":           {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterRedrives: text("0")}}, "DLQ_REDRIVES"},
			"count removed":   {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterRedrives: nil}}, "DLQ_REDRIVES"},
			"system property": {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyRealTopic: text("other")}}, "REAL_TOPIC"},
			"origin removed":  {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterTopic: nil}}, "DLQ_ORIGIN_TOPIC"},
			"id":              {status.DeadLetterEdit{ID: "a\x1bb"}, "control character"},
		} {
			for _, alone := range []bool{true, false} {
				if done, err := edit(t, b, alone, tt.e); err == nil || !strings.Contains(err.Error(), tt.says) || done.Redriven != 0 || tidegate.Classify(err) == tidegate.ClassTransient {
					t.Errorf("%s: %+v, %v, want %q", name, done, err, tt.says)
				}
			}
		}
		place := func(e status.DeadLetterEdit) *status.DeadLetterEdit { return &e }
		m := status.DeadLetterFilter{MessageIDs: []string{"m"}}
		for name, s := range map[string]status.DeadLetterSelection{
			"all":      {Edit: place(status.DeadLetterEdit{})},
			"two":      {DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m", "n"}}, Edit: place(status.DeadLetterEdit{})},
			"after":    {DeadLetterFilter: m, After: "0-0", Edit: place(status.DeadLetterEdit{})},
			"newest":   {DeadLetterFilter: m, Newest: true, Edit: place(status.DeadLetterEdit{})},
			"queue":    {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Queue: -1})},
			"no queue": {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Queue: 1 << 16})},
			"offset":   {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Offset: -1})},
		} {
			done, err := b.RedriveDeadLetters(t.Context(), "g", s)
			assert.That(t, err != nil && done.Redriven == 0, "%s: %+v, %v, want an error", name, done, err)
		}
		page, err := b.DeadLetters("g", status.DeadLetterQuery{Bodies: true})
		assert.MustThat(t, err == nil && len(page.DeadLetters) == 1, "%+v, %v, want the letter", page, err)
		l := page.DeadLetters[0]
		for _, e := range []status.DeadLetterEdit{{Queue: l.Queue, Offset: l.Offset + 1}, {Queue: l.Queue + 1, Offset: l.Offset}} {
			for i := range 2 { // also a place before it
				e.Offset = max(0, e.Offset-2*int64(i))
				if e.Queue == l.Queue && e.Offset == l.Offset {
					continue
				}
				e.BodyText = "y"
				done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: m, Edit: &e})
				assert.That(t, err == nil && done == (status.DeadLetterRedrive{}), "another place: %+v, %v, want no effect", done, err)
			}
		}
		assert.That(t, string(l.Body) == "x" && slices.Equal(listLetters(t, b, status.DeadLetterFilter{}), []string{"m"}),
			"the letter is %+v", l)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}); len(ds) > 0 {
			t.Errorf("%+v came", ds[0])
		}
	})
}

// A purge is over for every receive that begins afterwards, also if one was
// reading the dead letters meanwhile.
func TestPurgedAreNotReadAhead(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		for i := range 6 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
		}
		d := one(t, b, "reader", "%DLQ%g")
		s, _ := locate(t, b, d)
		r := consume.Receive{Queue: transport.AnyQueue, Max: 1, MaxBytes: 1}
		var c consume.Claim
		s.Update(func(p *consume.Progress) { // as a receive does that is reading
			p.Begin(&r, time.Now())
			c, _ = p.Claim(&r, time.Now())
		})
		assert.MustThat(t, readAheadBytes(b) != 0, "nothing was read ahead")
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
		assert.MustThat(t, err == nil && done.Purged == 6, "%+v, %v", done, err)
		s.Update(func(p *consume.Progress) { p.Unclaim(&r, c.Queue) })
		ds := receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g", Max: 32})
		assert.That(t, len(ds) == 0, "%v were delivered after they had been purged", idsOf(ds))
	})
}

// A dead letter that was retried through a retry topic returns to its topic with its first content,
// without the delivery time of a retry.
func TestRetriedDeadLettersAreRedriven(t *testing.T) {
	t.Parallel()
	retries := settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 1}}
	reconsumed := func(t *testing.T, b *broker.Broker) {
		r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Level: 1})
		assert.MustThat(t, err == nil && r.Topic == "t-g-RETRY", "%+v, %v", r, err)
	}
	for name, c := range map[string]struct {
		topic settings.TopicType
		die   func(*testing.T, *broker.Broker)
	}{
		"given up": {settings.TopicNormal, func(t *testing.T, b *broker.Broker) {
			settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"})
		}},
		"last attempt": {settings.TopicNormal, func(t *testing.T, b *broker.Broker) {
			settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry})
		}},
		"last retry": {settings.TopicDelay, func(t *testing.T, b *broker.Broker) {
			r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic})
			assert.MustThat(t, err == nil && r.DeadLetter, "%+v, %v", r, err)
		}},
	} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: c.topic})
			putGroup(t, b, "g", retries)
			m := &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x"), Properties: map[string]string{"k": "v"}}
			if c.topic == settings.TopicDelay {
				m.DeliverAt = time.Now().Add(time.Minute)
			}
			mustSend(t, b, m)
			reconsumed(t, b)
			c.die(t, b)
			b = reopen(t, b, fs)
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t-g-DLQ"})
			assert.MustThat(t, err == nil && done == (status.DeadLetterRedrive{Redriven: 1}), "%+v, %v", done, err)
			d := one(t, b, "g", "t")
			if d.ID != "m" || d.Topic != "t" || !d.DeliverAt.IsZero() || len(d.Properties) != 2 || d.Properties["k"] != "v" || d.Properties[protocol.PropertyDeadLetterRedrives] != "1" {
				t.Errorf("the redriven message is %+v", d.Message)
			}
			if r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}); err != nil || r.Times != 1 || r.DeadLetter {
				t.Errorf("its retries do not begin anew: %+v, %v", r, err)
			}
		})
	}
}

// The origin of a message is the one of its group: a retry of another group, and a message that was
// forwarded, is a message of the topic in which it dies.
func TestOriginOfDeadLettersThatWereRetried(t *testing.T) {
	t.Parallel()
	giveUp := func(t *testing.T, b *broker.Broker, group, topic, from, id string) {
		t.Helper()
		settle(t, b, one(t, b, group, topic), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"})
		page, err := b.DeadLetters(group, status.DeadLetterQuery{})
		if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != from || page.DeadLetters[0].Origin.MessageID != id {
			t.Fatalf("%+v, %v; want one of %s in %s", page, err, id, from)
		}
	}
	subtest(t, "sent on elsewhere", func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "u", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 1}})
		deadAfter(t, b, "g", "t", 1)
		done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t-g-DLQ", To: "u"})
		assert.MustThat(t, err == nil && done.Redriven == 1, "%+v, %v", done, err)
		giveUp(t, b, "h", "u", "u", "m")
	})
	subtest(t, "read in another group's retry topic", func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		r := assert.Value(serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Level: 1}))(t)
		giveUp(t, b, "h", r.Topic, r.Topic, r.MessageID)
		ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
		done, err := b.RedriveDeadLetters(t.Context(), "h", status.DeadLetterSelection{})
		assert.MustThat(t, err == nil && done.Redriven == 1, "%+v, %v", done, err)
		d := one(t, b, "g", "t") // as it was
		if d.ID != r.MessageID || d.Topic != "t" || d.Properties[protocol.PropertyOriginMessageID] != "m" || d.Properties[protocol.PropertyReconsumeTimes] != "1" {
			t.Errorf("the redriven message is %+v", d.Message)
		}
	})
}

// A broker that closes stops a redrive or a purge of many dead letters. The result has its progress
// and the place to continue.
func TestCloseStopsARedrive(t *testing.T) {
	t.Parallel()
	const n = 3 * deadletter.Chunk
	for name, move := range map[string]func(t *testing.T, b *broker.Broker) (moved int64, next string, err error){
		"redrive": func(t *testing.T, b *broker.Broker) (int64, string, error) {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{To: "t", Limit: n})
			return done.Redriven, done.Next, err
		},
		"purge": func(t *testing.T, b *broker.Broker) (int64, string, error) {
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n})
			return done.Purged, done.Next, err
		},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
			sendN(t, b, "%DLQ%g", n, 1)
			release := holdWrites(b)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				moved, next, err := move(t, b)
				assert.That(t, errors.Is(err, tidegate.ErrClosed) && moved != 0 && moved != n && next != "",
					"%d of %d, continue at %q, %v", moved, n, next, err)
			}()
			synctest.Wait()
			go b.Close()
			synctest.Wait()
			release()
			<-ended
		})
	}
}
