package held

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Flight is one call of Send of a [transport.Sender], for systems that respond to each message. P
// is a message that is in flight. A Flight is used by one goroutine and once.
//
//	func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
//		return held.Flight[pending]{
//			Closed: c.closed,
//			Begin:  func(m *tidegate.Message, _ bool) (pending, bool, *tidegate.Error) { … },
//			Wait:   func(p pending) *tidegate.Error { return p.wait(ctx) },
//		}.Send(c.endpoint, msgs)
//	}
type Flight[P any] struct {
	// Closed reports whether the transport is closed. Failures are then [tidegate.ErrClosed].
	Closed func() bool

	// Begin checks a message and gives it to the system. It does not wait for the response. alone
	// reports that no other message of the call is in flight. If it is not set, Begin must not wait
	// for a resource that those keep until the end of their Wait, for example memory: it returns
	// false instead, and is called again after that. With alone it returns true or an error. The
	// Flight completes the error with Op, Endpoint and, if it has none, the topic as the Subject.
	Begin func(m *tidegate.Message, alone bool) (p P, ok bool, err *tidegate.Error)

	// Wait blocks until the response to a message, or until the attempt ends without one. It is
	// called once for each message for which Begin returned true, in the same order. It returns nil
	// if the message is stored. The Flight completes the error as that of Begin.
	Wait func(p P) *tidegate.Error
}

// Send sends messages of one topic. All are in flight at the same time, except those of one message
// group or lite topic: each begins after the end of the one before. After a transient failure the
// rest of its group is not sent, because it would be stored before a repetition of the failed
// message. A permanent failure does not concern the rest. Send returns a result for each message,
// with the endpoint in receipts and errors.
func (f Flight[P]) Send(endpoint string, msgs []*tidegate.Message) []transport.SendResult {
	type sent struct {
		i int
		p P
	}
	type line struct {
		round  int // of its last message
		failed *tidegate.Error
	}
	results := make([]transport.SendResult, len(msgs))
	var groups map[string]line
	fail := func(i int, e *tidegate.Error) {
		m := msgs[i]
		if f.Closed() {
			e.Err, e.NotConnected, e.Code = tidegate.ErrClosed, false, 0
		}
		if g := m.OrderKey(); g != "" && tidegate.Classify(e) != tidegate.ClassPermanent {
			groups[g] = line{failed: e}
		}
		results[i].Err = named(e, endpoint, m)
	}
	todo, flight := make([]int, len(msgs)), make([]sent, 0, 4) // on the stack, for most calls
	for i := range todo {
		todo[i] = i
	}
	for round := 1; len(todo) > 0; round++ {
		later := todo[:0]
		for _, i := range todo {
			m := msgs[i]
			if g := m.OrderKey(); g != "" {
				if groups == nil {
					groups = map[string]line{}
				}
				l := groups[g]
				if l.round == round {
					later = append(later, i)
					continue
				}
				if l.failed != nil {
					results[i].Err = named(&tidegate.Error{
						Code: tidegate.CodeInternalServerError, Err: l.failed, NotConnected: l.failed.NotConnected,
						Message: "not sent, because an earlier message of its message group failed",
					}, endpoint, m)
					continue
				}
				groups[g] = line{round: round}
			}
			switch p, ok, err := f.Begin(m, len(flight) == 0); {
			case err != nil:
				fail(i, err)
			case ok:
				flight = append(flight, sent{i, p})
			default:
				later = append(later, i)
			}
		}
		for _, s := range flight {
			if err := f.Wait(s.p); err != nil {
				fail(s.i, err)
				continue
			}
			m := msgs[s.i]
			results[s.i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Queue: -1, Offset: -1, Endpoint: endpoint}
		}
		todo, flight = later, flight[:0]
	}
	return results
}

// named completes the error of a message.
func named(e *tidegate.Error, endpoint string, m *tidegate.Message) error {
	e.Op, e.Endpoint = "SendMessage", endpoint
	if e.Subject == "" {
		e.Subject = m.Topic
	}
	return e
}
