package topic

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Throttling is the state of the limits of sends to a topic. Only package limits uses it.
type Throttling struct {
	Backlog Gates
	Age     throttle.Age // of the backlog, used while the topic has no group

	Mu     sync.Mutex
	Cold   throttle.Cold // guarded by Mu: of settings.Pressure.MaxColdReads
	Rate   throttle.Rate // guarded by Mu: of settings.Topic.MaxRate
	ColdOn atomic.Bool   // the limit of cold reads rejected sends at the last check
}

// InRate returns the messages that are stored in a second, from the counts at the calls of the last
// minute. It is 0 if there was no other call.
func (t *Topic) InRate(now time.Time) float64 { return t.arrivals.Rate(t.messages.Load(), now) }

// Gates are the limits of one backlog in use.
type Gates struct {
	Used  atomic.Bool // Gates has seen a limit; without one no goroutine locks Mu
	Mu    sync.Mutex
	Gates throttle.Backlog // guarded by Mu
}
