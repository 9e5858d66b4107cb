package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/failures"
)

// causes are the names of the events that count as failures.
var causes = map[consume.Event]string{
	consume.EventFail: "failed", consume.EventTimeout: failures.Timeout, consume.EventNegativeAck: "negative_ack", consume.EventDeadLetter: "dead_letter",
}

// noteFailure adds a failed delivery to the failures of the group. mu is held, after the departures
// have begun.
func (s *Subscription) noteFailure(f *consume.Failure) {
	fate := "retry"
	switch d := s.leaving[f.Lease]; {
	case f.To == consume.Parked:
		fate = "parked"
	case f.To == consume.DeadLetter && d != nil && len(d.topics) == 0 && !d.stays:
		fate = "removed"
	case f.To == consume.DeadLetter:
		fate = "dead_letter"
	case f.Blocked:
		fate = "blocked"
	}
	s.env.Failures.Add(s.Group().Name(), failures.Failure{
		At: f.At, Topic: s.Topic().Name(), Place: s.progress.Place(f.Lease), Attempt: f.Attempt, Client: f.Client,
		Reason: f.Reason, Cause: causes[f.Event], Fate: fate, Delay: f.Delay,
	})
}

// noteReconsumption is noteFailure for a message that is sent to a retry topic, or to the dead
// letter topic after the maximum of retries. mu is held.
func (s *Subscription) noteReconsumption(d *Departure, r *Reconsumption, now time.Time) {
	fate := "retry_topic"
	if r.Retry.Dead {
		fate = "dead_letter"
	}
	s.env.Failures.Add(s.Group().Name(), failures.Failure{
		At: now, Topic: s.Topic().Name(), Place: d.place, Attempt: d.Tries, Client: d.Lease.Receiver(), Cause: "reconsume_later", Fate: fate, Delay: r.Delay,
	})
}
