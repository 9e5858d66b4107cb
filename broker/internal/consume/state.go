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
	EventFail                     // the consumer says that consuming failed
	EventTimeout                  // the invisible duration is over without an answer
	EventChange                   // the consumer changes the invisible duration
	EventRelease                  // it did not reach the consumer, or was not looked at
	EventDue                      // the retry interval is over
	EventDeadLetter               // the consumer wants it among the dead letters
	EventNegativeAck              // the consumer wants it again later; it has a maximum of its own
	EventSnooze                   // the consumer wants it again later; the attempt does not count
	EventReconsume                // the consumer wants it again later, as a message of the retry topic
	EventPromote                  // the message before it in its message group is done
	EventRedrive                  // an operator redrives the parked message group
)

// String returns the name in the table in the doc of package broker.
func (e Event) String() string {
	return [...]string{"deliver", "ack", "fail", "timeout", "change", "release", "due", "dead-letter", "negative-ack", "snooze", "reconsume", "promote", "redrive"}[e]
}

// An Exhaustion is what happens to a message after its last attempt.
type Exhaustion uint8

const (
	AttemptsLeft Exhaustion = iota // it was not the last one
	ThenDeadLetter
	ThenPark  // with its message group
	ThenBlock // its message group: it is retried without end
)

// transitions is the state machine of consumption retry. A pair that is not in it cannot happen:
// the broker rejects a request for it with INVALID_RECEIPT_HANDLE. If the attempts are exhausted,
// exhaustedTransitions are looked at first. Then, for a push consumer, pushTransitions are. The doc
// of package broker has the same table, and a test compares them.
var transitions = map[State]map[Event]State{
	Ready: {
		EventDeliver:    Inflight,
		EventDeadLetter: DeadLetter, // late, but nobody else received it
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
		EventDeadLetter: DeadLetter, // asked for by who sends the message group on
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

// A consumer that retries by itself (RocketMQ's push consumers of FIFO groups)
// tells that attempts are exhausted by asking for a dead letter.
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

// next has the state after each event, by exhaustion, kind of consumer (1: push) and state; 0 for a
// pair that cannot happen. Each delivery looks here, and a lookup in the maps took a tenth of a
// microsecond.
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

// after looks the state after e up in the tables.
func after(s State, e Event, x Exhaustion, push bool) State {
	if to, ok := exhaustedTransitions[x][s][e]; ok {
		return to
	}
	if to, ok := pushTransitions[s][e]; ok && push {
		return to
	}
	return transitions[s][e]
}
