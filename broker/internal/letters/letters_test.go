package letters

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/tally"
)

// A fixture has a store in memory, the topic t, and the consumption of t by the group g.
type fixture struct {
	*Letters
	t         *testing.T
	topics    map[string]*topic.Topic
	retention *maintain.Task
	consumed  topic.Consumption
	marked    bool
	lost      int64
	full      bool // CreateTopic fails
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	s, err := store.Open(store.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &fixture{t: t, topics: map[string]*topic.Topic{}}
	f.retention = maintain.New(t.Context(), logger, nil).Add(maintain.TaskConfig{})
	f.Letters = New(Config{
		Store: s, Directory: f, Logger: logger, Life: t.Context(), CreateTopic: f.create,
		Damaged: func(int64) { t.Error("a dead letter is damaged") }, Events: tally.New(logger),
	})
	if err := f.create("t", settings.Topic{Queues: 1}, false); err != nil {
		t.Fatal(err)
	}
	f.consumed.Init(topic.NewGroup("g", 100, settings.Group{}.WithDefaults()), f.topics["t"])
	return f
}

func (f *fixture) FindTopic(name string) *topic.Topic { return f.topics[name] }

func (f *fixture) FindGroup(name string) *topic.Group {
	if name == "g" {
		return f.consumed.Group()
	}
	return nil
}

var errFull = errors.New("the disk is full")

func (f *fixture) create(name string, c settings.Topic, _ bool) error {
	if f.full {
		return errFull
	}
	id := uint32(len(f.topics) + 1)
	f.topics[name] = topic.New(topic.Config{
		ID: id, Name: name, Retention: f.retention,
		IDs: duplicates.NewMemory(id, func() store.IDKey { return store.IDKey{} }, func(time.Time) {}),
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

func (f *fixture) Consumed() *topic.Consumption             { return &f.consumed }
func (f *fixture) Mark()                                    { f.marked = true }
func (f *fixture) Lost(from store.Place, to int64, _ error) { f.lost += to - from.Offset }

// A leaving is a message that leaves t.
type leaving struct {
	*fixture
	why   consume.Departure
	place store.Place
	to    consume.Destination
	err   error
	ends  int
}

func (l *leaving) Why() *consume.Departure { return &l.why }
func (l *leaving) Place() store.Place      { return l.place }

func (l *leaving) End(to consume.Destination, err error) (*store.PendingWrite, error) {
	l.to, l.err = to, err
	l.ends++
	return l.Store.Groups.Add(func(*store.Batch) {}, nil), err
}

func (f *fixture) leave(place store.Place) *leaving {
	return &leaving{fixture: f, place: place, why: consume.Departure{Lease: &consume.Lease{Lease: store.Lease{Size: 1}}, Tries: 16, Reason: "no"}}
}

func TestDepart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.leave(f.send("t", "a", nil))
	gone := f.leave(store.Place{Topic: f.topics["t"].ID(), Offset: 99})
	for i, err := range f.Depart([]Leaving{first, gone}) {
		if err != nil {
			t.Errorf("departure %d: %v", i, err)
		}
	}
	if ids := f.ids("%DLQ%g"); !slices.Equal(ids, []string{"a"}) || !f.marked || f.lost != 0 {
		t.Errorf("the dead letters are %q, marked %v, %d lost", ids, f.marked, f.lost)
	}
	if first.to != consume.ToDeadLetters || first.ends != 1 || gone.to != consume.ToNowhere || gone.ends != 1 {
		t.Errorf("the departures ended at %v and %v", first.to, gone.to)
	}
	page, _, err := f.Browse("g", Query{Limit: 10})
	want := tidegate.DeadLetter{Topic: "t", MessageID: "a", Group: "g", Attempts: 16, Reason: "no"}
	if err != nil || len(page) != 1 || page[0].Origin != want {
		t.Errorf("browsed: %+v, %v", page, err)
	}
	// As after a crash before the lease was removed: the mark prevents a second copy.
	if err := f.Depart([]Leaving{f.leave(first.place)})[0]; err != nil {
		t.Error(err)
	}
	if ids := f.ids("%DLQ%g"); len(ids) != 1 {
		t.Errorf("repeated: the dead letters are %q", ids)
	}
}

func TestDepartFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	x := f.leave(f.send("t", "a", nil))
	f.full = true
	if err := f.Depart([]Leaving{x})[0]; !errors.Is(err, errFull) || !errors.Is(x.err, errFull) || f.ids("%DLQ%g") != nil {
		t.Errorf("it returned %v, the departure ended with %v", err, x.err)
	}
	f.full = false
	if err := f.Depart([]Leaving{x})[0]; err != nil || x.err != nil || x.to != consume.ToDeadLetters {
		t.Errorf("again: %v, %v, to %v", err, x.err, x.to)
	}
}

// limits reject every send after the first n.
type limits int

func (l *limits) Observe(*topic.Topic, time.Time) {}

func (l *limits) Rejects(*topic.Topic, int64, time.Time) bool {
	*l--
	return *l < 0
}

func TestRedriveAndPurge(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"a", "b", "c"} {
		if err := f.Depart([]Leaving{f.leave(f.send("t", id, nil))})[0]; err != nil {
			t.Fatal(err)
		}
	}
	two := limits(2)
	done, err := f.Redrive(t.Context(), "g", Selection{}, &two)
	if err != nil || done.Redriven != 2 || done.Next != (deadletter.Position{Offset: 2}).String() {
		t.Errorf("redriven: %+v, %v", done, err)
	}
	if ids := f.ids("t"); !slices.Equal(ids, []string{"a", "b", "c", "a", "b"}) {
		t.Errorf("the topic has %q", ids)
	}
	purged, next, err := f.Purge(t.Context(), "g", Selection{})
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
		if err := f.Depart([]Leaving{f.leave(f.send("t", "a", nil))})[0]; err != nil {
			t.Fatal(err)
		}
		release, err := f.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, _, err := f.Purge(ctx, "g", Selection{})
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
	other := func(c settings.RetryTopic) []*topic.Group {
		return []*topic.Group{topic.NewGroup("h", 2, settings.Group{RetryTopic: c}.WithDefaults())}
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
		err := CheckRetryNames("g", &c.mine, slices.Values(other(c.other)))
		if e, ok := errors.AsType[*tidegate.Error](err); ok != c.clash || ok && e.Code != tidegate.CodeBadRequest {
			t.Errorf("%s: %v, want an error: %v", name, err, c.clash)
		}
	}
}
