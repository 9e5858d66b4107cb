package broker

// A State is where a message is in a group's consumption (RocketMQ: consumption retry).
type State uint8

// The states. A message that was never handed out has no record and is Ready.
const (
	StateReady State = iota + 1
	StateInflight
	StateWaitingRetry
	StateCommit
	StateDeadLetter

	// StateParked is out of circulation until somebody sends it on, as is all
	// that follows in its message group. FIFO groups that park only.
	StateParked

	// stateHeld is Ready in every respect but one: an earlier message of its
	// message group is not done, so it is not its turn. FIFO groups only.
	stateHeld
)

// String returns the name used by RocketMQ.
func (s State) String() string {
	switch s {
	case StateReady:
		return "Ready"
	case StateInflight:
		return "Inflight"
	case StateWaitingRetry:
		return "WaitingRetry"
	case StateCommit:
		return "Commit"
	case StateDeadLetter:
		return "DeadLetter"
	case StateParked:
		return "Parked"
	case stateHeld:
		return "Held"
	}
	return "unknown"
}

// An event is something that happens to a message.
type event uint8

const (
	eventDeliver     event = iota // a consumer receives it
	eventAck                      // the consumer has consumed it
	eventFail                     // the consumer says that consuming failed
	eventTimeout                  // the invisible duration is over without an answer
	eventChange                   // the consumer changes the invisible duration
	eventRelease                  // it did not reach the consumer, or was not looked at
	eventGiveBack                 // the consumer wants no more of it: eventRelease for push consumers, eventTimeout for simple ones
	eventDue                      // the retry interval is over
	eventDeadLetter               // the consumer wants it among the dead letters
	eventNegativeAck              // the consumer wants it again later; it has a maximum of its own
	eventSnooze                   // the consumer wants it again later; the attempt does not count
	eventReconsume                // the consumer wants it again later, as a message of the retry topic
	eventTurn                     // the message before it in its message group is done
	eventRedrive                  // somebody sends a parked message group on
)

// String returns the name in the table of the package's doc.
func (e event) String() string {
	return [...]string{"deliver", "ack", "fail", "timeout", "change", "release", "give-back", "due", "dead-letter", "negative-ack", "snooze", "reconsume", "turn", "redrive"}[e]
}

// An exhaustion is what happens to a message after its last attempt.
type exhaustion uint8

const (
	attemptsLeft exhaustion = iota // it was not the last one
	thenDeadLetter
	thenPark  // with its message group
	thenBlock // its message group, retried for ever
)

// transitions is the state machine of consumption retry. A pair that is not in it
// cannot happen: a request for it is refused with INVALID_RECEIPT_HANDLE.
// Where attempts are exhausted, one of exhaustedTransitions comes first; where
// the consumer is a push consumer, pushTransitions does. The package's doc has
// the same as a table for people, and a test compares them.
var transitions = map[State]map[event]State{
	StateReady: {
		eventDeliver:    StateInflight,
		eventDeadLetter: StateDeadLetter, // late, but nobody else received it
	},
	StateInflight: {
		eventAck:         StateCommit,
		eventReconsume:   StateCommit, // TDMQ for Pulsar: retry and dead letters: "the original message in the topic is acknowledged"
		eventFail:        StateWaitingRetry,
		eventNegativeAck: StateWaitingRetry,
		eventSnooze:      StateWaitingRetry,
		eventTimeout:     StateReady, // RocketMQ: consumption retry, SimpleConsumer: "the retry interval is 0 ms"
		eventChange:      StateInflight,
		eventRelease:     StateReady,
		eventDeadLetter:  StateDeadLetter,
	},
	StateWaitingRetry: {
		eventDue:        StateReady,
		eventDeadLetter: StateDeadLetter,
	},
	StateParked: {
		eventRedrive:    StateReady,
		eventDeadLetter: StateDeadLetter, // asked for by who sends the message group on
	},
	stateHeld: {
		eventTurn: StateReady,
	},
}

var pushTransitions = map[State]map[event]State{
	StateInflight: {
		eventTimeout: StateWaitingRetry, // RocketMQ: consumption retry, PushConsumer: failure and timeout alike
	},
}

// A consumer that retries by itself (RocketMQ's push consumers of FIFO groups)
// tells that attempts are exhausted by asking for a dead letter.
var exhaustedTransitions = map[exhaustion]map[State]map[event]State{
	thenDeadLetter: {
		StateInflight: {
			eventFail:        StateDeadLetter,
			eventNegativeAck: StateDeadLetter,
			eventTimeout:     StateDeadLetter,
		},
		StateWaitingRetry: {
			eventDue: StateDeadLetter, // the maximum was lowered meanwhile
		},
	},
	thenPark: {
		StateReady: {
			eventDeadLetter: StateParked,
		},
		StateInflight: {
			eventFail:        StateParked,
			eventNegativeAck: StateParked,
			eventTimeout:     StateParked,
			eventDeadLetter:  StateParked,
		},
		StateWaitingRetry: {
			eventDue:        StateParked,
			eventDeadLetter: StateParked,
		},
	},
	thenBlock: { // as if attempts were left
		StateReady: {
			eventDeadLetter: StateReady,
		},
		StateInflight: {
			eventDeadLetter: StateWaitingRetry,
		},
		StateWaitingRetry: {
			eventDeadLetter: StateWaitingRetry,
		},
	},
}

// next returns the state after e, and false if e cannot happen in s.
func (s State) next(e event, x exhaustion, push bool) (State, bool) {
	if to, ok := exhaustedTransitions[x][s][e]; ok {
		return to, true
	}
	if push {
		if to, ok := pushTransitions[s][e]; ok {
			return to, true
		}
	}
	to, ok := transitions[s][e]
	return to, ok
}
