package session

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// A watched has an engine with the topics of watches, and a stream.
type watched struct {
	*Stream
	t     *testing.T
	b     *broker.Broker
	limit *Limit
}

func newWatched(t *testing.T, most int64, topics ...string) *watched {
	t.Helper()
	b := assert.Value(broker.Open(broker.Options{}))(t)
	t.Cleanup(func() { b.Close() })
	for _, topic := range topics {
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), topic, settings.Topic{Queues: 1})))
	}
	w := &watched{Stream: NewStream(anySender{}), t: t, b: b, limit: NewLimit(most)}
	w.TakeWatches(w.limit)
	return w
}

// receive makes a receive that leaves the watch.
func (s *watched) receive(w *Watch) {
	s.t.Helper()
	ds, err := s.b.Engine().Poll(s.t.Context(), engine.Request{
		ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: w.of.Topic, Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute},
		Watch:          w.Watch,
	})
	if err != nil || !w.Left() {
		s.t.Fatalf("a receive from %s: %d messages, %v, left %t; want a watch", w.of.Topic, len(ds), err, w.Left())
	}
}

// watch makes a receive whose watch is kept.
func (s *watched) watch(topic string) *Watch {
	s.t.Helper()
	w := s.Watch(topic, -1)
	assert.MustThat(s.t, w != nil, "the stream takes no watch of %s", topic)
	if s.receive(w); !w.Keep() {
		s.t.Fatalf("a watch of %s is not kept", topic)
	}
	return w
}

func (s *watched) send(topics ...string) {
	s.t.Helper()
	for _, topic := range topics {
		if r := s.b.Send(s.t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: topic, Body: []byte("x")}})[0]; r.Err != nil {
			s.t.Fatal(r.Err)
		}
	}
}

// want compares the topics that the stream reports now, and the watches that it keeps then.
func (s *watched) want(what string, kept int, topics ...string) {
	s.t.Helper()
	kicked := false
	select {
	case <-s.Kick():
		kicked = true
	default:
	}
	var got []string
	for _, of := range s.Due() {
		got = append(got, of.Topic)
	}
	if slices.Sort(got); !slices.Equal(got, topics) || kicked != (len(topics) > 0) {
		s.t.Errorf("%s: the stream reports %v, signalled %t; want %v", what, got, kicked, topics)
	}
	if n := int(s.limit.Count()); n != kept || len(s.watches) != kept {
		s.t.Errorf("%s: the stream keeps %d watches, and the limit counts %d; want %d", what, len(s.watches), n, kept)
	}
}

func TestStreamReportsWatches(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 100, "a", "b", "c")
	s.watch("a")
	first := s.watch("b")
	s.want("no message", 2)
	s.send("a", "a", "c")
	s.want("messages", 1, "a")
	s.send("a")
	s.want("a message after the report", 1)

	w := s.Watch("b", -1)
	s.receive(w)
	assert.That(t, w.Keep() && first.Over(), "a watch is not kept instead of an earlier one")
	s.send("b")
	s.want("a message after two receives", 0, "b")

	s.watch("c").Report()
	s.want("another reason", 0, "c")
	w.Report()
	s.want("another reason without a watch", 0)
}

// A watch can be woken while its receive is under way.
func TestWatchIsWokenBeforeItIsKept(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 100, "a")
	w := s.Watch("a", -1)
	s.receive(w)
	s.send("a")
	s.want("before Keep", 0)
	assert.That(t, w.Keep(), "a watch that was woken is not kept")
	s.want("after Keep", 0, "a")

	w = s.Watch("a", -1)
	assert.That(t, !w.Keep(), "a watch that no receive has left is kept")
	s.want("a watch that was not left", 0)
}

// WakeWatches reports all watches, and those of receives that began before.
func TestWakeWatches(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 100, "a", "b", "c")
	s.watch("a")
	s.watch("b")
	under := s.Watch("c", -1)
	s.WakeWatches()
	s.want("all", 0, "a", "b")
	s.receive(under)
	under.Keep()
	s.want("a receive under way", 0, "c")
	s.watch("c")
	s.want("a receive afterwards", 1)
	s.WakeWatches()
	s.send("c")
	s.want("for two reasons", 0, "c")
	s.WakeWatches()
	s.want("without watches", 0)
}

// A stream that has ended keeps nothing in the engine.
func TestEndOfAStreamWithWatches(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 100, "a", "b")
	kept, under := s.watch("a"), s.Watch("b", -1)
	s.receive(under)
	if s.End(); !kept.Over() {
		t.Error("a watch outlives its stream")
	}
	assert.That(t, !under.Keep() && under.Over(), "a watch is kept after the end of its stream")
	assert.That(t, s.Watch("a", -1) == nil, "a stream offers a watch after its end")
	s.send("a", "b")
	s.want("after the end", 0)
	s.End() // has no effect
}

// The watches of one stream and of all streams are bounded. Queues that have a watch can replace
// it.
func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 2, "a", "b", "c")
	late := s.Watch("c", -1)
	s.watch("a")
	s.watch("b")
	assert.That(t, s.Watch("c", -1) == nil, "a watch is offered beyond the limit")
	s.receive(late)
	assert.That(t, !late.Keep() && late.Over(), "a watch is kept beyond the limit")
	s.watch("a")
	other := NewStream(anySender{})
	if other.TakeWatches(s.limit); other.Watch("c", -1) != nil {
		t.Error("another stream exceeds the limit of all")
	}
	s.send("a")
	s.want("a message", 1, "a")
	s.watch("c")
	s.want("after a report", 2)

	full := NewStream(anySender{})
	full.TakeWatches(NewLimit(2 * mostWatches))
	full.watches = map[wire.Queue]*Watch{}
	for i := range mostWatches {
		full.watches[wire.Queue{Topic: fmt.Sprint(i)}] = &Watch{}
	}
	assert.That(t, full.Watch("a", -1) == nil && full.Watch("7", 0) != nil, "the watches of one stream are not bounded")
}

// The name of a topic is a part of a request, whose memory must not be kept.
func TestWatchCopiesTheTopic(t *testing.T) {
	t.Parallel()
	s := newWatched(t, 1)
	name := "topic"
	w := s.Watch(name, 3)
	if w.of != (wire.Queue{Topic: name, Queue: 3}) || unsafe.StringData(w.of.Topic) == unsafe.StringData(name) {
		t.Errorf("a watch of %+v, want one with a copy of the name", w.of)
	}
}

// Receives, messages, reports and the end of the stream at once leave no watch behind.
func TestWatchesAtOnce(t *testing.T) {
	t.Parallel()
	topics := strings.Fields("a b c d")
	s := newWatched(t, 3, topics...)
	var wg sync.WaitGroup
	for _, topic := range topics {
		wg.Go(func() {
			for i := range 200 {
				w := s.Watch(topic, -1)
				if w == nil {
					continue
				}
				if _, err := s.b.Engine().Poll(t.Context(), engine.Request{
					ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: topic, Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute},
					Watch:          w.Watch,
				}); err != nil {
					t.Error(err)
				}
				if w.Keep() && i%7 == 0 {
					w.Report()
				}
			}
		})
		wg.Go(func() {
			for range 200 {
				s.send(topic)
			}
		})
	}
	wg.Go(func() {
		for i := range 400 {
			if s.Due(); i%10 == 0 {
				s.WakeWatches()
			}
		}
	})
	wg.Wait()
	if n := int(s.limit.Count()); n != len(s.watches) || n > 3 {
		t.Errorf("%d watches are kept, and the limit counts %d", len(s.watches), n)
	}
	s.End()
	assert.Equal(t, "after the end the limit counts watches", s.limit.Count(), 0)
}

// The latest stream of a client takes its watches: an earlier one may have lost its connection.
func TestWatchingStream(t *testing.T) {
	t.Parallel()
	r := New(MaxSettingsBytes, &forgets{})
	defer r.Close()
	limit := NewLimit(10)
	streams := make([]*Stream, 12)
	var c *Client
	attach := func(i int) {
		t.Helper()
		var err error
		if c, err = r.Attach("client", of("key"), streams[i], &Profile{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range streams {
		streams[i] = NewStream(anySender{})
		if i != 11 {
			streams[i].TakeWatches(limit)
		}
		if attach(i); i < 11 && r.Watching(c) != streams[i] {
			t.Fatalf("stream %d is not the latest", i)
		}
	}
	assert.That(t, r.Watching(c) == nil, "an earlier stream takes watches of a client whose latest stream takes none")
	r.Detach("client", streams[11])
	if attach(0); r.Watching(c) != streams[10] {
		t.Error("further settings make an earlier stream the latest")
	}
	for _, s := range streams {
		r.Detach("client", s)
	}
	assert.That(t, r.Watching(c) == nil, "a client without streams has a stream")
}
