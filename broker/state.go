package broker

// A State is where a message is in a group's consumption (seed 000).
type State uint8

// The states. A message that was never handed out has no record and is Ready.
const (
	StateReady State = iota + 1
	StateInflight
	StateWaitingRetry
	StateCommit
	StateDeadLetter

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
	eventReconsume                // the consumer wants it again later, as a message of the retry topic
	eventTurn                     // the message before it in its message group is done
)

// transitions is the state machine of consumption retry. A pair that is not in it
// cannot happen: a request for it is refused with INVALID_RECEIPT_HANDLE.
// Where attempts are exhausted, exhaustedTransitions comes first; where the
// consumer is a push consumer, pushTransitions does.
var transitions = map[State]map[event]State{
	StateReady: {
		eventDeliver:    StateInflight,
		eventDeadLetter: StateDeadLetter, // late, but nobody else received it
	},
	StateInflight: {
		eventAck:         StateCommit,
		eventReconsume:   StateCommit, // seed 001: "the original message in the topic is acknowledged"
		eventFail:        StateWaitingRetry,
		eventNegativeAck: StateWaitingRetry,
		eventTimeout:     StateReady, // seed 000, SimpleConsumer: "the retry interval is 0 ms"
		eventChange:      StateInflight,
		eventRelease:     StateReady,
		eventDeadLetter:  StateDeadLetter,
	},
	StateWaitingRetry: {
		eventDue:        StateReady,
		eventDeadLetter: StateDeadLetter,
	},
	stateHeld: {
		eventTurn: StateReady,
	},
}

var pushTransitions = map[State]map[event]State{
	StateInflight: {
		eventTimeout: StateWaitingRetry, // seed 000, PushConsumer: failure and timeout alike
	},
}

var exhaustedTransitions = map[State]map[event]State{
	StateInflight: {
		eventFail:        StateDeadLetter,
		eventNegativeAck: StateDeadLetter,
		eventTimeout:     StateDeadLetter,
	},
	StateWaitingRetry: {
		eventDue: StateDeadLetter, // the maximum was lowered meanwhile
	},
}

// next returns the state after e, and false if e cannot happen in s.
func (s State) next(e event, exhausted, push bool) (State, bool) {
	if exhausted {
		if to, ok := exhaustedTransitions[s][e]; ok {
			return to, true
		}
	}
	if push {
		if to, ok := pushTransitions[s][e]; ok {
			return to, true
		}
	}
	to, ok := transitions[s][e]
	return to, ok
}
