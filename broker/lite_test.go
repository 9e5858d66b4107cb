package broker_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// lites are messages of lite topics below the topic "p". Each word is a lite topic and a body, as in
// "a1": the lite topic a.
func lites(words string) (ms []*tidegate.Message) {
	for word := range strings.FieldsSeq(words) {
		ms = append(ms, &tidegate.Message{Topic: "p", LiteTopic: word[:1], Body: []byte(word)})
	}
	return ms
}

// syncLite changes the lite topics of a consumer of the group "g", whose names are words.
func syncLite(tb testing.TB, b *broker.Broker, id string, action transport.LiteAction, names string) {
	tb.Helper()
	assert.Must(tb, trySync(tb, b, id, action, names, transport.LiteStart{}))
}

func trySync(tb testing.TB, b *broker.Broker, id string, action transport.LiteAction, names string, start transport.LiteStart) error {
	return b.SyncLite(tb.Context(), transport.LiteSync{
		LiteConsumer: transport.LiteConsumer{Group: "g", Topic: "p", ID: id}, Action: action, Topics: strings.Fields(names), Start: start,
	})
}

// takeLite receives what is there for a consumer.
func takeLite(tb testing.TB, b *broker.Broker, id string, edit ...func(*transport.ReceiveRequest)) []*tidegate.Delivery {
	tb.Helper()
	r := transport.ReceiveRequest{Group: "g", Topic: "p", Push: true, Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute, LiteConsumer: id}
	for _, e := range edit {
		e(&r)
	}
	return receive(tb, b, r)
}

// receiveLite is receive, from all lite topics if the topic has some.
func receiveLite(tb testing.TB, b *broker.Broker, r transport.ReceiveRequest) []*tidegate.Delivery {
	tb.Helper()
	if s := assert.Value(b.TopicSettings(r.Topic))(tb); s.Type != settings.TopicLite {
		return receive(tb, b, r)
	}
	r.LiteConsumer = "all"
	all := transport.LiteSync{LiteConsumer: transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}}
	for _, lt := range assert.Value(b.LiteTopics(r.Topic, status.LiteTopicQuery{Limit: 1000}))(tb).LiteTopics {
		all.Topics = append(all.Topics, lt.Name)
	}
	assert.Must(tb, b.SyncLite(tb.Context(), all))
	return receive(tb, b, r)
}

// words returns the bodies of deliveries in alphabetical order of the lite topics.
func words(tb testing.TB, ds []*tidegate.Delivery) string {
	tb.Helper()
	var all []string
	for _, d := range ds {
		assert.That(tb, d.LiteTopic == string(d.Body[:1]) && d.Topic == "p" && d.MessageGroup == "", "%s: the topic is %q, the lite topic %q", d.Body, d.Topic, d.LiteTopic)
		all = append(all, string(d.Body))
	}
	return sorted(all)
}

func ack(tb testing.TB, b *broker.Broker, ds ...*tidegate.Delivery) {
	tb.Helper()
	for _, err := range b.Ack(tb.Context(), ds) {
		assert.Must(tb, err)
	}
}

// A consumer receives the messages of its lite topics and no others, one of each lite topic at a time,
// in order. A group keeps its place in a lite topic when no consumer subscribes to it, and over a
// restart.
func TestLiteTopics(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		syncLite(t, b, "c1", transport.LiteSet, "a b")
		mustSend(t, b, lites("a1 a2 b1 c1 c2 a3")...)
		first := takeLite(t, b, "c1")
		assert.Equal(t, "the first of a and b", words(t, first), "a1 b1")
		assert.Equal(t, "while they are in flight", words(t, takeLite(t, b, "c1")), "")
		ack(t, b, first...)
		second := takeLite(t, b, "c1")
		assert.Equal(t, "after the acknowledgements", words(t, second), "a2")
		syncLite(t, b, "c1", transport.LiteRemove, "a")
		syncLite(t, b, "c2", transport.LiteAdd, "c")
		ack(t, b, second...)
		assert.Equal(t, "without a", words(t, takeLite(t, b, "c1")), "")
		c1 := takeLite(t, b, "c2")
		assert.Equal(t, "of the other consumer", words(t, c1), "c1")
		ack(t, b, c1...)
		b = reopen(t, b, fs)
		assert.Equal(t, "after a restart, which forgets the sets", words(t, takeLite(t, b, "c1")), "")
		syncLite(t, b, "c1", transport.LiteSet, "a b c")
		assert.Equal(t, "after a restart", words(t, takeLite(t, b, "c1")), "a3 c2")
	})
}

// A request with a duplicate is written in two steps; each message is stored once, in order.
func TestDuplicatesInLiteTopics(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		first := lites("a1")
		mustSend(t, b, first...)
		batch := lites("b1 b2 a1 a2")
		batch[2].ID = first[0].ID
		mustSend(t, b, batch...)
		var got []string
		for _, d := range receiveAll(t, b, "p") {
			got = append(got, string(d.Body))
		}
		assert.Equal(t, "what is stored", sorted(got), "a1 a2 b1 b2")
	})
}

// A waiting receive is woken by a message of its lite topics, by a lite topic with messages that is
// added, by the end of the message before, and by a message that is due again.
func TestWaitOfLiteTopics(t *testing.T) {
	for name, event := range map[string]struct {
		wake func(t *testing.T, b *broker.Broker, inFlight *tidegate.Delivery)
		want string
	}{
		"message":  {func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) { mustSend(t, b, lites("x9 b1")...) }, "b1"},
		"new name": {func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) { mustSend(t, b, lites("e1")...) }, "e1"},
		"subscription": {func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) {
			syncLite(t, b, "c", transport.LiteAdd, "d")
		}, "d1"},
		"acknowledged": {func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) { ack(t, b, d) }, "a2"},
		"released":     {func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) { settle(t, b, d, transport.Verdict{}) }, "a1"},
		"retry": {func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Second})
		}, "a1"},
		"dead letter": {func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter})
		}, "a2"},
		"lease is over": {func(*testing.T, *broker.Broker, *tidegate.Delivery) { elapse(70 * time.Second) }, "a1"},
		"rewind": {func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "p", status.Position{Earliest: true})))
		}, "a1"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
			mustSend(t, b, lites("a1 a2 d1")...)
			syncLite(t, b, "c", transport.LiteSet, "a b e")
			d := takeLite(t, b, "c")[0]
			got := make(chan string, 1)
			go func() {
				got <- words(t, takeLite(t, b, "c", func(r *transport.ReceiveRequest) { r.Wait = 5 * time.Minute }))
			}()
			synctest.Wait()
			began := time.Now()
			event.wake(t, b, d)
			assert.Equal(t, "the receive", <-got, event.want)
			assert.That(t, time.Since(began) <= 70*time.Second, "it waited for %v", time.Since(began))
		})
	}
}

// Two consumers share a lite topic. The second one goes on when the first one leaves without taking
// what it was woken for.
func TestSharedLiteTopic(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		got := make(chan string, 8)
		for _, id := range []string{"c1", "c2"} {
			syncLite(t, b, id, transport.LiteSet, "a b c")
			go func() {
				for {
					ds, err := b.Receive(t.Context(), transport.ReceiveRequest{
						Group: "g", Topic: "p", Queue: transport.AnyQueue, Max: 1, Wait: time.Hour, InvisibleDuration: time.Minute, LiteConsumer: id,
					})
					if err != nil {
						return
					}
					got <- string(ds[0].Body)
				}
			}()
		}
		synctest.Wait()
		mustSend(t, b, lites("a1 b1 c1")...)
		var all []string
		for range 3 {
			all = append(all, <-got)
		}
		assert.Equal(t, "what both received", sorted(all), "a1 b1 c1")
		assert.Must(t, b.DeleteTopic(t.Context(), "p")) // ends the receives with an error
	})
}

// A lite topic without messages and consumers is removed when its time is over, with its messages; its
// queue serves another one, whose messages no old progress affects.
func TestLiteTopicsExpire(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite, Lite: settings.LiteParent{Expiry: settings.Duration(time.Hour)}})
		names := func() string {
			page := assert.Value(b.LiteTopics("p", status.LiteTopicQuery{}))(t)
			var all []string
			for _, lt := range page.LiteTopics {
				all = append(all, fmt.Sprint(lt.Name, lt.Messages))
			}
			assert.Equal(t, "their number", page.Total, len(all))
			assert.Equal(t, "their number in the topic", assert.Value(b.Topic("p"))(t).LiteTopics, len(all))
			return sorted(all)
		}
		mustSend(t, b, lites("a1 a2 b1 b2")...)
		syncLite(t, b, "c", transport.LiteSet, "a")
		a1 := takeLite(t, b, "c")
		elapse(50 * time.Minute) // the consumer is forgotten after two of them
		assert.Equal(t, "before their time is over", names(), "a2 b2")
		mustSend(t, b, lites("b3")...)
		elapse(10 * time.Minute)
		assert.Equal(t, "an hour after the last message, less after the last consumer", names(), "a2 b3")
		elapse(3 * time.Minute)
		assert.Equal(t, "after the time of a", names(), "b3")
		assert.MustIs(t, "an acknowledgement of a removed message", b.Ack(t.Context(), a1)[0], tidegate.ErrInvalidHandle)
		b = reopen(t, b, fs)
		assert.Equal(t, "after a restart", names(), "b3")
		mustSend(t, b, lites("z1 z2")...)
		syncLite(t, b, "c", transport.LiteSet, "z")
		z1 := takeLite(t, b, "c")
		assert.Equal(t, "of the lite topic after it", words(t, z1), "z1")
		ack(t, b, z1...)
		b = reopen(t, b, fs)
		assert.Equal(t, "after another restart", names(), "b3 z2")
		syncLite(t, b, "c", transport.LiteSet, "a b z")
		assert.Equal(t, "then", words(t, takeLite(t, b, "c")), "b1 z2")
		for range 100 { // a consumer that is heard of keeps its lite topics
			elapse(time.Minute)
			syncLite(t, b, "c", transport.LiteAdd, "")
		}
		assert.Equal(t, "with a consumer", names(), "a0 b3 z2")
	})
}

// The numbers of lite topics of a parent and of a consumer are bounded, and names are checked. A
// rejected change changes nothing.
func TestLimitsOfLiteTopics(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite, Lite: settings.LiteParent{MaxTopics: 3}})
		putGroup(t, b, "g", settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: "p", MaxTopics: 2}})
		putTopic(t, b, "normal", settings.Topic{})
		reject := func(err error, code tidegate.Code, words ...string) {
			t.Helper()
			if assert.Equal(t, "the code of "+fmt.Sprint(err), codeOf(err), code); err != nil {
				assert.Contains(t, "the error", err.Error(), words...)
			}
		}
		syncLite(t, b, "c", transport.LiteSet, "a b")
		reject(trySync(t, b, "c", transport.LiteAdd, "c", transport.LiteStart{}), protocol.CodeLiteSubscriptionQuotaExceeded, "3 lite topics", "limit is 2", "lite.max_topics")
		syncLite(t, b, "d", transport.LiteSet, "c")
		reject(trySync(t, b, "d", transport.LiteAdd, "d", transport.LiteStart{}), protocol.CodeLiteTopicQuotaExceeded, "3 lite topics", "limit is 3")
		reject(send(t, b, lites("e1")...)[0].Err, protocol.CodeLiteTopicQuotaExceeded, "limit is 3")
		reject(trySync(t, b, "d", transport.LiteAdd, strings.Repeat("n", 65), transport.LiteStart{}), protocol.CodeIllegalLiteTopic, "65 bytes", "64")
		reject(trySync(t, b, "", transport.LiteAdd, "a", transport.LiteStart{}), tidegate.CodeBadRequest, "ID")
		reject(trySync(t, b, "d", transport.LiteAdd, "a", transport.LiteStart{Newest: true, Oldest: true}), tidegate.CodeBadRequest, "start")
		mustSend(t, b, lites("a1 b1 c1")...)
		assert.Equal(t, "the first consumer", words(t, takeLite(t, b, "c")), "a1 b1")
		assert.Equal(t, "the second consumer", words(t, takeLite(t, b, "d")), "c1")

		plain := &tidegate.Message{Topic: "p", Body: []byte("x")}
		reject(send(t, b, plain)[0].Err, protocol.CodeMessagePropertyConflict, "LITE", "NORMAL", "lite topic")
		reject(send(t, b, &tidegate.Message{Topic: "normal", LiteTopic: "a", Body: []byte("x")})[0].Err, protocol.CodeMessagePropertyConflict, "NORMAL", `lite topic "a"`)
		receiveFrom := func(group, topic, id string) error {
			return assert.Err(b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, LiteConsumer: id}))
		}
		reject(receiveFrom("g", "p", ""), tidegate.CodeBadRequest, "lite topics", "subscribes")
		reject(receiveFrom("g", "normal", ""), tidegate.CodeBadRequest, `"p"`, `"normal"`, "another group")
		reject(receiveFrom("g", "normal", "c"), tidegate.CodeBadRequest, "NORMAL", "LITE")
		putGroup(t, b, "unbound", settings.Group{})
		reject(receiveFrom("unbound", "p", "c"), tidegate.CodeBadRequest, "not bound", "lite.topic")
		reject(assert.Err(b.PutGroup(t.Context(), "g", settings.Group{FIFO: true})), tidegate.CodeBadRequest, "lite.topic")

		const most = 10_000
		for i := 2; i < most; i++ { // beside the two
			syncLite(t, b, fmt.Sprint(i), transport.LiteSet, "")
		}
		reject(trySync(t, b, "more", transport.LiteSet, "", transport.LiteStart{}), tidegate.CodeTooManyRequests, "10000 consumers")
		reject(receiveFrom("g", "p", "more"), tidegate.CodeTooManyRequests, "10000 consumers")
		elapse(3 * time.Minute)
		syncLite(t, b, "more", transport.LiteSet, "")
	})
}

// A consumer can begin at the ends of a lite topic and in between; only lite topics that it does not
// have yet move.
func TestStartOfLiteTopics(t *testing.T) {
	for _, c := range []struct {
		start transport.LiteStart
		want  string
	}{
		{transport.LiteStart{}, "a2"},
		{transport.LiteStart{Oldest: true}, "a1"},
		{transport.LiteStart{Newest: true}, ""},
		{transport.LiteStart{Last: 1}, "a4"},
		{transport.LiteStart{Last: 9}, "a1"},
		{transport.LiteStart{Offset: 2}, "a3"},
		{transport.LiteStart{Offset: 99}, ""},
		{transport.LiteStart{Time: time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)}, "a3"}, // a bubble begins in 2000
	} {
		subtest(t, fmt.Sprintf("%+v", c.start), func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
			mustSend(t, b, lites("a1 a2")...)
			time.Sleep(time.Minute)
			mustSend(t, b, lites("a3 a4")...)
			syncLite(t, b, "before", transport.LiteSet, "a")
			ack(t, b, takeLite(t, b, "before")...)
			syncLite(t, b, "before", transport.LiteSet, "")
			assert.Must(t, trySync(t, b, "c", transport.LiteAdd, "a", c.start))
			assert.Must(t, trySync(t, b, "c", transport.LiteAdd, "a", transport.LiteStart{Oldest: true}))
			assert.Equal(t, "the next message", words(t, takeLite(t, b, "c")), c.want)
		})
	}
}

// A new consumer of an exclusive group takes a lite topic over. The one before it hears that, and that
// a lite topic was deleted.
func TestEndOfLiteTopics(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		putGroup(t, b, "g", settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: "p", Exclusive: true}})
		consumer := transport.LiteConsumer{Group: "g", Topic: "p", ID: "c1"}
		ended, over := make(chan string, 8), make(chan error, 1)
		go func() { over <- b.ServeLite(t.Context(), consumer, func(name string) { ended <- name }) }()
		synctest.Wait()
		mustSend(t, b, lites("a1 b1")...)
		syncLite(t, b, "c1", transport.LiteSet, "a b")
		syncLite(t, b, "c2", transport.LiteAdd, "a")
		assert.Equal(t, "taken over", <-ended, "a")
		assert.Must(t, b.DeleteLiteTopic(t.Context(), "p", "b"))
		assert.Equal(t, "deleted", <-ended, "b")
		assert.Equal(t, "the first consumer", words(t, takeLite(t, b, "c1")), "")
		assert.Equal(t, "the second consumer", words(t, takeLite(t, b, "c2")), "a1")
		page := assert.Value(b.LiteTopics("p", status.LiteTopicQuery{}))(t)
		assert.Equal(t, "what is left", fmt.Sprintf("%d %s %+v", page.Total, page.LiteTopics[0].Name, page.LiteTopics[0].Groups), "1 a [{Group:g Backlog:1 Consumers:[c2]}]")
		assert.Equal(t, "the code of another deletion", codeOf(b.DeleteLiteTopic(t.Context(), "p", "b")), tidegate.CodeNotFound)
		mustSend(t, b, lites("b2")...)
		syncLite(t, b, "c1", transport.LiteAdd, "b")
		assert.Equal(t, "of the new lite topic with the name", words(t, takeLite(t, b, "c1")), "b2")
		go func() { _ = b.ServeLite(t.Context(), consumer, func(string) {}) }()
		assert.Equal(t, "the code of the first ServeLite", codeOf(<-over), tidegate.CodeBadRequest)
	})
}

// A message keeps its lite topic in a dead letter and its redrive. In a group that parks, the lite
// topic stops.
func TestFailuresInLiteTopics(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, Lite: settings.LiteGroup{Topic: "p"}})
		syncLite(t, b, "c", transport.LiteSet, "a b")
		mustSend(t, b, lites("a1 a2 b1")...)
		ds := takeLite(t, b, "c")
		assert.Equal(t, "the first ones", words(t, ds), "a1 b1")
		for _, d := range ds {
			settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule})
		}
		a2 := takeLite(t, b, "c")
		assert.Equal(t, "behind a dead letter", words(t, a2), "a2")
		ack(t, b, a2...)
		assert.Equal(t, "redriven", assert.Value(b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{}))(t).Redriven, 2)
		assert.Equal(t, "after the redrive", words(t, takeLite(t, b, "c")), "a1 b1")

		putTopic(t, b, "p2", settings.Topic{Type: settings.TopicLite})
		putGroup(t, b, "parks", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark, Lite: settings.LiteGroup{Topic: "p2"}})
		assert.Must(t, b.SyncLite(t.Context(), transport.LiteSync{LiteConsumer: transport.LiteConsumer{Group: "parks", Topic: "p2", ID: "c"}, Topics: []string{"a"}}))
		mustSend(t, b, &tidegate.Message{Topic: "p2", LiteTopic: "a", Body: []byte("1")}, &tidegate.Message{Topic: "p2", LiteTopic: "a", Body: []byte("2")})
		take := func() string {
			ds := receive(t, b, transport.ReceiveRequest{Group: "parks", Topic: "p2", Push: true, Queue: -1, Max: 9, InvisibleDuration: time.Minute, LiteConsumer: "c"})
			for _, d := range ds {
				settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule})
			}
			return bodies(ds)
		}
		assert.Equal(t, "the first receive", take(), "1")
		assert.Equal(t, "while it is parked", take(), "")
		parked := assert.Value(b.Parked("parks", status.ParkedQuery{}))(t).Groups
		assert.MustThat(t, len(parked) == 1 && parked[0].MessageGroup == "a" && parked[0].Messages == 2, "parked are %+v, want the two messages of a", parked)
		assert.Equal(t, "redriven", assert.Value(b.RedriveParked(t.Context(), "parks", status.ParkedSelection{}))(t).Messages, 2)
		assert.Equal(t, "after the redrive", take(), "1")
	})
}

func sorted(words []string) string {
	slices.Sort(words)
	return strings.Join(words, " ")
}

// The power fails at any write while lite topics are deleted and their queues serve others. A message
// of a lite topic that was not deleted is there once, one of a deleted lite topic is not, and a lite
// topic never gets the messages of another one.
func TestPowerLossWhileLiteTopicsEnd(t *testing.T) {
	t.Parallel()
	type state struct {
		fs      *vfs.MemFS
		at      time.Time
		i       int
		sent    map[string]bool // bodies of confirmed sends, except those of lite topics under deletion
		deleted map[string]bool // bodies that were there at a confirmed deletion
	}
	var crashes []state
	synctest.Test(t, func(t *testing.T) {
		fs := newCrashFS(vfs.NewCrashableMem())
		var mu sync.Mutex
		sent, deleted := map[string]bool{}, map[string]bool{}
		promise := func(change func()) {
			mu.Lock()
			defer mu.Unlock()
			change()
		}
		fs.before = func(i int) {
			mu.Lock()
			defer mu.Unlock()
			crashes = append(crashes, state{fs.clone(50*(i%2), uint64(i)), time.Now(), i, maps.Clone(sent), maps.Clone(deleted)}) //nolint:gosec // small
		}
		b := assert.Value(broker.Open(crashOptions(fs)))(t)
		putTopic(t, b, "p", settings.Topic{Type: settings.TopicLite})
		for round := range 4 {
			for _, name := range []string{"a", "b", "c"} {
				for n := range 2 {
					body := fmt.Sprint(name, round, n)
					mustSend(t, b, &tidegate.Message{Topic: "p", LiteTopic: name, Body: []byte(body)})
					promise(func() { sent[body] = true })
				}
			}
			syncLite(t, b, "c", transport.LiteSet, "a")
			takeLite(t, b, "c") // in flight when its lite topic is deleted
			gone := []string{"a", "b"}[round%2]
			before := maps.Clone(sent)
			promise(func() { maps.DeleteFunc(sent, func(body string, _ bool) bool { return body[:1] == gone }) })
			assert.Must(t, b.DeleteLiteTopic(t.Context(), "p", gone))
			promise(func() {
				maps.Copy(deleted, before)
				maps.DeleteFunc(deleted, func(body string, _ bool) bool { return sent[body] })
			})
		}
		assert.Must(t, b.Close())
	})
	assert.MustThat(t, len(crashes) > 50, "the run has %d writes", len(crashes))
	for i, c := range crashes {
		if i%max(1, len(crashes)/soak(1000)) != 0 {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(c.at))
			b := assert.Value(broker.Open(crashOptions(c.fs)))(t)
			defer func() { assert.Must(t, b.Close()) }()
			if _, err := b.Topic("p"); err != nil {
				assert.Equal(t, "messages of a topic that is not there", len(c.sent), 0)
				return
			}
			elapse(time.Minute) // what the deletion has left is removed
			mustSend(t, b, &tidegate.Message{Topic: "p", LiteTopic: "d", Body: []byte("d-new")})
			listed := map[string]bool{}
			for _, lt := range assert.Value(b.LiteTopics("p", status.LiteTopicQuery{}))(t).LiteTopics {
				listed[lt.Name] = true
			}
			got := map[string]int{}
			for _, d := range receiveAll(t, b, "p") {
				body := string(d.Body)
				got[body]++
				assert.That(t, body[:1] == d.LiteTopic && listed[d.LiteTopic] && !c.deleted[body],
					"write %d: lite topic %q of %v has %q; deleted are %v", c.i, d.LiteTopic, listed, body, c.deleted)
			}
			for body := range c.sent {
				assert.That(t, got[body] == 1, "write %d: %q was received %d times", c.i, body, got[body])
			}
			assert.Equal(t, "the new message", got["d-new"], 1)
		})
	}
}
