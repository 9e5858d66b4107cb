package broker

import "testing"

// The state machine of seed 000, written out a second time, as a list.
// Seed 000: "Retry process state machine: controls the state and the change logic of messages in the retry process"
// Seed 000: "This state is exclusive to push consumers"
func TestStateMachine(t *testing.T) {
	type row struct {
		from            State
		e               event
		exhausted, push bool
		to              State
	}
	rows := []row{
		{StateReady, eventDeliver, false, false, StateInflight},
		{StateReady, eventDeliver, true, true, StateInflight},
		{StateReady, eventDeadLetter, false, false, StateDeadLetter},
		{StateInflight, eventAck, false, false, StateCommit},
		{StateInflight, eventAck, true, true, StateCommit},
		{StateInflight, eventFail, false, false, StateWaitingRetry},
		{StateInflight, eventFail, false, true, StateWaitingRetry},
		{StateInflight, eventFail, true, false, StateDeadLetter},
		{StateInflight, eventFail, true, true, StateDeadLetter},
		{StateInflight, eventTimeout, false, false, StateReady},
		{StateInflight, eventTimeout, false, true, StateWaitingRetry},
		{StateInflight, eventTimeout, true, false, StateDeadLetter},
		{StateInflight, eventTimeout, true, true, StateDeadLetter},
		{StateInflight, eventChange, true, true, StateInflight},
		{StateInflight, eventRelease, true, true, StateReady},
		{StateInflight, eventDeadLetter, false, false, StateDeadLetter},
		{StateInflight, eventNegativeAck, false, false, StateWaitingRetry},
		{StateInflight, eventNegativeAck, true, true, StateDeadLetter},
		{StateInflight, eventReconsume, false, false, StateCommit},
		{StateInflight, eventReconsume, true, true, StateCommit},
		{StateWaitingRetry, eventDue, false, true, StateReady},
		{StateWaitingRetry, eventDue, true, true, StateDeadLetter},
		{StateWaitingRetry, eventDeadLetter, false, true, StateDeadLetter},
		{stateHeld, eventTurn, false, false, StateReady},
	}
	possible := map[State]map[event]bool{}
	for _, r := range rows {
		if to, ok := r.from.next(r.e, r.exhausted, r.push); !ok || to != r.to {
			t.Errorf("%v, event %d, exhausted %v, push %v: %v, %v; want %v", r.from, r.e, r.exhausted, r.push, to, ok, r.to)
		}
		if possible[r.from] == nil {
			possible[r.from] = map[event]bool{}
		}
		possible[r.from][r.e] = true
	}
	for from := StateReady; from <= stateHeld; from++ {
		for e := eventDeliver; e <= eventTurn; e++ {
			if to, ok := from.next(e, false, false); ok && !possible[from][e] {
				t.Errorf("%v, event %d leads to %v, but cannot happen", from, e, to)
			}
		}
	}
}
