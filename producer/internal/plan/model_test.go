package plan_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	shared "github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/transport"
)

// TestModel drives the queues of topics and the servers that they share as the producer does, in
// virtual time and with random events: messages arrive and leave, servers throttle, time out and
// fail, and the transport has other servers or none. After a while all servers are well. At each
// step the model checks that
//   - if messages wait, an ask or a request is under way, or a timer is in the future;
//   - no server is idle while the messages that it takes wait;
//   - asks and timers are bounded by the number of events;
//   - requests keep the bounds and pauses of their lanes, and the order of message groups;
//   - each topic has a place in a shared request after at most one request of each other topic;
//   - each message ends.
func TestModel(t *testing.T) {
	events := 0
	shared.Run(t, 1000, func(t *testing.T, r *rand.Rand) {
		m := newModel(r)
		m.run(t)
		events += m.events + m.asks
	})
	t.Logf("%d events", events)
}

const (
	steps    = 60          // events before all servers are well
	patience = time.Second // the longest time after which a queue notices other servers
)

// A topic is a queue, and its state at the servers.
type topic struct {
	q      plan.Queue[*message, struct{}]
	lanes  map[string]*lane // by endpoint
	turn   plan.Turn[*topic]
	at     *server // where it has its turn
	since  int     // requests of that server before the turn
	shared bool    // its only server was one with shared requests, so messages ask after patience
	wakes  time.Time
}

// A lane is the state of one server for a topic.
type lane struct {
	lane    *plan.Lane[*message, struct{}] // nil before its first request
	flying  int
	probing int           // number of the job after which a success ends the throttling; 0 without throttling
	pause   time.Duration // the last one
}

// A message is the model's record of one message.
type message struct {
	plan.Item[*message, struct{}]
	topic    *topic
	number   int
	attempts int
	share    time.Duration
	movable  time.Time // when no server took it last
	gone     bool
}

// Share implements plan.Sharer.
func (m *message) Share(time.Time) time.Duration { return m.share }

// A job is an ask, a request, or a request of several topics that ends at a time.
type job struct {
	ends    time.Time
	topic   *topic  // nil for several
	parts   []*job  // the requests of several topics
	server  *server // of a request with its own turn, or of several topics
	turn    int     // its number at server
	ask     *plan.Ask[*message, struct{}]
	request *plan.Request[*message, struct{}]
	own     *message // whose caller does the job; nil if another goroutine does it
	decides bool     // the request was throttled, and the pause is being decided
	number  int      // of the job
	began   time.Time
}

// A server is one of the model's transport.
type server struct {
	most   int  // messages of a request
	shares bool // topics share requests
	plan   plan.Server[*topic]
	flying int // requests in its order
	begun  int // likewise, so far
	wakes  time.Time
}

type model struct {
	rnd       *rand.Rand
	topics    []*topic
	now       time.Time
	start     time.Time
	servers   map[string]*server
	endpoints []string  // of all servers
	up        []string  // those that the transport returns
	learns    time.Time // of the last change of up, or of the last ask that failed
	well      bool      // the servers accept everything

	jobs   []*job
	live   []*message // without a result, in the order of Add
	stored map[string][]int

	messages, events, asks, timers, begun int
	fault                                 string
}

func newModel(r *rand.Rand) *model {
	m := &model{
		rnd: r, now: time.Unix(1000, 0), start: time.Unix(1000, 0),
		servers: map[string]*server{}, stored: map[string][]int{},
	}
	m.endpoints = []string{"a", "b", "c"}[:1+m.rnd.IntN(3)]
	for _, endpoint := range m.endpoints {
		m.servers[endpoint] = &server{most: []int{1, 3, 100}[m.rnd.IntN(3)], shares: m.chance(70)}
	}
	m.up = m.endpoints
	for range []int{1, 1, 2, 6}[m.rnd.IntN(4)] {
		t := &topic{lanes: map[string]*lane{}}
		for _, endpoint := range m.endpoints {
			t.lanes[endpoint] = &lane{}
		}
		t.turn.Of = t
		m.topics = append(m.topics, t)
	}
	return m
}

func (m *model) failed(format string, args ...any) {
	if m.fault == "" {
		m.fault = fmt.Sprintf(format, args...)
	}
}

// chance is true n times of 100.
func (m *model) chance(n int) bool { return m.rnd.IntN(100) < n }

func (m *model) upTo(d time.Duration) time.Duration { return time.Duration(m.rnd.Int64N(int64(d) + 1)) }

func (m *model) run(t *testing.T) {
	t.Helper()
	external := m.now // time of the next external event
	for left := steps; m.fault == ""; {
		if left == 0 && !m.well {
			m.well = true
			m.setUp(m.endpoints[:1])
		}
		if m.well && len(m.live) == 0 && len(m.jobs) == 0 {
			break
		}
		next, at := m.next()
		if left > 0 && (at.IsZero() || !external.After(at)) {
			m.now = later(m.now, external)
			m.external()
			left--
			external = m.now.Add(m.upTo(time.Duration(m.rnd.IntN(3)*m.rnd.IntN(300)) * time.Millisecond))
			m.check()
			continue
		}
		if at.IsZero() {
			m.failed("%d messages wait, and nothing wakes them", len(m.live))
			break
		}
		m.now = later(m.now, at)
		if next == nil {
			m.timers++
			m.bound()
			m.wake()
			m.check()
			continue
		}
		m.jobs = slices.DeleteFunc(m.jobs, func(j *job) bool { return j == next })
		m.end(next)
		m.check()
	}
	for _, t := range m.topics {
		if m.fault == "" && !t.q.Empty() {
			m.failed("a queue is not empty at the end")
		}
	}
	for endpoint, s := range m.servers {
		if m.fault == "" && !s.plan.Idle() {
			m.failed("%s is not idle at the end", endpoint)
		}
	}
	for group, numbers := range m.stored {
		if !slices.IsSorted(numbers) {
			m.failed("message group %s was stored as %v", group, numbers)
		}
	}
	assert.That(t, m.fault == "", "%v after the start: %s", m.now.Sub(m.start), m.fault)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// next returns the job that ends next, or nil if a timer is earlier. The zero time means that there
// is neither.
func (m *model) next() (next *job, at time.Time) {
	at = m.timer()
	for _, j := range m.jobs {
		if at.IsZero() || j.ends.Before(at) || next == nil && j.ends.Equal(at) {
			next, at = j, j.ends
		}
	}
	return next, at
}

// timer returns the time of the earliest timer; the zero time means that there is none.
func (m *model) timer() (at time.Time) {
	for _, t := range m.topics {
		if !t.wakes.IsZero() && (at.IsZero() || t.wakes.Before(at)) {
			at = t.wakes
		}
	}
	for _, s := range m.servers {
		if !s.wakes.IsZero() && (at.IsZero() || s.wakes.Before(at)) {
			at = s.wakes
		}
	}
	return at
}

// wake carries out the timers that are due.
func (m *model) wake() {
	for _, t := range m.topics {
		if !t.wakes.IsZero() && !t.wakes.After(m.now) {
			m.pump(t, nil)
		}
	}
	for _, endpoint := range m.endpoints {
		if s := m.servers[endpoint]; !s.wakes.IsZero() && !s.wakes.After(m.now) {
			m.serve(s)
		}
	}
}

// external causes a random event from outside the queues.
func (m *model) external() {
	m.events++
	switch {
	case m.chance(70):
		for range 1 + m.rnd.IntN(1+m.rnd.IntN(30)) {
			m.add()
		}
	case m.chance(30) && len(m.live) > 0:
		msg := m.live[m.rnd.IntN(len(m.live))]
		m.gone(msg)
		m.pump(msg.topic, nil)
	case m.chance(30):
		var up []string
		for _, endpoint := range m.endpoints {
			if m.chance(60) {
				up = append(up, endpoint)
			}
		}
		m.setUp(up)
	}
}

func (m *model) setUp(up []string) {
	if !slices.Equal(m.up, up) {
		m.events++
		m.up, m.learns = up, m.now
	}
}

func (m *model) add() {
	m.messages++
	m.events++
	msg := &message{number: m.messages, share: []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second}[m.rnd.IntN(3)]}
	msg.Of, msg.Size = msg, 100+m.rnd.IntN(400)
	i := m.rnd.IntN(len(m.topics))
	msg.topic = m.topics[i]
	msg.Message = &tidegate.Message{ID: fmt.Sprint(m.messages), Topic: fmt.Sprint("t", i)}
	if m.chance(40) {
		msg.Message.MessageGroup = fmt.Sprint("g", m.rnd.IntN(8), "of", i)
	}
	m.live = append(m.live, msg)
	msg.topic.q.Add(&msg.Item, m.now)
	if m.chance(30) {
		m.pump(msg.topic, msg)
	} else {
		m.pump(msg.topic, nil)
	}
}

// gone ends a message.
func (m *model) gone(msg *message) {
	m.events++
	msg.gone = true
	i := slices.Index(m.live, msg)
	m.live = slices.Delete(m.live, i, i+1)
	if r := msg.topic.q.Remove(&msg.Item, m.now); r != nil {
		for _, j := range m.jobs {
			if j.request == r { // it is cancelled
				j.ends = m.now
			}
		}
	}
}

// pump takes the jobs of a queue, and gives the topic its turn at a server.
func (m *model) pump(t *topic, own *message) {
	var item *plan.Item[*message, struct{}]
	if own != nil {
		item = &own.Item
	}
	for range 1000 {
		j, ok := t.q.Next(m.now, item)
		switch {
		case !ok:
			if own != nil {
				m.alone(t, own)
			}
			m.takeTurn(t)
			t.wakes = t.q.WakeAt(m.now)
			return
		case j.Ask != nil && own != nil && j.Ask.Head == item:
			m.begin(&job{topic: t, ask: j.Ask, own: own})
			m.pump(t, nil)
			return
		default:
			m.begin(&job{topic: t, ask: j.Ask, request: j.Request})
		}
	}
	m.failed("the queue returns jobs without end")
}

// alone begins a request of own alone, if that is all that can be sent.
func (m *model) alone(t *topic, own *message) {
	l := t.q.Alone(&own.Item, m.now)
	if l == nil {
		return
	}
	s := m.servers[l.Endpoint]
	number, ok := s.plan.Own(m.now)
	if s.wakes = s.plan.WakeAt(m.now); !ok {
		return
	}
	s.flying++
	s.begun++
	r := t.q.Take(l, new(plan.Load), m.now, true)
	if len(r.Items) != 1 || r.Items[0] != &own.Item {
		m.failed("a request of %d messages instead of %s", len(r.Items), own.Message.ID)
	}
	m.begin(&job{topic: t, request: r, own: own, server: s, turn: number})
}

// takeTurn gives a topic its turn at a server, or ends it.
func (m *model) takeTurn(t *topic) {
	var at *server
	l, units := t.q.Ready(m.now)
	if units > 0 {
		at = m.servers[l.Endpoint]
	}
	if old := t.at; old != nil && old != at {
		t.at = nil
		old.plan.Ready(&t.turn, 0)
		m.serve(old)
	}
	if at == nil {
		return
	}
	if t.at != at {
		t.at, t.since = at, at.begun
	}
	at.plan.Ready(&t.turn, units)
	m.serve(at)
}

// serve begins the requests of a server.
func (m *model) serve(s *server) {
	for number, ok := s.plan.Next(m.now); ok; number, ok = s.plan.Next(m.now) {
		s.flying++
		s.begun++
		j := &job{server: s, turn: number}
		var load plan.Load
		for turn := s.plan.First(); turn != nil; turn = s.plan.First() {
			t := turn.Of
			if waited := s.begun - t.since; waited > len(m.topics)+2 {
				m.failed("a topic waits for its turn during %d requests", waited)
			}
			l, units := t.q.Ready(m.now)
			room := true
			if units > 0 && m.servers[l.Endpoint] == s {
				r := t.q.Take(l, &load, m.now, false)
				if room = r != nil; room {
					j.parts = append(j.parts, &job{topic: t, request: r})
					s.plan.Ready(&t.turn, 0)
					t.at = nil
				}
			}
			if m.pump(t, nil); !room {
				break
			}
		}
		s.plan.Filled(&load)
		m.begin(j)
	}
	s.wakes = s.plan.WakeAt(m.now)
}

// begin starts a job.
func (m *model) begin(j *job) {
	m.begun++
	j.began = m.now
	j.number = m.begun
	j.ends = m.now.Add(m.upTo(time.Millisecond))
	m.jobs = append(m.jobs, j)
	if j.ask != nil {
		m.asks++
		if !m.well && m.chance(3) { // the transport looks for the servers of the topic
			j.ends = m.now.Add(m.upTo(3 * time.Second))
		}
		m.bound()
		return
	}
	switch {
	case m.chance(20):
		j.ends = m.now.Add(m.upTo(3 * time.Second))
	case m.chance(50):
		j.ends = m.now.Add(m.upTo(20 * time.Millisecond))
	}
	total, size := 0, 0
	for _, part := range append(j.parts, j) {
		if part.request == nil {
			continue
		}
		part.number, part.began = j.number, m.now
		for _, it := range part.request.Items {
			total, size = total+1, size+it.Size
		}
		if info := part.request.Info; total > max(1, info.MaxMessages) || total > 1 && size > info.MaxBytes {
			m.failed("a request of %d messages and %d bytes to %s", total, size, info.Endpoint)
		}
		m.began(part)
		if n := len(part.request.Items); n > 1 && m.chance(5) { // the limiter permits some of them
			m.events++
			part.topic.q.Shorten(part.request, 1+m.rnd.IntN(n-1), m.now)
			m.pump(part.topic, nil)
		}
	}
}

// bound checks the numbers of asks and timers.
func (m *model) bound() {
	seconds := int(m.now.Sub(m.start)/time.Second) + 1
	if most := 20 + 4*m.events + 4*seconds; m.asks > most || m.timers > most {
		m.failed("%d asks and %d timers after %d events and %d s", m.asks, m.timers, m.events, seconds)
	}
}

// began checks a request that begins.
func (m *model) began(j *job) {
	r := j.request
	s := j.topic.lanes[r.Info.Endpoint]
	s.lane = r.Lane
	s.flying++
	groups := map[string]bool{}
	for _, it := range r.Items {
		if it.By == r.Lane && m.now.Before(it.Until) || it.Due.After(m.now) {
			m.failed("message %s is sent to %s too early", it.Message.ID, r.Info.Endpoint)
		}
		if it.Of.gone {
			m.failed("message %s is sent after its end", it.Message.ID)
		}
		if group := it.Message.MessageGroup; group != "" {
			groups[group] = true
		}
	}
	for other := range m.requests {
		if other == j || other.topic != j.topic {
			continue
		}
		for _, it := range other.request.Items {
			if groups[it.Message.MessageGroup] {
				m.failed("message group %s is in two requests", it.Message.MessageGroup)
			}
		}
		if s.probing > 0 && other.request.Lane == r.Lane && other.number > s.probing && (r.Info.MaxMessages > 1 || m.now.Sub(other.began) < s.pause) {
			m.failed("a request to %s beside a probe that is not late", r.Info.Endpoint)
		}
	}
	n := len(r.Items)
	switch {
	case n == 0:
		m.failed("an empty request")
	case s.probing > 0 && n > 1:
		m.failed("a request of %d messages to %s, which probes after job %d", n, r.Info.Endpoint, s.probing)
	case m.now.Before(r.Lane.PausedUntil), r.Lane.Deciding:
		m.failed("a request to %s, which is paused", r.Info.Endpoint)
	}
}

// requests yields the requests under way, those of several topics one by one.
func (m *model) requests(yield func(*job) bool) {
	for _, j := range m.jobs {
		for _, part := range append(j.parts, j) {
			if part.request != nil && !yield(part) {
				return
			}
		}
	}
}

// idle reports whether a server has no request for the topic, and is not paused.
func (m *model) idle(t *topic, endpoint string) bool {
	l, s := t.lanes[endpoint], m.servers[endpoint]
	return l.flying == 0 && s.flying == 0 && (l.lane == nil || !m.now.Before(l.lane.PausedUntil) && !l.lane.Deciding)
}

// check checks that there is a reason for each message that is not sent.
func (m *model) check() {
	if at := m.timer(); len(m.live) > 0 && len(m.jobs) == 0 && !at.After(m.now) {
		m.failed("%d messages wait, no job is under way, and the timer is at %v", len(m.live), at)
	}
	if m.now.Sub(m.learns) <= patience {
		return // the queues are about to learn the servers
	}
	for _, t := range m.topics {
		if !slices.ContainsFunc(m.jobs, func(j *job) bool { return j.topic == t && j.ask != nil }) {
			m.checkTopic(t)
		}
	}
}

func (m *model) checkTopic(t *topic) {
	seen := map[string]bool{}
	loose, movable, blocked := 0, 0, false
	for _, msg := range m.live {
		group := msg.Message.MessageGroup
		if msg.topic != t || group != "" && seen[group] {
			continue
		}
		seen[group] = true
		if !msg.Queued() || msg.Due.After(m.now) || group != "" && t.q.RequestOf(group) != nil {
			continue
		}
		pushedBack := msg.By != nil && m.now.Before(msg.Until)
		takes := func(endpoint string) bool {
			return m.idle(t, endpoint) && (group == "" || endpoint == m.serverOf(group)) && (!pushedBack || msg.By != t.lanes[endpoint].lane)
		}
		// The queue may wait for another server that the transport no longer has.
		onlyAvoided := group == "" && len(m.up) == 1 && m.up[0] == msg.Avoid
		can := slices.ContainsFunc(m.up, func(endpoint string) bool {
			return takes(endpoint) && (group != "" || endpoint != msg.Avoid || onlyAvoided)
		})
		if !can {
			msg.movable = m.now
		} else if (pushedBack || onlyAvoided || t.shared) && m.now.Sub(later(msg.movable, m.learns.Add(patience))) <= 2*patience {
			blocked = blocked || onlyAvoided || t.shared
			continue // the queue looks for another server every second, and begins again if the message changes its lane
		}
		switch {
		case group != "" && can:
			m.failed("message group %s waits, although its server %s is idle", group, m.serverOf(group))
		case group == "":
			loose++
			if can {
				movable++
			}
		}
	}
	if loose > 0 && movable == loose && !blocked {
		m.failed("%d messages wait, although a server is idle", loose)
	}
}

func (m *model) serverOf(group string) string {
	h := fnv.New32()
	h.Write([]byte(group))
	return m.up[int(h.Sum32())%len(m.up)]
}

// end ends a job.
func (m *model) end(j *job) {
	if j.server != nil && j.topic != nil {
		m.ended(j)
	}
	switch {
	case j.ask != nil:
		m.route(j)
	case j.topic == nil:
		m.events++
		m.ended(j)
		for _, part := range j.parts {
			m.end(part)
		}
	case j.request.Lane != nil && !j.decides && !m.well && m.chance(20):
		// Throttled. The settings of the server may be missing for the decision.
		j.decides = true
		j.request.Lane.Deciding = true
		j.ends = m.now
		if m.chance(30) {
			j.ends = m.now.Add(m.upTo(time.Second))
		}
		m.jobs = append(m.jobs, j)
	default:
		m.events++
		m.finish(j)
		m.pump(j.topic, j.own)
	}
}

// ended ends the request of a server with shared requests.
func (m *model) ended(j *job) {
	j.server.flying--
	kind := m.rnd.IntN(10)
	j.server.plan.Ended(j.turn, m.well || kind < 8, kind == 9)
	m.serve(j.server)
	j.server = nil
}

// route ends an ask with the lanes of the transport.
func (m *model) route(j *job) {
	failed := false
	if !j.ask.Head.Of.gone { // else nothing was asked
		for r := range j.ask.Requests {
			if failed = len(m.up) == 0 || !m.well && m.chance(2); failed {
				break
			}
			endpoint := m.lane(r)
			s := m.servers[endpoint]
			j.ask.Lanes = append(j.ask.Lanes, transport.Lane{Endpoint: endpoint, MaxMessages: s.most, MaxBytes: 1000, Topics: s.shares && len(m.up) == 1})
			j.topic.shared = s.shares && len(m.up) == 1
		}
	}
	q := &j.topic.q
	if r := q.Routed(j.ask, m.now); r != nil {
		m.begin(&job{topic: j.topic, request: r, own: j.own})
	} else if !failed && j.own != nil {
		m.alone(j.topic, j.own)
	}
	if failed {
		m.events++
		m.learns = m.now
		r := q.Withdraw(j.ask)
		for _, it := range r.Items {
			m.retry(it.Of, m.upTo(500*time.Millisecond))
		}
		q.Finished(r, m.now)
	}
	m.pump(j.topic, j.own)
}

// lane returns the endpoint of a lane.
func (m *model) lane(r transport.LaneRequest) string {
	if r.MessageGroup != "" {
		return m.serverOf(r.MessageGroup)
	}
	rest := slices.DeleteFunc(slices.Clone(m.up), func(endpoint string) bool { return slices.Contains(r.Avoid, endpoint) })
	if len(rest) == 0 {
		rest = m.up
	}
	return rest[m.rnd.IntN(len(rest))]
}

// retry has a message wait, or ends it after six attempts.
func (m *model) retry(msg *message, delay time.Duration) {
	if msg.gone {
		return
	}
	if msg.attempts++; msg.attempts > 6 && !m.well {
		m.gone(msg)
		return
	}
	msg.Due = time.Time{}
	if delay > 0 {
		msg.Due = m.now.Add(delay)
	}
}

// finish ends a request with a result.
func (m *model) finish(j *job) {
	r := j.request
	endpoint := r.Info.Endpoint
	s := j.topic.lanes[endpoint]
	s.flying--
	r.Lane.Deciding = false
	kind := m.rnd.IntN(10)
	switch {
	case j.decides:
		m.throttle(j, s)
	case !slices.Contains(m.up, endpoint) || r.Info.Topics && len(m.up) > 1: // the route has changed
		r.Lane.MaxMessages = 1
		for _, it := range r.Items {
			m.retry(it.Of, 0)
		}
	case m.well, kind < 6:
		m.accept(r, len(r.Items))
		m.succeeded(j, s)
	case kind < 8: // some of them are stored
		m.accept(r, m.rnd.IntN(len(r.Items)+1))
		m.succeeded(j, s)
	default:
		for _, it := range r.Items {
			it.Avoid = endpoint
			m.retry(it.Of, []time.Duration{0, m.upTo(5 * time.Second)}[m.rnd.IntN(2)])
		}
		if kind == 9 {
			r.Lane.TimedOut(r)
		}
	}
	j.topic.q.Finished(r, m.now)
}

func (m *model) succeeded(j *job, s *lane) {
	j.request.Lane.Succeeded(j.request)
	if j.number > s.probing {
		s.probing = 0
	}
}

// accept stores the first n messages of a request that are still wanted. The server stores nothing
// of a message group behind a failure, and the others fail at once.
func (m *model) accept(r *plan.Request[*message, struct{}], n int) {
	for i, it := range r.Items {
		msg := it.Of
		switch {
		case i >= n:
			m.retry(msg, 0)
		case !msg.gone:
			if group := it.Message.MessageGroup; group != "" {
				m.stored[group] = append(m.stored[group], msg.number)
			}
			m.gone(msg)
		}
	}
}

// throttle ends a request with a throttle, for which the server may request a wait.
func (m *model) throttle(j *job, s *lane) {
	r := j.request
	pause := m.upTo(2 * time.Second)
	pushed := m.chance(50)
	for _, it := range r.Items {
		msg := it.Of
		it.Avoid = r.Info.Endpoint
		m.retry(msg, m.upTo(2*time.Second))
		if wait := m.upTo(20 * time.Second); pushed {
			it.By, it.Until = r.Lane, m.now.Add(wait)
			pause = wait
		}
	}
	if r.Lane.Pause(r, m.now, pause, tidegate.ErrThrottled) {
		s.probing, s.pause = m.begun, pause
	}
}
