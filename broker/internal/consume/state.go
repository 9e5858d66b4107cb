package consume

// A State is where a message is in a group's consumption (RocketMQ: consumption retry).
type State uint8

// The states. A message that was never delivered has no record and is Ready.
const (
	Ready State = iota + 1
	Inflight
	WaitingRetry
	Commit
	DeadLetter

	// Parked waits, with all later messages of its message group, until an operator redrives
	// them. Only in FIFO groups that park.
	Parked

	// Held is Ready, except that an earlier message of its message group is not done. Only in
	// FIFO groups.
	Held
)

// String returns the name used by RocketMQ.
func (s State) String() string {
	switch s {
	case Ready:
		return "Ready"
	case Inflight:
		return "Inflight"
	case WaitingRetry:
		return "WaitingRetry"
	case Commit:
		return "Commit"
	case DeadLetter:
		return "DeadLetter"
	case Parked:
		return "Parked"
	case Held:
		return "Held"
	}
	return "unknown"
}

// An Event is something that happens to a message.
type Event uint8

const (
	EventDeliver     Event = iota // a consumer receives it
	EventAck                      // the consumer has consumed it
	EventFail                     // the consumer reports a failure
	EventTimeout                  // the invisible duration is over without a settlement
	EventChange                   // the consumer changes the invisible duration
	EventRelease                  // it did not reach the consumer, or the consumer did not process it
	EventDue                      // the retry interval is over
	EventDeadLetter               // the consumer requests a dead letter
	EventNegativeAck              // the consumer requests a redelivery, which Policy.MaxRedeliveries limits
	EventSnooze                   // the consumer requests a redelivery; the attempt does not count
	EventReconsume                // the consumer requests a redelivery through the retry topic
	EventPromote                  // the message before it in its message group is done
	EventRedrive                  // an operator redrives the parked message group
)

// String returns the name in the table in the doc of package broker.
func (e Event) String() string {
	return [...]string{"deliver", "ack", "fail", "timeout", "change", "release", "due", "dead-letter", "negative-ack", "snooze", "reconsume", "promote", "redrive"}[e]
}

// An Exhaustion is the action for a message after its last attempt.
type Exhaustion uint8

const (
	AttemptsLeft Exhaustion = iota // the attempt was not the last one
	ThenDeadLetter
	ThenPark  // the message group is parked
	ThenBlock // the message is retried without end and blocks its message group
)

// transitions is the state machine of consumption retry. For a pair of state and event that is not
// in the table, the broker rejects the request with INVALID_RECEIPT_HANDLE. Two tables take
// precedence:
//   - exhaustedTransitions, if the attempts are exhausted;
//   - then pushTransitions, for a push consumer.
//
// The doc of package broker has the same table, and a test compares the two.
var transitions = map[State]map[Event]State{
	Ready: {
		EventDeliver:    Inflight,
		EventDeadLetter: DeadLetter, // the request is late, but there was no other delivery
	},
	Inflight: {
		EventAck:         Commit,
		EventReconsume:   Commit, // TDMQ for Pulsar: retry and dead letters: "the original message in the topic is acknowledged"
		EventFail:        WaitingRetry,
		EventNegativeAck: WaitingRetry,
		EventSnooze:      WaitingRetry,
		EventTimeout:     Ready, // RocketMQ: consumption retry, SimpleConsumer: "the retry interval is 0 ms"
		EventChange:      Inflight,
		EventRelease:     Ready,
		EventDeadLetter:  DeadLetter,
	},
	WaitingRetry: {
		EventDue:        Ready,
		EventDeadLetter: DeadLetter,
	},
	Parked: {
		EventRedrive:    Ready,
		EventDeadLetter: DeadLetter, // an operator redrives the message group to the dead letters
	},
	Held: {
		EventPromote: Ready,
	},
}

var pushTransitions = map[State]map[Event]State{
	Inflight: {
		EventTimeout: WaitingRetry, // RocketMQ: consumption retry, PushConsumer: failure and timeout alike
	},
}

// Some consumers make retries themselves, for example RocketMQ's push consumers of FIFO groups.
// They report exhausted attempts with a request for a dead letter.
var exhaustedTransitions = map[Exhaustion]map[State]map[Event]State{
	ThenDeadLetter: {
		Inflight: {
			EventFail:        DeadLetter,
			EventNegativeAck: DeadLetter,
			EventTimeout:     DeadLetter,
		},
		WaitingRetry: {
			EventDue: DeadLetter, // the maximum was lowered meanwhile
		},
	},
	ThenPark: {
		Ready: {
			EventDeadLetter: Parked,
		},
		Inflight: {
			EventFail:        Parked,
			EventNegativeAck: Parked,
			EventTimeout:     Parked,
			EventDeadLetter:  Parked,
		},
		WaitingRetry: {
			EventDue:        Parked,
			EventDeadLetter: Parked,
		},
	},
	ThenBlock: { // as if attempts were left
		Ready: {
			EventDeadLetter: Ready,
		},
		Inflight: {
			EventDeadLetter: WaitingRetry,
		},
		WaitingRetry: {
			EventDeadLetter: WaitingRetry,
		},
	},
}

// Next returns the state after e, and false if e cannot happen in s.
func (s State) Next(e Event, x Exhaustion, push bool) (State, bool) {
	kind := 0
	if push {
		kind = 1
	}
	to := next[x][kind][s][e]
	return to, to != 0
}

// next holds the state after each event, by exhaustion, kind of consumer (1: push) and state. 0
// means that the event cannot happen. Each delivery looks up a transition here, because a lookup in
// the maps took a tenth of a microsecond.
var next = func() (n [ThenBlock + 1][2][Held + 1][EventRedrive + 1]State) {
	for x := range n {
		for kind := range n[x] {
			for from := range n[x][kind] {
				for e := range n[x][kind][from] {
					n[x][kind][from][e] = after(State(from), Event(e), Exhaustion(x), kind == 1) //nolint:gosec // they fit
				}
			}
		}
	}
	return n
}()

// after returns the state after e according to the tables.
func after(s State, e Event, x Exhaustion, push bool) State {
	if to, ok := exhaustedTransitions[x][s][e]; ok {
		return to
	}
	if to, ok := pushTransitions[s][e]; ok && push {
		return to
	}
	return transitions[s][e]
}
