package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

// A fixture has a store in memory, the topic t, and the consumption of t by the group g.
type fixture struct {
	*Letters
	t         *testing.T
	topics    map[string]*Topic
	retention *task
	consumed  Consumption
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	s, err := store.Open(store.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &fixture{t: t, topics: map[string]*Topic{}}
	f.retention = newMaintenance(t.Context(), logger, nil).Add(taskConfig{})
	f.Letters = NewLetters(LettersConfig{Store: s, Directory: f, Logger: logger, Life: t.Context(), Damaged: new(atomic.Int64)})
	t.Cleanup(func() {
		if f.Damaged.Load() > 0 {
			t.Error("a dead letter is damaged")
		}
	})
	if err := f.create("t", settings.Topic{Queues: 1}, false); err != nil {
		t.Fatal(err)
	}
	f.consumed.Init(newGroup("g", 100, settings.Group{}.WithDefaults()), f.topics["t"])
	return f
}

func (f *fixture) FindTopic(name string) *Topic { return f.topics[name] }

func (f *fixture) FindGroup(name string) *Group {
	if name == "g" {
		return f.consumed.Group()
	}
	return nil
}

var errFull = errors.New("the disk is full")

func (f *fixture) create(name string, c settings.Topic, _ bool) error {
	id := uint32(len(f.topics) + 1)
	f.topics[name] = newTopic(TopicConfig{
		ID: id, Name: name, Retention: f.retention,
		IDs: newDuplicates(id, store.IDKey{}, f.retention),
	}, c.WithDefaults())
	return nil
}

// send adds a message to a topic and returns its place.
func (f *fixture) send(name, id string, properties map[string]string) store.Place {
	f.t.Helper()
	t := f.topics[name]
	q, m := t.Queues()[0], &store.Message{Message: tidegate.Message{ID: id, Body: []byte("x"), Properties: properties}}
	var offset int64
	if err := f.Store.Messages.Add(func(w *store.Batch) {
		offset = t.Put(w, q, m, time.Now())
	}, t.Publish(q)).Wait(); err != nil {
		f.t.Fatal(err)
	}
	return store.Place{Topic: t.ID(), Queue: 0, Offset: offset}
}

// ids returns the IDs of the messages of a topic.
func (f *fixture) ids(name string) (ids []string) {
	f.t.Helper()
	t := f.topics[name]
	if t == nil {
		return nil
	}
	ms, _, err := f.Store.Read(t.ID(), 0, 0, t.Queues()[0].End(), 100, 1<<20)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	return ids
}

// bury adds a dead letter of the group in t.
func (f *fixture) bury(id string) {
	f.t.Helper()
	const name = "%DLQ%g"
	if f.topics[name] == nil {
		if err := f.create(name, settings.Topic{Queues: 1}, false); err != nil {
			f.t.Fatal(err)
		}
	}
	place := f.send("t", id, nil)
	death := deadletter.Death{Group: "g", Topic: "t", Offset: place.Offset, Attempts: 16, Reason: "no", SentTo: "t", SentID: id}
	f.send(name, id, death.Properties(&store.Message{Message: tidegate.Message{ID: id}}))
}

func TestBrowse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.bury("a")
	page, _, err := f.Browse("g", LetterQuery{Limit: 10})
	want := tidegate.DeadLetter{Topic: "t", MessageID: "a", Group: "g", Attempts: 16, Reason: "no"}
	if err != nil || len(page) != 1 || page[0].Origin != want {
		t.Errorf("browsed: %+v, %v", page, err)
	}
}

// letterLimits reject every send after the first n.
type letterLimits int

func (l *letterLimits) Observe(*Topic, time.Time) {}

func (l *letterLimits) Rejects(*Topic, int64, time.Time) bool {
	*l--
	return *l < 0
}

func TestRedriveAndPurge(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"a", "b", "c"} {
		f.bury(id)
	}
	two := letterLimits(2)
	done, err := f.Redrive(t.Context(), "g", LetterSelection{}, &two)
	if err != nil || done.Redriven != 2 || done.Next != (deadletter.Position{Offset: 2}).String() {
		t.Errorf("redriven: %+v, %v", done, err)
	}
	if ids := f.ids("t"); !slices.Equal(ids, []string{"a", "b", "c", "a", "b"}) {
		t.Errorf("the topic has %q", ids)
	}
	purged, next, err := f.Purge(t.Context(), "g", LetterSelection{})
	if err != nil || purged != 1 || next != "" || f.ids("%DLQ%g") != nil {
		t.Errorf("purged: %d, next %q, %v; left are %q", purged, next, err, f.ids("%DLQ%g"))
	}
	if !f.topics["%DLQ%g"].HasGaps() {
		t.Error("retention does not look for gaps")
	}
}

// One redrive, purge or other holder runs at a time.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.bury("a")
		release, err := f.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, _, err := f.Purge(ctx, "g", LetterSelection{})
				ended <- err
			}()
		}
		synctest.Wait()
		if len(ended) != 0 || len(f.ids("%DLQ%g")) != 1 {
			t.Errorf("%d purges have ended while another holder runs", len(ended))
		}
		cancel(errFull)
		if err := <-ended; !errors.Is(err, errFull) {
			t.Errorf("the cancelled purge returned %v", err)
		}
		release()
		if err := <-ended; err != nil || f.ids("%DLQ%g") != nil {
			t.Errorf("the other purge returned %v", err)
		}
	})
}

func TestCheckRetryNames(t *testing.T) {
	t.Parallel()
	with := func(naming settings.RetryNaming, topic string) settings.RetryTopic {
		return settings.RetryTopic{Enabled: true, Naming: naming, Topic: topic}.WithDefaults()
	}
	other := func(c settings.RetryTopic) []*Group {
		return []*Group{newGroup("h", 2, settings.Group{RetryTopic: c}.WithDefaults())}
	}
	for name, c := range map[string]struct {
		mine, other settings.RetryTopic
		clash       bool
	}{
		"none configured":   {with("", ""), with("", ""), false},
		"same name":         {with("", "r"), with("", "r"), true},
		"name by 2.9.2":     {with("", "t-h-RETRY"), with("", ""), true},
		"name by 2.7.2":     {with("", "h-RETRY"), with(settings.RetryNaming272, ""), true},
		"of the other":      {with("", ""), with("", "t-g-RETRY"), true},
		"other names":       {with("", "r"), with("", "q"), false},
		"other is disabled": {with("", "r"), settings.RetryTopic{Topic: "r"}, false},
		"disabled":          {settings.RetryTopic{Topic: "r"}, with("", "r"), false},
	} {
		err := checkRetryNames("g", &c.mine, slices.Values(other(c.other)))
		if e, ok := errors.AsType[*tidegate.Error](err); ok != c.clash || ok && e.Code != tidegate.CodeBadRequest {
			t.Errorf("%s: %v, want an error: %v", name, err, c.clash)
		}
	}
}
