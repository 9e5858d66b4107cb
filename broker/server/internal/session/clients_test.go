package session

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A forgets counts the calls of Forget by ID.
type forgets struct {
	mu        sync.Mutex
	forgotten map[string]int // guarded by mu
}

func (e *forgets) Forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgotten == nil {
		e.forgotten = map[string]int{}
	}
	e.forgotten[id]++
}

// anySender may send to every topic.
type anySender struct{}

func (anySender) MaySend(string) bool { return true }

// The memory of clients is bounded. Idle clients make room for others, those of the key with the
// most of them first. Clients with receives do not.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &forgets{}
		r := New(MaxSettingsBytes, e)
		defer r.Close()
		park := func(id string) (func(bool), error) {
			_, _, unpark, err := r.Park(t.Context(), id, of(strings.Split(id, "/")[0]))
			return unpark, err
		}
		stay := make([]func(bool), 0, MaxClients)
		for i := range MaxClients {
			id := fmt.Sprintf("greedy/%d", i)
			if i%4 == 0 {
				id = fmt.Sprintf("modest/%d", i)
			}
			unpark := assert.Value(park(id))(t)
			if i%8 < 4 {
				unpark(true)
			} else {
				stay = append(stay, unpark)
			}
		}
		assert.NoError(t, assert.Err(park("other/1")), "others are shut out")
		if want := MaxClients - MaxClients/8*3/2 + 1; r.Len() != want {
			t.Errorf("%d clients are left, want %d", r.Len(), want)
		}
		for i := range MaxClients {
			if i%8 == 0 && r.Get(fmt.Sprintf("modest/%d", i)) == nil || i%8 > 4 && r.Get(fmt.Sprintf("greedy/%d", i)) == nil {
				t.Fatalf("client %d was forgotten", i)
			}
		}
		if n := len(e.forgotten); n > 0 {
			t.Errorf("the engine was asked to forget %d clients, which may have deliveries", n)
		}
		for i := r.Len(); i < MaxClients; i++ {
			unpark := assert.Value(park(fmt.Sprintf("more/%d", i)))(t)
			stay = append(stay, unpark)
		}
		_, err := park("one more")
		if refusal.CodeOf(err) != tidegate.CodeTooManyRequests || !strings.Contains(err.Error(), "100000") {
			t.Errorf("within a second: %v; want 42900 with the limit", err)
		}
		for _, unpark := range stay {
			unpark(true)
		}
	})
}

// of returns the origin of a client.
func of(origin string) func() string { return func() string { return origin } }

// All stored settings together have a limit, from which a client recovers: replaced and removed
// settings no longer count.
func TestSettingsOfAllAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(MaxSettingsBytes, &forgets{})
		defer r.Close()
		var leave []func()
		say := func(id string, in *rmqpb.Settings) tidegate.Code {
			t.Helper()
			p, err := ProfileOf(in, "GO", "5.1.4", false)
			assert.Must(t, err)
			s := NewStream(anySender{})
			leave = append(leave, func() { r.Detach(id, s) })
			if _, err = r.Attach(id, of("here"), s, p, in.GetPublishing().GetTopics()); err == nil {
				return protocol.CodeOK
			}
			if text := err.Error(); !strings.Contains(text, "530 TOO_MANY_REQUESTS") || !strings.Contains(text, "limit") {
				t.Errorf("the error of %s is %q", id, text)
			}
			return refusal.CodeOf(err)
		}
		one := producer(topicNames(10)...)
		for i, c := range []struct {
			id   string
			in   *rmqpb.Settings
			want tidegate.Code
		}{
			{"a", one, protocol.CodeOK},
			{"b", one, protocol.CodeOK},
			{"b", one, protocol.CodeOK}, // in place of the earlier settings
			{"c", one, tidegate.CodeTooManyRequests},
			{"a", producer(), protocol.CodeOK}, // less than before
			{"c", one, protocol.CodeOK},
			{"d", one, tidegate.CodeTooManyRequests},
			{"b", nil, 0}, // announces its end
			{"d", one, protocol.CodeOK},
		} {
			if c.in == nil {
				r.Terminate(c.id)
			} else if got := say(c.id, c.in); got != c.want {
				t.Errorf("%d, %s: %d, want %d", i, c.id, got, c.want)
			}
			if i == 0 {
				r.mu.Lock()
				r.settingsLimit = 2 * (2*r.settingsBytes + 100) // one origin gets half
				r.mu.Unlock()
			}
		}
		r.mu.Lock()
		r.settingsLimit += 2 * publicationSize
		r.mu.Unlock()
		r.Publishes("d", &rmqpb.Resource{Name: "half"})
		r.mu.Lock()
		assert.Equal(t, "clients publish a topic that one sent half messages to", len(r.publishers["half"]), 1)
		r.mu.Unlock()
		for _, f := range leave {
			f()
		}
		time.Sleep(Timeout + expiryInterval)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.settingsBytes != 0 || len(r.originBytes) != 0 || len(r.byID) != 0 || len(r.publishers) != 0 {
			t.Errorf("%d bytes of %d clients and %d topics are kept when all are gone", r.settingsBytes, len(r.byID), len(r.publishers))
		}
	})
}

// Settings that the clients of one origin leave behind do not lock out other origins: an origin can
// use half of the limit, and its disconnected clients are removed for new ones.
func TestOneOriginShutsOutNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4 << 20
		r := New(limit, &forgets{})
		defer r.Close()
		large := assert.Value(ProfileOf(producer(topicNames(500)...), "GO", "5.1.4", false))(t)
		small := assert.Value(ProfileOf(producer("orders"), "GO", "5.1.4", false))(t)
		attach := func(id, origin string, p *Profile) (leave func(), err error) {
			s := NewStream(anySender{})
			_, err = r.Attach(id, of(origin), s, p, nil)
			return func() { r.Detach(id, s) }, err
		}
		// used compares the count with the stored settings.
		used := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			sum := 0
			for _, c := range r.byID {
				if c.profile.Load() != nil {
					sum += len(c.profile.Load().settings)
				}
			}
			assert.Equal(t, "bytes are stored and counted", sum, r.settingsBytes)
			return sum
		}
		// Clients that leave: each second some of the oldest make room for others of the origin.
		refused := 0
		for i := range 5000 {
			leave, err := attach(fmt.Sprintf("leaves/%d", i), "greedy", large)
			if err != nil {
				refused++
			} else {
				leave()
			}
			if used() > limit/2 {
				t.Fatalf("after %d clients, one origin uses %d bytes of %d", i, used(), limit)
			}
			if i%500 == 0 {
				time.Sleep(time.Second)
				leave, err := attach(fmt.Sprintf("other/%d", i), "other", small)
				assert.Must(t, err, "after %d clients, others are shut out", i)
				leave()
			}
		}
		assert.That(t, refused != 0 && refused != 5000, "%d of 5000 were refused", refused)
		// Clients that stay, of three greedy origins.
		for i := range 3000 {
			_, err := attach(fmt.Sprintf("stays/%d", i), fmt.Sprint("greedy-", i%3), large)
			assert.MustThat(t, err == nil || refusal.CodeOf(err) == tidegate.CodeTooManyRequests, "%v", err)
		}
		for i := range 100 {
			if _, err := attach(fmt.Sprintf("last/%d", i), "last", small); err != nil {
				t.Fatalf("beside three greedy origins, client %d: %v", i, err)
			}
		}
		assert.That(t, len(r.byID) <= 1200, "%d clients are remembered, with those that were refused", len(r.byID))
	})
}

// A version is newer by its numbers, not by its text.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		old, young string
		newer      bool
	}{
		{"5.0.9", "5.0.10", true}, {"5.0.10", "5.0.9", false}, {"5.1", "5.1.0", true}, {"v5.1.4", "5.1.4", false}, {"5.1.3-rc1", "v5.1.4", true},
		{"5.1.4", "dev", false}, {"dev", "5.1.4", false}, {"", "5.1.4", true}, {"5.1.4", "", false}, {"-1", "5", false}, {"5..1", "6", false},
	} {
		v, than := version{text: c.young, numbers: numbersOf(c.young)}, version{text: c.old, numbers: numbersOf(c.old)}
		if got := v.newer(&than); got != c.newer {
			t.Errorf("%q is newer than %q: %v", c.young, c.old, got)
		}
	}
}

// crowd returns n clients, half of them consumers with settings.
func crowd(t testing.TB, n int) *Clients {
	r := New(MaxSettingsBytes, &forgets{})
	t.Cleanup(r.Close)
	consumes := assert.Value(ProfileOf(subscriber("orders", "payments"), "GO", "5.1.4", false))(t)
	sends := assert.Value(ProfileOf(producer("orders"), "JAVA", "5.0.7", false))(t)
	for i := range n {
		p, topics := consumes, subscriber().GetPublishing().GetTopics()
		if i%2 == 0 {
			p, topics = sends, producer("orders").GetPublishing().GetTopics()
		}
		assert.Must(t, assert.Err(r.Attach(fmt.Sprintf("host-%d@%d", i, i), of("here"), NewStream(anySender{}), p, topics)))
	}
	return r
}

// all is a principal that may observe the whole broker.
type all struct{}

func (all) Broker() bool      { return true }
func (all) Topic(string) bool { return true }
func (all) Group(string) bool { return true }

// everything is the query of a page.
func everything(q status.ClientQuery) *Listing {
	q.Limit = 100
	return &Listing{ClientQuery: q}
}

// A client that has terminated is not listed, although its stream remains. If it receives again, it
// is.
func TestTerminatedClientIsNotListed(t *testing.T) {
	r := crowd(t, 4) // 1 and 3 are consumers of one group
	r.Terminate("host-1@1")
	group := r.byID["host-3@3"].Profile().Group
	assert.Equal(t, "clients are listed", len(r.Page(everything(status.ClientQuery{}), all{}).Clients), 3)
	assert.Equal(t, "consumers are counted", r.CountGroups()[group], 1)
	_, c, unpark, err := r.Park(t.Context(), "host-1@1", of("here"))
	assert.Must(t, err)
	c.Receives(group, "orders", tidegate.Filter{})
	if got, n := len(r.Page(everything(status.ClientQuery{}), all{}).Clients), r.CountGroups()[group]; got != 4 || n != 2 {
		t.Errorf("during its receive %d clients are listed and %d consumers counted, want 4 and 2", got, n)
	}
	unpark(true)
	assert.Equal(t, "after it clients are listed", len(r.Page(everything(status.ClientQuery{}), all{}).Clients), 4)
}

// Settings that a client sends after its termination in the stream that it had do not list it: the
// timer of RocketMQ's Go client can send some. Those in another stream list it, and those in one
// that shares heartbeats, for which the server asks.
func TestLateSettingsDoNotListClient(t *testing.T) {
	t.Parallel()
	shares := NewStream(anySender{})
	shares.SharesHeartbeats(nil)
	for name, test := range map[string]struct {
		old  *Stream
		more bool // another stream has the settings
		want int
	}{
		"the same stream":         {NewStream(anySender{}), false, 0},
		"it shares heartbeats":    {shares, false, 1},
		"another stream has them": {NewStream(anySender{}), true, 1},
	} {
		r := New(MaxSettingsBytes, &forgets{})
		t.Cleanup(r.Close)
		attach := func(s *Stream) {
			assert.Must(t, assert.Err(r.Attach("c", of("here"), s, &Profile{Group: "g"}, nil)))
		}
		attach(test.old)
		r.Terminate("c")
		late := test.old
		if test.more {
			late = NewStream(anySender{})
		}
		attach(late)
		if n := len(r.Page(everything(status.ClientQuery{}), all{}).Clients); n != test.want {
			t.Errorf("%s: %d clients are listed, want %d", name, n, test.want)
		}
		r.Detach("c", late)
		if r.Detach("c", test.old); r.Len() != test.want {
			t.Errorf("%s: %d clients are known after the end of the streams, want %d", name, r.Len(), test.want)
		}
	}
}

// A page takes memory for the clients in all, and not for their settings.
func TestPageIsCheap(t *testing.T) {
	const n = 10_000
	r := crowd(t, n)
	var page status.ClientPage
	bytes := assert.AllocatedBytes(func() { page = r.Page(everything(status.ClientQuery{}), all{}) })
	if page.Total != n || len(page.Clients) != 100 || len(page.Versions) != 2 {
		t.Fatalf("%d clients, %d on the page, versions %v", page.Total, len(page.Clients), page.Versions)
	}
	assert.That(t, bytes <= 4<<20, "a page of %d clients allocates %d bytes", n, bytes)
}

// A page shows the filters of consumers: those of their settings, and instead that of the last
// receive for its topic. A filter for all messages is none.
func TestFiltersAreListed(t *testing.T) {
	sub := subscriber("orders", "payments", "logs", "newer", "audit")
	for i, e := range []*rmqpb.FilterExpression{
		{Type: rmqpb.FilterType_TAG, Expression: "a || b"},
		{Type: rmqpb.FilterType_SQL, Expression: "price > 15"},
		{Type: rmqpb.FilterType_TAG, Expression: "*"},
		{Type: 77, Expression: "b || a"}, // of a type that the broker does not know
	} {
		sub.GetSubscription().GetSubscriptions()[i].Expression = e
	}
	p := assert.Value(ProfileOf(sub, "GO", "5.1.4", false))(t)
	r := New(MaxSettingsBytes, &forgets{})
	defer r.Close()
	c := assert.Value(r.Attach("c", of("here"), NewStream(anySender{}), p, nil))(t)
	check := func(when string, want map[string]string) {
		t.Helper()
		if got := r.Page(everything(status.ClientQuery{}), all{}).Clients[0].Filters; !maps.Equal(got, want) {
			t.Errorf("%s: the filters are %q, want %q", when, got, want)
		}
	}
	check("with settings", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15", "newer": "unknown type 77: b || a"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "c"})
	check("after a receive", map[string]string{"orders": "c", "payments": "SQL92: price > 15", "newer": "unknown type 77: b || a"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "b||a || b||"})
	check("after a receive of the same tags", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15", "newer": "unknown type 77: b || a"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "*"})
	check("after a receive of all", map[string]string{"payments": "SQL92: price > 15", "newer": "unknown type 77: b || a"})
	c.Receives("g", "other", tidegate.Filter{Expression: strings.Repeat("ü", maxFilter), SQL: true})
	check("after a long one", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15", "newer": "unknown type 77: b || a", "other": "SQL92: " + strings.Repeat("ü", maxFilter/2)})
}

// The texts of a page do not grow with the number of versions.
func TestVersionsAreBounded(t *testing.T) {
	r := New(MaxSettingsBytes, &forgets{})
	defer r.Close()
	for i := range 2 * maxCounted {
		p := assert.Value(ProfileOf(producer("orders"), fmt.Sprint("L", i), "1.0", false))(t)
		assert.Must(t, assert.Err(r.Attach(fmt.Sprint("c", i), of("here"), NewStream(anySender{}), p, nil)))
	}
	if page := r.Page(everything(status.ClientQuery{}), all{}); len(page.Versions) != maxVersions || page.Total != 2*maxCounted {
		t.Errorf("%d versions of %d clients", len(page.Versions), page.Total)
	}
}

// Settings name topics in namespaces of a length that can be repeated.
func TestSettingsAreBounded(t *testing.T) {
	namespace := subscriber("t")
	namespace.GetSubscription().Subscriptions[0].Topic.ResourceNamespace = strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		in   *rmqpb.Settings
		want string // empty: they are taken
	}{
		"2000 subscribed":  {subscriber(topicNames(2000)...), ""},
		"a long namespace": {namespace, "255"},
	} {
		_, err := ProfileOf(c.in, "GO", "5.1.4", false)
		if c.want == "" && err != nil || c.want != "" && (refusal.CodeOf(err) != 40000 || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// subscriber returns the settings of a push consumer of these topics.
func subscriber(topics ...string) *rmqpb.Settings {
	sub := &rmqpb.Subscription{Group: &rmqpb.Resource{Name: "g"}}
	for _, t := range topics {
		sub.Subscriptions = append(sub.Subscriptions, &rmqpb.SubscriptionEntry{Topic: &rmqpb.Resource{Name: t}})
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(), PubSub: &rmqpb.Settings_Subscription{Subscription: sub}}
}

// producer returns the settings of a producer for these topics.
func producer(topics ...string) *rmqpb.Settings {
	pub := &rmqpb.Publishing{}
	for _, t := range topics {
		pub.Topics = append(pub.Topics, &rmqpb.Resource{Name: t})
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: pub}}
}

// topicNames returns n names of topics.
func topicNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint("t", i)
	}
	return out
}

// The texts of a request share memory. The name of a topic does not keep it.
func TestPublishesKeepsNoRequest(t *testing.T) {
	const topics, request = 16, 1 << 20
	r := New(MaxSettingsBytes, &forgets{})
	defer r.Close()
	p := assert.Value(ProfileOf(producer(), "GO", "5.1.4", false))(t)
	s := NewStream(anySender{})
	assert.Must(t, assert.Err(r.Attach("a", of("here"), s, p, nil)))
	defer r.Detach("a", s)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range topics {
		text := strings.Repeat(string(rune('a'+i)), request)
		r.Publishes("a", &rmqpb.Resource{Name: text[:5], ResourceNamespace: text[5:10]})
	}
	if kept := heap() - before; kept > topics*request/2 {
		t.Errorf("%d topics keep %d bytes", topics, kept)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.publishers); n != topics {
		t.Errorf("%d topics are known, want %d", n, topics)
	}
}

// The queue of a stream without a reader is bounded.
func TestChecksOfASlowProducerAreBounded(t *testing.T) {
	s := NewStream(anySender{})
	c := &rmqpb.RecoverOrphanedTransactionCommand{}
	assert.That(t, s.Offer(c, 2*maxCheckBytes) && !s.Offer(c, 1), "one check of any size fits, and then none")
	assert.Equal(t, "were accepted", len(s.Taken()), 1)
	n := 0
	for s.Offer(c, 1) {
		n++
	}
	assert.That(t, n == maxChecks && len(s.Taken()) == n && len(s.Taken()) == 0, "%d fit, want %d", n, maxChecks)
}
