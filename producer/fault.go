package producer

import (
	"github.com/tidegate/tidegate"
)

// A Fault classifies a failed send by its remedy.
type Fault int

// The faults.
const (
	// PassingFault: the same message can succeed later. Examples are throttling, outages, deadlines
	// and a closed producer.
	PassingFault Fault = iota

	// MessageFault: the server rejects this message and accepts others. Change the message.
	MessageFault

	// SetupFault: no message of this topic can succeed until the set-up changes. Examples are a
	// missing topic and rejected credentials.
	SetupFault
)

// String returns the lower-case name.
func (f Fault) String() string {
	switch f {
	case PassingFault:
		return "passing"
	case MessageFault:
		return "message"
	case SetupFault:
		return "set-up"
	}
	return "unknown"
}

// Fault returns the class of the remedy. A gateway, for example, rejects the message after a
// MessageFault, alerts and keeps the message after a SetupFault, and keeps it after a PassingFault.
// The classes are those of sends: a Recall of a delivered message fails with a SetupFault too.
func (e *SendError) Fault() Fault {
	switch e.Reason {
	case StopInvalid:
		return MessageFault
	case StopPermanent:
		if e.Last == nil {
			return SetupFault // no attempt is possible for any message
		}
		return faultOf(e.Last)
	}
	return PassingFault
}

// faultOf returns the fault behind a permanent error.
func faultOf(err error) Fault {
	switch {
	case tidegate.IsMessageFault(err):
		return MessageFault
	case tidegate.Classify(err) == tidegate.ClassPermanent:
		return SetupFault
	}
	return PassingFault
}
