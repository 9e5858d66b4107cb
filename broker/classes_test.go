package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/fingerprint"
	"github.com/tidegate/tidegate/transport"
)

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
			want[fingerprint.Of(o.Topic, o.Reason)]++
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
		if page.Letters != all {
			t.Errorf("group %s has %d dead letters in %q, and %d are counted", group, all, in, page.Letters)
		}
		for i := range page.Classes {
			c := &page.Classes[i]
			got[c.Fingerprint] += c.Count
			share += c.Share
			if c.Count > before || fingerprint.Of(c.Topic, c.Reason) != c.Fingerprint {
				t.Errorf("the class %+v follows one of %d", c, before)
			}
			before = c.Count
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || all > 0 && (share < .999 || share > 1.001) {
		t.Errorf("group %s has the classes %v in %q, with a share of %v; its letters have %v", group, got, in, share, want)
	}
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
	fs := vfs.NewCrashableMem()
	b := open(t, broker.Options{Dir: "data"}.On(fs))
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
		if err != nil && !errors.Is(err, tidegate.ErrNotFound) {
			t.Error(err)
		}
		for _, d := range ds {
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: fmt.Sprintf("%c %d", 'a'+rnd.IntN(5), rnd.IntN(9))}); err != nil {
				t.Error(err)
			}
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
			if err != nil && !errors.Is(err, tidegate.ErrNotFound) {
				t.Error(err)
			}
		case n < 26:
			in := in()
			_, err := b.PurgeDeadLetters(t.Context(), group(), selection(in))
			if err != nil && !errors.Is(err, tidegate.ErrNotFound) {
				t.Error(err)
			}
		case n == 26:
			_, err := b.PurgeTopic(t.Context(), []string{"%DLQ%g", "DLA"}[rnd.IntN(2)])
			if err != nil && !errors.Is(err, tidegate.ErrNotFound) {
				t.Error(err)
			}
		case n == 27:
			if err := b.DeleteTopic(t.Context(), []string{"%DLQ%h", "DLA"}[rnd.IntN(2)]); err != nil && !errors.Is(err, tidegate.ErrNotFound) {
				t.Error(err)
			}
		case n == 28:
			putTopic(t, b, "DLA", settings.Topic{Queues: 2, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
			elapse(time.Duration(rnd.IntN(3)) * time.Minute)
		case n == 29:
			if err := b.DeleteGroup(t.Context(), "h"); err != nil {
				t.Error(err)
			}
			prepare()
		case n == 30:
			b = reopen(t, b, fs)
		default:
			left := fs.CrashClone(vfs.CrashCloneCfg{})
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			fs = left
			b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
		stored := int64(0)
		for _, g := range []string{"g", "h"} {
			stored += checkClasses(t, b, g, "") + checkClasses(t, b, g, "DLA")
		}
		if got := serve(b).Survey().Totals.DeadLettersStored; got != stored {
			t.Errorf("the survey has %d stored dead letters, want %d", got, stored)
		}
		if t.Failed() {
			return
		}
	}
}

// A group has at most 1000 classes; the letters of further ones count together.
func TestClassesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1005
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		name := func(i int) string { // without digits
			return string([]byte{'a' + byte(i/676), 'a' + byte(i/26%26), 'a' + byte(i%26)})
		}
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: name(i)}); err != nil {
				t.Fatal(err)
			}
		}
		check := func(classes int, other, letters int64) {
			t.Helper()
			page, err := serve(b).DeadLetterClasses("g", status.DeadLetterClassQuery{Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			var rest int64
			if page.Other != nil {
				rest = page.Other.Count
			}
			if len(page.Classes) != classes || rest != other || page.Letters != letters || page.Next != "" {
				t.Errorf("%d classes and %d other of %d letters, want %d, %d, %d", len(page.Classes), rest, page.Letters, classes, other, letters)
			}
		}
		check(1000, 5, n)
		b = reopen(t, b, fs)
		check(1000, 5, n)
		for _, reason := range []string{name(0), name(n - 1)} { // one of a class, one of the rest
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Reason: reason}})
			if err != nil || done.Purged != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
		}
		check(999, 4, n-2)
		if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n}); err != nil || done.Purged != n-2 {
			t.Fatalf("%+v, %v", done, err)
		}
		check(0, 0, 0)
	})
}

// The errors are those of a list of dead letters.
func TestClassesErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putGroup(t, b, "g", settings.Group{})
		if p, err := serve(b).DeadLetterClasses("g", status.DeadLetterClassQuery{}); err != nil || p.Letters != 0 || p.Classes == nil || p.Other != nil {
			t.Errorf("%+v, %v", p, err)
		}
		for name, c := range map[string]struct {
			group string
			query status.DeadLetterClassQuery
			want  tidegate.Code
		}{
			"unknown group":     {"x", status.DeadLetterClassQuery{}, tidegate.CodeConsumerGroupNotFound},
			"unknown topic":     {"g", status.DeadLetterClassQuery{In: "x"}, tidegate.CodeTopicNotFound},
			"limit":             {"g", status.DeadLetterClassQuery{Limit: 1001}, tidegate.CodeBadRequest},
			"negative limit":    {"g", status.DeadLetterClassQuery{Limit: -1}, tidegate.CodeBadRequest},
			"position":          {"g", status.DeadLetterClassQuery{After: "x"}, tidegate.CodeBadRequest},
			"position of zero":  {"g", status.DeadLetterClassQuery{After: "0-ab"}, tidegate.CodeBadRequest},
			"position of none":  {"g", status.DeadLetterClassQuery{After: "1-"}, tidegate.CodeBadRequest},
			"name of the group": {"!", status.DeadLetterClassQuery{}, tidegate.CodeIllegalConsumerGroup},
		} {
			_, err := serve(b).DeadLetterClasses(c.group, c.query)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != c.want {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	})
}

// A transaction that was given up is a dead letter of the group in the name of its topic.
func TestClassesOfAbandonedTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
