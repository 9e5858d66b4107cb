package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A desk is a queue with the helpers of the tests below. Its clock is now.
type desk struct {
	t      *testing.T
	q      Queue[numbered, struct{}]
	now    time.Time
	number int
	lanes  int // lanes that the queue has requested
}

func newDesk(t *testing.T) *desk { return &desk{t: t, now: time.Unix(1000, 0)} }

func (d *desk) add(group string) *Item[numbered, struct{}] {
	d.number++
	it := &Item[numbered, struct{}]{Of: numbered(d.number), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(d.number), Topic: "t", MessageGroup: group}}
	d.q.Add(it, d.now)
	return it
}

// request returns the next request. The transport returns the lane at endpoint for each ask. The
// result is nil if the queue neither asks nor sends. The test fails after ten asks.
func (d *desk) request(endpoint string, most int) *Request[numbered, struct{}] {
	d.t.Helper()
	for asks := 0; ; asks++ {
		j, ok := d.q.Next(d.now, nil)
		if !ok {
			return nil
		}
		if j.Ask == nil {
			return j.Request
		}
		assert.MustThat(d.t, asks != 10, "the queue asks for lanes again and again, although nothing has changed")
		for range j.Ask.Requests {
			d.lanes++
			j.Ask.Lanes = append(j.Ask.Lanes, transport.Lane{Endpoint: endpoint, MaxMessages: most})
		}
		if r := d.q.Routed(j.Ask, d.now); r != nil {
			return r
		}
	}
}

// requests returns the requests that begin now.
func (d *desk) requests(endpoint string, most int) (list []*Request[numbered, struct{}]) {
	d.t.Helper()
	for r := d.request(endpoint, most); r != nil; r = d.request(endpoint, most) {
		list = append(list, r)
	}
	return list
}

// accepted ends a request with a success.
func (d *desk) accepted(r *Request[numbered, struct{}]) {
	for _, it := range r.Items {
		d.q.Remove(it, d.now)
	}
	r.Lane.Succeeded(r)
	d.q.Finished(r, d.now)
}

// throttled ends a request with a throttle. The messages are due again after the pause.
func (d *desk) throttled(r *Request[numbered, struct{}], pause time.Duration) {
	for _, it := range r.Items {
		it.Due = d.now.Add(pause)
	}
	r.Lane.Pause(r, d.now, pause, tidegate.ErrThrottled)
	d.q.Finished(r, d.now)
}

// sleep moves the clock to the next event of the queue.
func (d *desk) sleep() {
	d.t.Helper()
	at := d.q.WakeAt(d.now)
	assert.MustThat(d.t, at.After(d.now), "the queue holds messages and waits for %v, which is not in the future (%v)", at, d.now)
	d.now = at
}

// Message groups wait for the only server of their topic without an ask. When another message
// learns that the topic has other servers, these message groups ask at once.
func TestMessageGroupsLeaveALaneThatIsNotTheOnlyOne(t *testing.T) {
	d := newDesk(t)
	route := func(lane transport.Lane) *Request[numbered, struct{}] {
		j, _ := d.q.Next(d.now, nil)
		assert.MustThat(t, j.Ask != nil, "the next job is %+v, want an ask", j)
		for range j.Ask.Requests {
			j.Ask.Lanes = append(j.Ask.Lanes, lane)
		}
		return d.q.Routed(j.Ask, d.now)
	}
	first := d.add("")
	route(transport.Lane{Endpoint: "a", MaxMessages: 10, Topics: true})
	l, _ := d.q.Ready(d.now)
	r := d.q.Take(l, new(Load), d.now, false)
	group := d.add("g")
	j, ok := d.q.Next(d.now, nil)
	assert.MustThat(t, !ok, "a message group of a topic with one server causes %+v", j)
	first.Avoid = "a"
	d.q.Finished(r, d.now) // the first message returns, and asks
	if r := route(transport.Lane{Endpoint: "b", MaxMessages: 10}); r == nil || r.Items[0] != first {
		t.Fatalf("the request to b is %+v", r)
	}
	if r := d.request("b", 10); r == nil || r.Items[0] != group {
		t.Errorf("the message group waits: the next request is %+v", r)
	}
}

// A request that was shortened ends when the messages that it kept have left.
func TestShortenedRequestEndsWithItsMessages(t *testing.T) {
	d := newDesk(t)
	for range 6 {
		d.add("")
	}
	first, second := d.request("a", 3), d.request("a", 3)
	assert.MustThat(t, first != nil && second != nil && len(second.Items) == 3,
		"%+v, %+v; want a second request of three messages", first, second)
	kept := second.Items[0]
	d.q.Shorten(second, 1, d.now)
	assert.Equal(t, "the only message of the request left, and Remove returned", d.q.Remove(kept, d.now), second)
}

// A transport without a lane fails the messages that waited when it was asked, not later ones.
func TestWithdrawKeepsLaterMessages(t *testing.T) {
	d := newDesk(t)
	early := d.add("g")
	j, _ := d.q.Next(d.now, nil)
	d.q.Routed(j.Ask, d.now)
	late := []*Item[numbered, struct{}]{d.add("g"), d.add("")}
	r := d.q.Withdraw(j.Ask)
	assert.That(t, len(r.Items) == 1 && r.Items[0] == early, "%d messages fail, want the first one", len(r.Items))
	for _, it := range late {
		assert.That(t, it.Queued(), "message %s came after the ask and is not queued", it.Message.ID)
	}
}

// The transport has more servers than the queue remembers. A paused one stays paused.
func TestManyServersKeepTheirPauses(t *testing.T) {
	d := newDesk(t)
	d.add("")
	d.throttled(d.request("paused", 1), 10*time.Minute)
	for i := range 2 * maxLanes {
		d.add("")
		d.accepted(d.request(fmt.Sprint("server", i), 1))
	}
	d.add("")
	assert.That(t, d.request("paused", 1) == nil, "a request to the server during its pause")
}

// A limiter lets few messages of each request pass. The message groups that return to the queue
// keep their lane, because an ask for each of them in each request is quadratic.
func TestShortenedRequestsCauseFewAsks(t *testing.T) {
	d := newDesk(t)
	const groups = 100
	for i := range groups {
		d.add(fmt.Sprint("group", i))
	}
	for sent := range groups {
		r := d.request("a", 1000)
		assert.MustThat(t, r != nil, "no request after %d messages, although the lane is free", sent)
		if want := fmt.Sprint("group", sent); r.Items[0].Message.MessageGroup != want {
			t.Errorf("request %d begins with %s, want %s", sent, r.Items[0].Message.MessageGroup, want)
		}
		d.q.Shorten(r, 1, d.now)
		d.accepted(r)
	}
	assert.That(t, d.lanes <= groups, "the lane of %d messages was requested %d times, want each once", groups, d.lanes)
}

// A few of the message groups that wait for a lane show each second whether they still have it.
func TestPausedMessageGroupsCauseFewAsks(t *testing.T) {
	d := newDesk(t)
	for i := range 300 {
		d.add(fmt.Sprint("group", i))
	}
	d.throttled(d.request("a", 1), time.Hour)
	for d.request("a", 1) != nil {
		t.Fatal("a request during the pause")
	}
	before, began := d.lanes, d.now
	for d.now.Before(began.Add(time.Minute)) {
		d.sleep()
		assert.MustThat(t, d.request("a", 1) == nil, "a request during the pause")
	}
	n := d.lanes - before
	assert.That(t, n >= 60 && n <= 61*10, "%d calls of Lane for messages that wait for a minute, want 1 to 10 a second", n)
}
