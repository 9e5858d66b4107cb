package broker

import "testing"

// The names are in logs, errors and the table of the package's doc.
func TestNamesOfStatesAndEvents(t *testing.T) {
	for s, want := range map[State]string{
		StateReady: "Ready", StateInflight: "Inflight", StateWaitingRetry: "WaitingRetry", StateCommit: "Commit",
		StateDeadLetter: "DeadLetter", StateParked: "Parked", stateHeld: "Held", 99: "unknown",
	} {
		if got := s.String(); got != want {
			t.Errorf("state %d is %q, want %q", uint8(s), got, want)
		}
	}
	for e, want := range map[event]string{
		eventDeliver: "deliver", eventAck: "ack", eventFail: "fail", eventTimeout: "timeout", eventChange: "change", eventRelease: "release",
		eventGiveBack: "give-back", eventDue: "due", eventDeadLetter: "dead-letter", eventNegativeAck: "negative-ack",
		eventReconsume: "reconsume", eventTurn: "turn", eventRedrive: "redrive",
	} {
		if got := e.String(); got != want {
			t.Errorf("event %d is %q, want %q", uint8(e), got, want)
		}
	}
}
