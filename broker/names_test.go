package broker

import (
	"testing"

	"github.com/tidegate/tidegate/broker/internal/consume"
)

// The names are in logs, errors and the table of the package's doc.
func TestNamesOfStatesAndEvents(t *testing.T) {
	for s, want := range map[consume.State]string{
		consume.Ready: "Ready", consume.Inflight: "Inflight", consume.WaitingRetry: "WaitingRetry", consume.Commit: "Commit",
		consume.DeadLetter: "DeadLetter", consume.Parked: "Parked", consume.Held: "Held", 99: "unknown",
	} {
		if got := s.String(); got != want {
			t.Errorf("state %d is %q, want %q", uint8(s), got, want)
		}
	}
	for e, want := range map[consume.Event]string{
		consume.EventDeliver: "deliver", consume.EventAck: "ack", consume.EventFail: "fail", consume.EventTimeout: "timeout", consume.EventChange: "change", consume.EventRelease: "release",
		consume.EventDue: "due", consume.EventDeadLetter: "dead-letter", consume.EventNegativeAck: "negative-ack",
		consume.EventReconsume: "reconsume", consume.EventPromote: "promote", consume.EventRedrive: "redrive",
	} {
		if got := e.String(); got != want {
			t.Errorf("event %d is %q, want %q", uint8(e), got, want)
		}
	}
}
