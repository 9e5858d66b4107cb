package broker_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// toGroup redrives all dead letters of g to g alone.
func toGroup(t *testing.T, b *broker.Broker, sel status.DeadLetterSelection) status.DeadLetterRedrive {
	t.Helper()
	sel.ToGroupOnly = true
	done := assert.Value(b.RedriveDeadLetters(t.Context(), "g", sel))(t)
	return done
}

// fateOfGroup returns the fate of the message m of t in a group.
func fateOfGroup(t *testing.T, b *broker.Broker, group string) status.Fate {
	t.Helper()
	trace, err := serve(b).Trace("t", status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m"}}, 0, func(name string) bool { return name == group })
	assert.MustThat(t, err == nil && len(trace.Messages) == 1 && len(trace.Messages[0].Groups) == 1, "%+v, %v", trace, err)
	return trace.Messages[0].Groups[0]
}

// nothing fails the test if a group receives a message of a topic.
func nothing(t *testing.T, b *broker.Broker, group, topic string) {
	t.Helper()
	if ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Max: 32}); len(ds) > 0 {
		t.Errorf("group %s received %s of %s", group, ds[0].ID, ds[0].Topic)
	}
}

// A redrive to one group is received by this group alone, as a message of its topic. The letter
// keeps its ID, origin and number of redrives through further failures, redrives and a restart.
func TestRedriveToOneGroup(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]settings.Group{
		"no retry topics": {}, "latest": {Start: settings.StartLatest},
		"retry topics":        {RetryTopic: settings.RetryTopic{Enabled: true, DeadLetterTopic: "%DLQ%g"}},
		"shared retry topics": {RetryTopic: settings.RetryTopic{Enabled: true, Naming: "2.7.2", DeadLetterTopic: "%DLQ%g"}},
	} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 2})
			putGroup(t, b, "g", group)
			nothing(t, b, "g", "t")
			nothing(t, b, "h", "t")
			m := &tidegate.Message{ID: "m", Topic: "t", Tag: "tag", Keys: []string{"k"}, Properties: map[string]string{"p": "v"}, Body: []byte("x")}
			kill(t, b, m)
			ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
			for round := 1; round <= 3; round++ {
				done := toGroup(t, b, status.DeadLetterSelection{})
				assert.MustThat(t, done == (status.DeadLetterRedrive{Redriven: 1}), "round %d: %+v", round, done)
				f := fateOfGroup(t, b, "g")
				assert.That(t, f.Topic == "%RETRY%g_t" && f.State == "new" && f.DeadLetter == nil, "round %d: the trace has %+v", round, f)
				left := listLetters(t, b, status.DeadLetterFilter{})
				assert.That(t, len(left) == 0, "round %d: %v are dead letters still", round, left)
				if round == 2 {
					b = reopen(t, b, fs)
				}
				nothing(t, b, "h", "t")
				d := one(t, b, "g", "t")
				if d.ID != "m" || d.Topic != "t" || d.Attempt != 1 || d.Tag != "tag" || d.Properties["p"] != "v" || d.Properties[protocol.PropertyDeadLetterRedrives] != fmt.Sprint(round) {
					t.Fatalf("round %d: %+v", round, d)
				}
				settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
				elapse(time.Minute)
				if d = one(t, b, "g", "t"); d.Attempt != 2 || d.Topic != "t" {
					t.Errorf("round %d: after a retry %+v", round, d)
				}
				settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"})
				if f := fateOfGroup(t, b, "g"); f.State != "dead_letter" || f.DeadLetter == nil || f.DeadLetter.MessageID != "m" {
					t.Errorf("round %d: the trace has %+v", round, f)
				}
				page, err := b.DeadLetters("g", status.DeadLetterQuery{})
				assert.MustThat(t, err == nil && len(page.DeadLetters) == 1, "round %d: %+v, %v", round, page, err)
				l := page.DeadLetters[0]
				if l.MessageID != "m" || l.Origin.Topic != "t" || l.Origin.MessageID != "m" || l.Origin.Redrives != round || l.Origin.Attempts != 2 {
					t.Errorf("round %d: the dead letter is %+v", round, l)
				}
			}
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
			assert.MustThat(t, err == nil && done.Redriven == 1, "to all groups: %+v, %v", done, err)
			for _, g := range []string{"g", "h"} {
				d := one(t, b, g, "t")
				delete(d.Properties, protocol.PropertyDeadLetterRedrives)
				assert.That(t, d.ID == "m" && maps.Equal(d.Properties, m.Properties), "group %s received %+v", g, d.Message)
				ackDeliveries(t, b, []*tidegate.Delivery{d})
			}
			nothing(t, b, "g", "t")
		})
	}
}

// A receive that waits for the topic before the first redrive gets the letter at once.
func TestRedriveToOneGroupWakes(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		kill(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")}, &tidegate.Message{ID: "b", Topic: "t", Body: []byte("x")})
		begin := time.Now()
		got := make(chan string)
		for range 2 {
			go func() {
				ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Max: 1, Wait: time.Hour, InvisibleDuration: time.Minute})
				if err != nil || len(ds) != 1 || time.Since(begin) > 2*time.Second {
					got <- fmt.Sprint(ds, err, time.Since(begin))
					return
				}
				got <- ds[0].ID
			}()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		toGroup(t, b, status.DeadLetterSelection{})
		ids := []string{<-got, <-got}
		if slices.Sort(ids); !slices.Equal(ids, []string{"a", "b"}) {
			t.Errorf("the receives got %q", ids)
		}
		for _, s := range serve(b).Stats().Groups {
			assert.That(t, s.Waiting == 0, "%d receives are left in line for %s", s.Waiting, s.Topic)
		}
	})
}

// A dead letter that cannot be sent to one group remains a dead letter. A dry run counts it.
func TestRedriveToOneGroupRejects(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		long := strings.Repeat("l", 120)
		for _, name := range []string{"t", "u", long} {
			putTopic(t, b, name, settings.Topic{Queues: 1})
			kill(t, b, &tidegate.Message{ID: name[:1] + "1", Topic: name, Body: []byte("x")}, &tidegate.Message{ID: name[:1] + "2", Topic: name, Body: []byte("x")})
		}
		mustSend(t, b, &tidegate.Message{ID: "s", Topic: "%DLQ%g", Body: []byte("x")}) // without an origin
		assert.Must(t, b.DeleteTopic(t.Context(), "u"))
		want := status.DeadLetterRedrive{Redriven: 2, NoTarget: 5}
		assert.Equal(t, "a dry run", toGroup(t, b, status.DeadLetterSelection{DryRun: true}), want)
		assert.Is(t, "after the dry run the topic exists", assert.Err(b.Topic("%RETRY%g_t")), tidegate.ErrNotFound)
		done := toGroup(t, b, status.DeadLetterSelection{Limit: 1})
		assert.That(t, done.Redriven == 1 && done.Next != "", "one letter: %+v", done)
		done = toGroup(t, b, status.DeadLetterSelection{Newest: true})
		assert.That(t, done == (status.DeadLetterRedrive{Redriven: 1, NoTarget: 5}), "the others: %+v", done)
		assert.Slices(t, "left are", listLetters(t, b, status.DeadLetterFilter{}), []string{"u1", "u2", "l1", "l2", "s"})
		putGroup(t, b, "fifo", settings.Group{FIFO: true})
		for name, c := range map[string]struct {
			group string
			to    string
			code  tidegate.Code
			text  string
		}{
			"a FIFO group":     {"fifo", "", tidegate.CodeBadRequest, "FIFO"},
			"a target":         {"g", "t", tidegate.CodeBadRequest, "to_group_only"},
			"an unknown group": {"nobody", "", protocol.CodeConsumerGroupNotFound, "nobody"},
		} {
			_, err := b.RedriveDeadLetters(t.Context(), c.group, status.DeadLetterSelection{ToGroupOnly: true, To: c.to})
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == c.code && strings.Contains(err.Error(), c.text), "%s: %v", name, err)
		}
	})
}

// The address settings of the original topic apply to redriven messages.
func TestRedriveToOneGroupByAddress(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "DLA", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{MaxDeliveryAttempts: new(2), DeadLetterAddress: new("DLA")})
		mustSend(t, b, &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")})
		for round := range 2 {
			for range 2 {
				settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Reason: "no"})
			}
			page, err := b.DeadLetters("g", status.DeadLetterQuery{In: "DLA"})
			if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != "t" || page.DeadLetters[0].Origin.Attempts != 2 || page.DeadLetters[0].Origin.Redrives != round {
				t.Fatalf("round %d: %+v, %v", round, page, err)
			}
			done := toGroup(t, b, status.DeadLetterSelection{In: "DLA"})
			assert.MustThat(t, done.Redriven == 1, "round %d: %+v", round, done)
		}
	})
}

func listAllLetters(t *testing.T, b *broker.Broker) []string {
	t.Helper()
	page, err := b.DeadLetters("g", status.DeadLetterQuery{Limit: 1000})
	assert.MustThat(t, err == nil && page.Next == "", "%+v, %v", page, err)
	return letterIDs(page)
}

// The power fails before each write, sync and rename of redrives, of one topic's letters to one
// group and of the other's to all groups, with none or a part of the unsynced data. Each letter is
// among the dead letters or is delivered to the group, once. A redrive to one group reaches no
// other.
func TestRedriveToOneGroupAtEveryWrite(t *testing.T) {
	t.Parallel()
	const n = 6
	var crashes []*vfs.MemFS
	request := transport.ReceiveRequest{Group: "g", Max: 32, InvisibleDuration: time.Hour}
	synctest.Test(t, func(t *testing.T) {
		var recording atomic.Bool
		fs := newCrashFS(vfs.NewCrashableMem())
		fs.before = func(i int) {
			for _, percent := range []int{0, 50, 100} {
				if recording.Load() {
					crashes = append(crashes, fs.clone(percent, uint64(i)))
				}
			}
		}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		for _, topic := range []string{"t", "u"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			nothing(t, b, "h", topic)
			for i := range n / 2 {
				kill(t, b, &tidegate.Message{ID: fmt.Sprint(topic, i), Topic: topic, Body: []byte("x")})
			}
			for range n / 2 {
				ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", topic)})
			}
		}
		recording.Store(true)
		for page, after := 0, ""; page == 0 || after != ""; page++ {
			sel := status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Topic: "t"}, Limit: 2, After: after}
			after = toGroup(t, b, sel).Next
		}
		for page, after := 0, ""; page == 0 || after != ""; page++ {
			done := assert.Value(b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: 2, After: after}))(t)
			after = done.Next
		}
		assert.Must(t, b.Close())
	})
	t.Logf("%d crashes", len(crashes))
	assert.MustThat(t, len(crashes) >= 30, "the power failed %d times, which proves little", len(crashes))
	for i, fs := range crashes {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			checkClasses(t, b, "g", "")
			seen := map[string]int{}
			for _, id := range listAllLetters(t, b) {
				seen[id]++
			}
			for _, topic := range []string{"t", "u"} {
				if topic == "t" {
					nothing(t, b, "h", topic)
				}
				for request.Topic = topic; ; {
					ds := receive(t, b, request)
					if len(ds) == 0 {
						break
					}
					for _, d := range ds {
						seen[d.ID]++
					}
				}
			}
			assert.That(t, len(seen) == n && slices.Max(slices.Collect(maps.Values(seen))) == 1, "crash %d: %v", i, seen)
		})
		if t.Failed() {
			return
		}
	}
}

// checkClasses compares the classes of a group with its dead letters, one by one. It returns the
// number of the dead letters.
func checkClasses(t *testing.T, b *broker.Broker, group, in string) (all int64) {
	t.Helper()
	want := map[string]int64{}
	for after := ""; ; {
		page, err := b.DeadLetters(group, status.DeadLetterQuery{In: in, After: after, Limit: 1000})
		if errors.Is(err, tidegate.ErrNotFound) {
			return 0
		}
		if err != nil {
			t.Error(err)
			return 0
		}
		for i := range page.DeadLetters {
			o := &page.DeadLetters[i].Origin
			want[protocol.Fingerprint(o.Topic, o.Reason)]++
			all++
		}
		if after = page.Next; after == "" {
			break
		}
	}
	got := map[string]int64{}
	before, share := int64(1<<62), 0.0
	for after := ""; ; {
		page, err := serve(b).DeadLetterClasses(group, status.DeadLetterClassQuery{In: in, After: after, Limit: 2})
		if err != nil {
			t.Error(err)
			return 0
		}
		assert.That(t, page.Letters == all, "group %s has %d dead letters in %q, and %d are counted", group, all, in, page.Letters)
		for i := range page.Classes {
			c := &page.Classes[i]
			got[c.Fingerprint] += c.Count
			share += c.Share
			assert.That(t, c.Count <= before && protocol.Fingerprint(c.Topic, c.Reason) == c.Fingerprint,
				"the class %+v follows one of %d", c, before)
			before = c.Count
		}
		if after = page.Next; after == "" {
			break
		}
	}
	assert.That(t, fmt.Sprint(got) == fmt.Sprint(want) && (all <= 0 || share >= .999 && share <= 1.001),
		"group %s has the classes %v in %q, with a share of %v; its letters have %v", group, got, in, share, want)
	return all
}

// After each of many random operations, restarts and crashes among them, the classes have the
// counts that a look at each dead letter gives.
func TestClassesAreExact(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(4), countLetters)
}

func countLetters(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	b, fs := openData(t)
	prepare := func() {
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putTopic(t, b, "addressed", settings.Topic{Queues: 1})
		putAddress(t, b, "addressed", settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1)})
		for _, g := range []string{"g", "h"} {
			putGroup(t, b, g, settings.Group{MaxAttempts: 1})
		}
	}
	prepare()
	fail := func(group, topic string) {
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{
			Group: group, Topic: topic, Queue: transport.AnyQueue, Max: 1 + rnd.IntN(8), InvisibleDuration: 30 * time.Second,
		})
		assert.That(t, err == nil || errors.Is(err, tidegate.ErrNotFound), "%+v", err)
		for _, d := range ds {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: fmt.Sprintf("%c %d", 'a'+rnd.IntN(5), rnd.IntN(9))})
			assert.That(t, err == nil, "%+v", err)
		}
	}
	group := func() string { return []string{"g", "h"}[rnd.IntN(2)] }
	in := func() string { return []string{"", "DLA"}[rnd.IntN(2)] }
	selection := func(in string) status.DeadLetterSelection {
		s := status.DeadLetterSelection{In: in, Limit: 1 + rnd.IntN(10)}
		if rnd.IntN(2) == 0 {
			s.Reason = string(rune('a' + rnd.IntN(5)))
		}
		return s
	}
	for range 150 {
		switch n := rnd.IntN(32); {
		case n < 8:
			for range 1 + rnd.IntN(8) {
				mustSend(t, b, &tidegate.Message{Topic: []string{"t", "addressed"}[rnd.IntN(2)], Body: []byte("x")})
			}
		case n < 20:
			fail(group(), []string{"t", "t", "addressed", "%DLQ%g"}[rnd.IntN(4)])
		case n < 23:
			in := in()
			_, err := b.RedriveDeadLetters(t.Context(), group(), selection(in))
			assert.That(t, err == nil || errors.Is(err, tidegate.ErrNotFound), "%+v", err)
		case n < 26:
			in := in()
			_, err := b.PurgeDeadLetters(t.Context(), group(), selection(in))
			assert.That(t, err == nil || errors.Is(err, tidegate.ErrNotFound), "%+v", err)
		case n == 26:
			_, err := b.PurgeTopic(t.Context(), []string{"%DLQ%g", "DLA"}[rnd.IntN(2)])
			assert.That(t, err == nil || errors.Is(err, tidegate.ErrNotFound), "%+v", err)
		case n == 27:
			err := b.DeleteTopic(t.Context(), []string{"%DLQ%h", "DLA"}[rnd.IntN(2)])
			assert.That(t, err == nil || errors.Is(err, tidegate.ErrNotFound), "%+v", err)
		case n == 28:
			putTopic(t, b, "DLA", settings.Topic{Queues: 2, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
			elapse(time.Duration(rnd.IntN(3)) * time.Minute)
		case n == 29:
			assert.NoError(t, b.DeleteGroup(t.Context(), "h"))
			prepare()
		case n == 30:
			b = reopen(t, b, fs)
		default:
			left := fs.CrashClone(vfs.CrashCloneCfg{})
			assert.NoError(t, b.Close())
			fs = left
			b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
		stored := int64(0)
		for _, g := range []string{"g", "h"} {
			stored += checkClasses(t, b, g, "") + checkClasses(t, b, g, "DLA")
		}
		assert.Equal(t, "the survey has stored dead letters", serve(b).Survey().Totals.DeadLettersStored, stored)
		if t.Failed() {
			return
		}
	}
}

// A group has at most 1000 classes; the letters of further ones count together.
func TestClassesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 1005
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		name := func(i int) string { // without digits
			return string([]byte{'a' + byte(i/676), 'a' + byte(i/26%26), 'a' + byte(i%26)})
		}
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: name(i)})
		}
		check := func(classes int, other, letters int64) {
			t.Helper()
			page := assert.Value(serve(b).DeadLetterClasses("g", status.DeadLetterClassQuery{Limit: 1000}))(t)
			var rest int64
			if page.Other != nil {
				rest = page.Other.Count
			}
			assert.That(t, len(page.Classes) == classes && rest == other && page.Letters == letters && page.Next == "",
				"%d classes and %d other of %d letters, want %d, %d, %d", len(page.Classes), rest, page.Letters, classes, other, letters)
		}
		check(1000, 5, n)
		b = reopen(t, b, fs)
		check(1000, 5, n)
		for _, reason := range []string{name(0), name(n - 1)} { // one of a class, one of the rest
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Reason: reason}})
			assert.MustThat(t, err == nil && done.Purged == 1, "%+v, %v", done, err)
		}
		check(999, 4, n-2)
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n})
		assert.MustThat(t, err == nil && done.Purged == n-2, "%+v, %v", done, err)
		check(0, 0, 0)
	})
}

// The errors are those of a list of dead letters.
func TestClassesErrors(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putGroup(t, b, "g", settings.Group{})
		p, err := serve(b).DeadLetterClasses("g", status.DeadLetterClassQuery{})
		assert.That(t, err == nil && p.Letters == 0 && p.Classes != nil && p.Other == nil, "%+v, %v", p, err)
		for name, c := range map[string]struct {
			group string
			query status.DeadLetterClassQuery
			want  tidegate.Code
		}{
			"unknown group":     {"x", status.DeadLetterClassQuery{}, protocol.CodeConsumerGroupNotFound},
			"unknown topic":     {"g", status.DeadLetterClassQuery{In: "x"}, tidegate.CodeTopicNotFound},
			"limit":             {"g", status.DeadLetterClassQuery{Limit: 1001}, tidegate.CodeBadRequest},
			"negative limit":    {"g", status.DeadLetterClassQuery{Limit: -1}, tidegate.CodeBadRequest},
			"position":          {"g", status.DeadLetterClassQuery{After: "x"}, tidegate.CodeBadRequest},
			"position of zero":  {"g", status.DeadLetterClassQuery{After: "0-ab"}, tidegate.CodeBadRequest},
			"position of none":  {"g", status.DeadLetterClassQuery{After: "1-"}, tidegate.CodeBadRequest},
			"name of the group": {"!", status.DeadLetterClassQuery{}, protocol.CodeIllegalConsumerGroup},
		} {
			_, err := serve(b).DeadLetterClasses(c.group, c.query)
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == c.want, "%s: %v, want %v", name, err, c.want)
		}
	})
}

// A transaction that was given up is a dead letter of the group in the name of its topic.
func TestClassesOfAbandonedTransactions(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		sendHalf(t, b, "m")
		elapse(time.Hour)
		const group = "TRANS_CHECK_MAX_TIME_TOPIC"
		checkClasses(t, b, group, "")
		page, err := serve(b).DeadLetterClasses(group, status.DeadLetterClassQuery{})
		if err != nil || page.Letters != 1 || !slices.ContainsFunc(page.Classes, func(c status.DeadLetterClass) bool { return c.Topic == "t" }) {
			t.Errorf("%+v, %v", page, err)
		}
	})
}

// With the newest letters first, the letters of each queue come in descending order: for any size
// of pages and bodies, and with gaps between the letters.
func TestNewestDeadLetters(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(3), readNewest)
}

func readNewest(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 8))
	b := open(t, broker.Options{})
	queues := 2 + rnd.IntN(2)
	putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues})
	size := []int{1, 1, 300 << 10}[rnd.IntN(3)]
	for range 1 + rnd.IntN(800*100/(100+size/1000)) {
		mustSend(t, b, &tidegate.Message{Topic: "%DLQ%g", Tag: fmt.Sprint(rnd.IntN(20)), Body: make([]byte, 1+rnd.IntN(size))})
	}
	all := func(q status.DeadLetterQuery) (ids []string) {
		t.Helper()
		for {
			page, err := b.DeadLetters("g", q)
			assert.MustThat(t, err == nil && len(page.DeadLetters) <= q.Limit, "%d letters, %v", len(page.DeadLetters), err)
			for _, l := range page.DeadLetters {
				ids = append(ids, l.MessageID)
			}
			if q.After = page.Next; q.After == "" {
				return ids
			}
		}
	}
	limit := func() int { return 1 + rnd.IntN(1000) }
	check := func() {
		t.Helper()
		want := all(status.DeadLetterQuery{Limit: 1000})
		slices.Reverse(want)
		got := all(status.DeadLetterQuery{Limit: limit(), Newest: true})
		assert.That(t, slices.Equal(got, want), "%d letters, want %d: %v, want %v", len(got), len(want), got, want)
		for _, newest := range []bool{false, true} {
			count := int64(0)
			for q := (status.DeadLetterQuery{Newest: newest}); ; {
				c := assert.Value(serve(b).CountDeadLetters("g", q))(t)
				if count, q.After = count+c.Count, c.Next; q.After == "" {
					break
				}
			}
			assert.That(t, count == int64(len(want)), "newest %t: %d are counted, want %d", newest, count, len(want))
		}
	}
	check()
	for range 4 {
		sel := status.DeadLetterSelection{Limit: limit(), Newest: rnd.IntN(2) == 0}
		before := all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest})
		dry := sel
		dry.DryRun = true
		would, err := b.PurgeDeadLetters(t.Context(), "g", dry)
		assert.MustThat(t, err == nil && slices.Equal(all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest}), before),
			"a dry run changed the letters: %v", err)
		done, err := b.PurgeDeadLetters(t.Context(), "g", sel)
		assert.MustThat(t, err == nil && done == would, "%+v, %v; the dry run was %+v", done, err, would)
		left := all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest})
		assert.That(t, slices.Equal(left, before[done.Purged:]), "%d of %d letters are left after %d", len(left), len(before), done.Purged)
		check()
	}
}

// A redrive of one class sends its letters back and no others; its dry run has the same counts and
// changes nothing.
func TestRedriveOfAClass(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		for _, topic := range []string{"t", "gone"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			for i := range 6 {
				mustSend(t, b, &tidegate.Message{Topic: topic, ID: fmt.Sprint(topic, i), Body: []byte("x")})
				reason := fmt.Sprintf("%s %d", []string{"no account", "no order"}[i%2], i)
				settle(t, b, one(t, b, "g", topic), transport.Verdict{Kind: transport.DeadLetter, Reason: reason})
			}
		}
		assert.Must(t, b.DeleteTopic(t.Context(), "gone"))
		for _, c := range []struct {
			sel  status.DeadLetterSelection
			want status.DeadLetterRedrive
			left string
		}{
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: protocol.Fingerprint("gone", "no order 1")}}, status.DeadLetterRedrive{NoTarget: 3}, "t0 t1 t2 t3 t4 t5 gone0 gone1 gone2 gone3 gone4 gone5"},
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: protocol.Fingerprint("t", "no order 1")}, Newest: true}, status.DeadLetterRedrive{Redriven: 3}, "t0 t2 t4 gone0 gone1 gone2 gone3 gone4 gone5"},
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: "x"}}, status.DeadLetterRedrive{}, "t0 t2 t4 gone0 gone1 gone2 gone3 gone4 gone5"},
		} {
			before := listLetters(t, b, status.DeadLetterFilter{})
			dry := c.sel
			dry.DryRun = true
			if got, err := b.RedriveDeadLetters(t.Context(), "g", dry); err != nil || got != c.want || !slices.Equal(listLetters(t, b, status.DeadLetterFilter{}), before) {
				t.Errorf("dry run of %+v: %+v, %v, want %+v", c.sel, got, err, c.want)
			}
			got, err := b.RedriveDeadLetters(t.Context(), "g", c.sel)
			assert.That(t, err == nil && got == c.want, "%+v: %+v, %v, want %+v", c.sel, got, err, c.want)
			left := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " ")
			assert.That(t, left == c.left, "%+v: %s are left, want %s", c.sel, left, c.left)
		}
	})
}
