package broker_test

import (
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
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestSettingsSurviveAndAreChecked(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		topic := settings.Topic{Type: settings.TopicFIFO, Queues: 3, MaxBacklog: settings.Limit{Messages: 7}}
		group := settings.Group{
			FIFO: true, Start: settings.StartLatest, MaxAttempts: -1, OnExhausted: settings.OnExhaustedPark, Retry: backoff.Steps{time.Second}, FIFORetryInterval: settings.Duration(time.Minute), MaxBacklog: settings.Limit{Bytes: 9},
			RetryTopic: settings.RetryTopic{
				Naming: "2.7.2", Topic: "r", DeadLetterTopic: "d", MaxRetries: 3, Levels: backoff.Steps{time.Second}, SubscriptionType: "failover",
			},
			NegativeAck: settings.NegativeAck{Delay: settings.Duration(time.Hour), MaxRedeliveries: 5},
		}
		putTopic(t, b, "t", topic)
		putGroup(t, b, "g", group)
		topic.Queues = 5
		putTopic(t, b, "t", topic)
		b = reopen(t, b, fs)
		got, err := b.Topic("t")
		assert.That(t, err == nil && got.Topic == topic, "topic: %+v, %v; want %+v", got, err, topic)
		if got, err := b.Group("g"); err != nil || fmt.Sprint(got.Group) != fmt.Sprint(group) {
			t.Errorf("group: %+v, %v; want %+v", got, err, group)
		}
	})
}

// The process ends during a deletion, before its response. A topic or group that still exists then
// has its progress.
func TestDeletionThatIsCutOffKeepsProgress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, what := range []string{"topic", "group"} {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			assert.Must(t, b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))[0])
			release := holdWrites(b)
			done := make(chan error)
			go func() {
				if what == "topic" {
					done <- b.DeleteTopic(t.Context(), "t")
				} else {
					done <- b.DeleteGroup(t.Context(), "g")
				}
			}()
			synctest.Wait() // the progress is gone
			cut := fs.CrashClone(vfs.CrashCloneCfg{})
			release()
			assert.Must(t, <-done)
			b = open(t, broker.Options{Dir: "data"}.On(cut))
			if g, err := b.Group("g"); err != nil || len(g.Topics) != 1 || g.Topics[0].Backlog.Messages != 0 {
				t.Errorf("after a cut-off deletion of the %s: %+v, %v", what, g, err)
			}
		}
	})
}

// Receives create up to MaxAutoGroups groups. Groups of PutGroup do not count. A deletion permits a
// new group. A restart changes none of this.
func TestMaxAutoGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := broker.Options{Dir: "data", MaxAutoGroups: 2, MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(vfs.NewMem())
		b, err := broker.Open(o)
		assert.Must(t, err)
		defer func() { b.Close() }()
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		takes := func(group string, want bool) {
			t.Helper()
			groups := len(b.Groups())
			_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 1})
			_, ensured := serve(b).EnsureGroup(t.Context(), group)
			assert.MustThat(t, (err == nil) == want && (ensured == nil) == want, "group %s: %v, %v", group, err, ensured)
			if want {
				return
			}
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != protocol.CodeConsumerGroupNotFound || !strings.Contains(err.Error(), "limit of 2 auto-created groups") || !strings.Contains(err.Error(), "PUT /v1/groups/"+group) {
				t.Errorf("group %s: %v", group, err)
			}
			assert.Equal(t, "groups were before a refusal", len(b.Groups()), groups)
		}
		putGroup(t, b, "mine", settings.Group{})
		takes("a", true)
		takes("b", true)
		takes("c", false)
		takes("mine", true)
		takes("a", true)
		putGroup(t, b, "c", settings.Group{})
		takes("c", true)
		takes("d", false)
		putGroup(t, b, "a", settings.Group{}) // does not count from now on
		takes("d", true)
		takes("e", false)
		if g, err := b.Group("a"); err != nil || g.AutoCreated {
			t.Errorf("a group that was put is %+v, %v", g, err)
		}
		if g, err := b.Group("d"); err != nil || !g.AutoCreated {
			t.Errorf("one that was not is %+v, %v", g, err)
		}
		assert.Must(t, b.Close())
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
		takes("e", false)
		for _, name := range []string{"d", "mine"} {
			assert.Must(t, b.DeleteGroup(t.Context(), name))
		}
		takes("e", true)
		takes("f", false)
		if _, err := broker.Open(broker.Options{MaxAutoGroups: -1}); err == nil || !strings.Contains(err.Error(), "MaxAutoGroups is -1") {
			t.Errorf("a negative maximum: %v", err)
		}
	})
}

// A serverLog is a server that records its calls.
type serverLog struct {
	name  string
	takes bool // has a producer for each check
	calls *[]string
}

func (r *serverLog) CheckTransaction(c engine.TransactionCheck) bool {
	*r.calls = append(*r.calls, r.name+" check "+c.Message.ID)
	c.Message.ID = "changed" // it may change its message
	return r.takes
}

func (r *serverLog) ConsumerSettingsChanged(group string) {
	*r.calls = append(*r.calls, r.name+" settings "+group)
}

// A check goes to the servers in the order of Attach until one takes it. All servers learn of
// changed settings. A server that is detached gets no more calls.
func TestServers(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var calls []string
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(calls, want) {
				t.Errorf("%s: the calls are %s; want %s", when, strings.Join(calls, ", "), strings.Join(want, ", "))
			}
			calls = nil
		}
		none, first, second := &serverLog{"none", false, &calls}, &serverLog{"first", true, &calls}, &serverLog{"second", true, &calls}
		for _, s := range []*serverLog{none, first, second} {
			serve(b).Attach(s)
		}
		sendHalf(t, b, "m")
		<-time.After(7 * time.Second)
		expect("all are attached", "none check m", "first check m")
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		expect("a group", "none settings g", "first settings g", "second settings g")
		serve(b).Detach(first)
		<-time.After(30 * time.Second)
		expect("the first is detached", "none check m", "second check m")
		assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "t", settings.Address{})))
		expect("address settings", "none settings ", "second settings ")
	})
}

// The queues of a topic have their offsets and times, and those of a group its progress.
func TestQueues(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		putTopic(t, b, "other", settings.Topic{Queues: 1})
		begin := time.Now()
		for range 12 { // four in each queue, in turn
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			time.Sleep(time.Second)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: 1, Max: 3, InvisibleDuration: time.Hour})
		assert.MustEqual(t, "deliveries", len(ds), 3)
		assert.Must(t, b.Ack(t.Context(), ds[:1])[0])
		var queues []status.Queue
		var progress []status.GroupQueue
		for after := ""; ; {
			page, err := serve(b).QueuesPage("t", after, 1)
			assert.MustThat(t, err == nil && len(page.Queues) == 1, "%+v, %v", page, err)
			of, err := serve(b).GroupQueues("g", "t", after, 1)
			assert.MustThat(t, err == nil && len(of.Queues) == 1 && of.Next == page.Next, "%+v, %v", of, err)
			queues, progress = append(queues, page.Queues...), append(progress, of.Queues...)
			if after = page.Next; after == "" {
				break
			}
		}
		assert.MustThat(t, len(queues) == 3, "%+v", queues)
		oldest := map[time.Duration]bool{}
		for i, q := range queues {
			oldest[q.Oldest.Sub(begin)] = true
			want := status.Queue{Queue: i, End: 4, Messages: 4, Oldest: q.Oldest, Newest: q.Oldest.Add(9 * time.Second)}
			if !q.Newest.Equal(want.Newest) || q.Queue != want.Queue || q.Begin != want.Begin || q.End != want.End || q.Messages != want.Messages {
				t.Errorf("%+v, want %+v", q, want)
			}
			g := status.GroupQueue{Queue: i, End: 4, Undelivered: 4}
			first := q.Oldest
			if i == 1 {
				g.Cursor, g.Undelivered, g.Unfinished, first = 3, 1, 2, q.Newest
			}
			if g.Oldest = progress[i].Oldest; progress[i] != g || !g.Oldest.Equal(first) {
				t.Errorf("%+v, want %+v with %v", progress[i], g, first)
			}
		}
		assert.That(t, oldest[0] && oldest[time.Second] && oldest[2*time.Second], "the queues begin at %v", oldest)
		for name, f := range map[string]func() error{
			"topic":    func() error { _, err := serve(b).QueuesPage("x", "", 0); return err },
			"limit":    func() error { _, err := serve(b).QueuesPage("t", "", 1001); return err },
			"after":    func() error { _, err := serve(b).QueuesPage("t", "-1", 0); return err },
			"group":    func() error { _, err := serve(b).GroupQueues("x", "t", "", 0); return err },
			"received": func() error { _, err := serve(b).GroupQueues("g", "other", "", 0); return err },
			"after of": func() error { _, err := serve(b).GroupQueues("g", "t", "x", 0); return err },
		} {
			want := map[string]tidegate.Code{
				"topic": tidegate.CodeTopicNotFound, "group": protocol.CodeConsumerGroupNotFound, "received": protocol.CodeConsumerGroupNotFound,
			}[name]
			if want == 0 {
				want = tidegate.CodeBadRequest
			}
			e, ok := errors.AsType[*tidegate.Error](f())
			assert.That(t, ok && e.Code == want, "%s: %v", name, f())
		}
		page, err := serve(b).QueuesPage("t", "7", 0)
		assert.That(t, err == nil && len(page.Queues) == 0 && page.Next == "", "after the last queue: %+v, %v", page, err)
	})
}

// A dry run of a rewind and of a purge has the result of the call, and changes nothing.
func TestDryRuns(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]status.Position{
		"earliest": {Earliest: true}, "latest": {Latest: true}, "time": {Time: time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC)}, "offsets": {Offsets: map[int]int64{1: 2}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
			putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
			for i := range 40 {
				mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: fmt.Sprint(i % 4), Body: []byte("x")})
				time.Sleep(time.Second)
			}
			for i := range 4 { // two parked, one in flight, one done and its successor ready
				for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Hour}) {
					switch i {
					case 0, 1:
						settle(t, b, d, transport.Verdict{Kind: transport.Retry})
					case 2:
						assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
					}
				}
			}
			synctest.Wait()
			before, err := b.Group("g")
			assert.Must(t, err)
			plan, err := serve(b).PlanRewind("g", "t", to)
			assert.Must(t, err)
			if after, err := b.Group("g"); err != nil || !reflect.DeepEqual(after.Topics, before.Topics) {
				t.Errorf("the plan changed %+v to %+v, %v", before.Topics, after.Topics, err)
			}
			done, err := b.Rewind(t.Context(), "g", "t", to)
			assert.That(t, err == nil && fmt.Sprint(done) == fmt.Sprint(plan), "the rewind is %+v, %v; the plan was %+v", done, err, plan)
			counted, err := serve(b).CountPurge("t")
			assert.Must(t, err)
			if purged, err := b.PurgeTopic(t.Context(), "t"); err != nil || purged != counted || purged.Messages != 40 {
				t.Errorf("the purge is %+v, %v; %+v were counted", purged, err, counted)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay})
		sendHalf(t, b, "m")
		mustSend(t, b, &tidegate.Message{Topic: "d", Body: []byte("xyz"), DeliverAt: time.Now().Add(time.Hour)})
		for topic, bytes := range map[string]int64{"t": 0, "d": 3} {
			counted, err := serve(b).CountPurge(topic)
			assert.That(t, err == nil && counted == (status.Backlog{Messages: 1, Bytes: bytes}), "%s has %+v, %v", topic, counted, err)
			if purged, err := b.PurgeTopic(t.Context(), topic); err != nil || purged.Messages != 1 {
				t.Errorf("%s: %+v, %v", topic, purged, err)
			}
		}
		for name, f := range map[string]func() error{
			"no topic":    func() error { _, err := serve(b).CountPurge("x"); return err },
			"no group":    func() error { _, err := serve(b).PlanRewind("g", "t", status.Position{Latest: true}); return err },
			"no position": func() error { _, err := serve(b).PlanRewind("g", "t", status.Position{}); return err },
		} {
			assert.That(t, f() != nil, "%s: no error", name)
		}
	})
}
