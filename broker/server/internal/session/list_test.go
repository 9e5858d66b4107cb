package session

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
	sub := subscriber("orders", "payments", "logs", "audit")
	for i, e := range []*rmqpb.FilterExpression{
		{Type: rmqpb.FilterType_TAG, Expression: "a || b"},
		{Type: rmqpb.FilterType_SQL, Expression: "price > 15"},
		{Type: rmqpb.FilterType_TAG, Expression: "*"},
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
	check("with settings", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "c"})
	check("after a receive", map[string]string{"orders": "c", "payments": "SQL92: price > 15"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "b||a || b||"})
	check("after a receive of the same tags", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15"})
	c.Receives("g", "orders", tidegate.Filter{Expression: "*"})
	check("after a receive of all", map[string]string{"payments": "SQL92: price > 15"})
	c.Receives("g", "other", tidegate.Filter{Expression: strings.Repeat("ü", maxFilter), SQL: true})
	check("after a long one", map[string]string{"orders": "a || b", "payments": "SQL92: price > 15", "other": "SQL92: " + strings.Repeat("ü", maxFilter/2)})
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
