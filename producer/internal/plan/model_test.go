package plan_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	shared "github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/producer/internal/plan"
)

// TestModel drives queues as the producer does, in virtual time and with random events: messages
// arrive and leave, servers throttle, time out and fail, and the transport has other servers or
// none. After a while all servers are well. At each step the model checks that
//   - a queue that holds messages has an ask or a request under way, or a timer in the future;
//   - no server is idle while the messages that it takes wait;
//   - asks and timers are bounded by the number of events;
//   - requests keep the bounds and pauses of their lanes, and the order of message groups;
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

// A message is the model's record of one message.
type message struct {
	plan.Item[*message, struct{}]
	number   int
	attempts int
	share    time.Duration
	movable  time.Time // when no server took it last
	gone     bool
}

// Share implements plan.Sharer.
func (m *message) Share(time.Time) time.Duration { return m.share }

// A job is an ask or a request that ends at a time.
type job struct {
	ends    time.Time
	ask     *plan.Ask[*message, struct{}]
	request *plan.Request[*message, struct{}]
	own     *message // whose caller does the job; nil if another goroutine does it
	decides bool     // the request was throttled, and the pause is being decided
	number  int      // of the job
	began   time.Time
}

// A server is one lane of the model's transport.
type server struct {
	most    int                            // messages of a request
	lane    *plan.Lane[*message, struct{}] // nil before its first request
	flying  int
	probing int           // number of the job after which a success ends the throttling; 0 without throttling
	pause   time.Duration // the last one
}

type model struct {
	rnd       *rand.Rand
	q         plan.Queue[*message, struct{}]
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
		m.servers[endpoint] = &server{most: []int{1, 3, 100}[m.rnd.IntN(3)]}
	}
	m.up = m.endpoints
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
			m.pump(nil)
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
			m.pump(nil)
			continue
		}
		m.jobs = slices.DeleteFunc(m.jobs, func(j *job) bool { return j == next })
		m.end(next)
	}
	if m.fault == "" && !m.q.Empty() {
		m.failed("the queue is not empty at the end")
	}
	for group, numbers := range m.stored {
		if !slices.IsSorted(numbers) {
			m.failed("message group %s was stored as %v", group, numbers)
		}
	}
	if m.fault != "" {
		t.Errorf("%v after the start: %s", m.now.Sub(m.start), m.fault)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// next returns the job that ends next, or nil if the timer of the queue is earlier. The zero time
// means that there is neither.
func (m *model) next() (next *job, at time.Time) {
	at = m.q.WakeAt(m.now)
	for _, j := range m.jobs {
		if at.IsZero() || j.ends.Before(at) || next == nil && j.ends.Equal(at) {
			next, at = j, j.ends
		}
	}
	return next, at
}

// external causes a random event from outside the queue.
func (m *model) external() {
	m.events++
	switch {
	case m.chance(70):
		for range 1 + m.rnd.IntN(1+m.rnd.IntN(30)) {
			m.add()
		}
	case m.chance(30) && len(m.live) > 0:
		m.gone(m.live[m.rnd.IntN(len(m.live))])
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
	msg.Message = &tidegate.Message{ID: fmt.Sprint(m.messages), Topic: "t"}
	if m.chance(40) {
		msg.Message.MessageGroup = fmt.Sprint("g", m.rnd.IntN(8))
	}
	m.live = append(m.live, msg)
	m.q.Add(&msg.Item, m.now)
	if m.chance(30) {
		m.pump(msg)
	}
}

// gone ends a message.
func (m *model) gone(msg *message) {
	m.events++
	msg.gone = true
	i := slices.Index(m.live, msg)
	m.live = slices.Delete(m.live, i, i+1)
	if r := m.q.Remove(&msg.Item, m.now); r != nil {
		for _, j := range m.jobs {
			if j.request == r { // it is cancelled
				j.ends = m.now
			}
		}
	}
}

// pump takes the jobs of the queue, and then checks that those that are missing are not needed.
func (m *model) pump(own *message) {
	var item *plan.Item[*message, struct{}]
	if own != nil {
		item = &own.Item
	}
	for range 1000 {
		j, ok := m.q.Next(m.now, item)
		switch {
		case !ok:
			m.check()
			return
		case j.Ask != nil && own != nil && j.Ask.Head == item:
			m.begin(&job{ask: j.Ask, own: own})
			m.pump(nil)
			return
		default:
			m.begin(&job{ask: j.Ask, request: j.Request})
		}
	}
	m.failed("the queue returns jobs without end")
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
	m.began(j)
	if n := len(j.request.Items); n > 1 && m.chance(5) { // the limiter permits some of them
		m.events++
		m.q.Shorten(j.request, 1+m.rnd.IntN(n-1), m.now)
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
	s := m.servers[r.Info.Endpoint]
	s.lane = r.Lane
	s.flying++
	size := 0
	groups := map[string]bool{}
	for _, it := range r.Items {
		size += it.Size
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
	for _, other := range m.jobs {
		if other == j || other.request == nil {
			continue
		}
		for _, it := range other.request.Items {
			if groups[it.Message.MessageGroup] {
				m.failed("message group %s is in two requests", it.Message.MessageGroup)
			}
		}
		if s.probing > 0 && other.request.Lane == r.Lane && other.number > s.probing && (s.most > 1 || m.now.Sub(other.began) < s.pause) {
			m.failed("a request to %s beside a probe that is not late", r.Info.Endpoint)
		}
	}
	n := len(r.Items)
	switch {
	case n == 0:
		m.failed("an empty request")
	case n > max(1, r.Info.MaxMessages), n > 1 && size > r.Info.MaxBytes, s.probing > 0 && n > 1:
		m.failed("a request of %d messages and %d bytes to %s, which probes after job %d", n, size, r.Info.Endpoint, s.probing)
	case m.now.Before(r.Lane.PausedUntil), r.Lane.Deciding:
		m.failed("a request to %s, which is paused", r.Info.Endpoint)
	}
}

// idle reports whether the server has no request, and is not paused.
func (s *server) idle(now time.Time) bool {
	return s.flying == 0 && (s.lane == nil || !now.Before(s.lane.PausedUntil) && !s.lane.Deciding)
}

// check checks that the queue has a reason for each message that it does not send.
func (m *model) check() {
	if at := m.q.WakeAt(m.now); len(m.live) > 0 && len(m.jobs) == 0 && !at.After(m.now) {
		m.failed("%d messages wait, no job is under way, and the timer is at %v", len(m.live), at)
	}
	if slices.ContainsFunc(m.jobs, func(j *job) bool { return j.ask != nil }) || m.now.Sub(m.learns) <= patience {
		return // the queue is about to learn the servers
	}
	seen := map[string]bool{}
	loose, movable, blocked := 0, 0, false
	for _, msg := range m.live {
		group := msg.Message.MessageGroup
		if group != "" && seen[group] {
			continue
		}
		seen[group] = true
		if !msg.Queued() || msg.Due.After(m.now) {
			continue
		}
		pushedBack := msg.By != nil && m.now.Before(msg.Until)
		takes := func(endpoint string) bool {
			s := m.servers[endpoint]
			return s.idle(m.now) && (group == "" || endpoint == m.serverOf(group)) && (!pushedBack || msg.By != s.lane)
		}
		// The queue may wait for another server that the transport no longer has.
		onlyAvoided := group == "" && len(m.up) == 1 && m.up[0] == msg.Avoid
		can := slices.ContainsFunc(m.up, func(endpoint string) bool {
			return takes(endpoint) && (group != "" || endpoint != msg.Avoid || onlyAvoided)
		})
		if !can {
			msg.movable = m.now
		} else if (pushedBack || onlyAvoided) && m.now.Sub(msg.movable) <= patience {
			blocked = blocked || onlyAvoided
			continue // the queue looks for another server every second
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
