package plan_test

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/transport"
)

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
