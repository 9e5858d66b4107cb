package producer

import "github.com/tidegate/tidegate/transport"

// A Fault says who can cure a failed send.
type Fault int

// The faults.
const (
	// PassingFault: the same message can succeed later without a change. Throttling,
	// outages, deadlines and a closed producer are of this kind.
	PassingFault Fault = iota

	// MessageFault: the server will never accept this message, others it will.
	MessageFault

	// SetupFault: no message of this topic can succeed until the set-up changes. For
	// example the topic does not exist, or the credentials are not accepted.
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

// Fault returns who can cure the failure. A gateway, for example, rejects the
// message after a MessageFault, alerts and keeps the message after a SetupFault,
// and keeps it after a PassingFault.
func (e *SendError) Fault() Fault {
	switch e.Reason {
	case StopInvalid:
		return MessageFault
	case StopPermanent:
		return faultOf(e.Last)
	}
	return PassingFault
}

// faultOf returns the fault behind a permanent error.
func faultOf(err error) Fault {
	switch {
	case transport.IsMessageFault(err):
		return MessageFault
	case transport.Classify(err) == transport.Permanent:
		return SetupFault
	}
	return PassingFault
}
