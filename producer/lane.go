package producer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

const (
	// sharedWindow is the number of requests under way in a lane whose requests
	// take several messages. Messages that arrive meanwhile share the next request.
	sharedWindow = 2

	// A lane that takes one message a request starts with firstWindow requests at
	// once and adapts between 1 and maxWindow.
	firstWindow = 32
	maxWindow   = 512

	// maxPause bounds the pause of a throttled lane if the server does not ask for
	// one. A throttled message can wait longer: its delay grows with each throttle.
	maxPause = 5 * time.Second

	// maxLanes bounds the lanes that are remembered of one topic.
	maxLanes = 64
)

// A lane is what the queue knows of one server for its topic. A throttled lane
// pauses, and then sends one request with one message, the probe. Only a
// successful probe opens the lane again.
type lane struct {
	transport.Lane
	flying int         // requests under way
	window int         // the most of them, where a request takes one message
	bound  list[*unit] // message groups that wait for this lane

	deciding    bool // it throttled a request, and the pause is being decided
	pausedUntil time.Time
	probing     bool     // from the pause until a probe succeeded
	probe       *request // under way, nil if there is none
	pauses      int      // pauses so far: tells the requests from before a pause from later ones
	streak      int      // pauses since the last successful request
	throttle    error    // the error that caused the pause
}

// free reports whether the lane takes another request now.
func (l *lane) free(now time.Time) bool {
	switch {
	case l.deciding, now.Before(l.pausedUntil):
		return false
	case l.probing:
		return l.probe == nil
	case l.MaxMessages > 1:
		return l.flying < sharedWindow
	}
	return l.flying < l.window
}

// most is the number of messages that one request takes now.
func (l *lane) most() int {
	if l.probing {
		return 1
	}
	return max(1, l.MaxMessages)
}

func (l *lane) begin(r *request) {
	l.flying++
	r.pauses = l.pauses
	if l.probing {
		l.probe = r
	}
}

func (l *lane) end(r *request) {
	l.flying--
	if l.probe == r {
		l.probe = nil
	}
}

// succeeded notes that the server accepted a message of r, while r is under way.
func (l *lane) succeeded(r *request) {
	if l.flying >= l.window && l.window < maxWindow && !l.probing {
		l.window++
	}
	if l.probe == r {
		l.probing, l.streak, l.throttle = false, 0, nil
	}
}

// timedOut notes that the server did not respond to r in time.
func (l *lane) timedOut() { l.window = max(1, l.window/2) }

// pause notes that the server throttled r, for the given time. It returns false
// if the lane had been paused since r began: then r is no news.
func (l *lane) pause(r *request, now time.Time, d time.Duration, err error) bool {
	if until := now.Add(d); until.After(l.pausedUntil) {
		l.pausedUntil = until
	}
	l.probing = true
	if r.pauses != l.pauses {
		return false
	}
	l.pauses++
	l.streak++
	l.throttle = err
	l.window = max(1, l.window/2)
	return true
}

// A single makes a LaneSender of a Sender: one lane, one message a request.
type single struct{ transport.Sender }

func (single) Lane(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{Topic: r.Topic, MaxMessages: 1}, nil
}

func (s single) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return s.Send(ctx, msgs)
}
