package held_test

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// suiteServer describes a Table over the fake. The suite leaves out:
//   - NegativeAck, RetryResult and RetryBySchedule: capabilities of servers with a retry schedule;
//   - PushTimeoutsTakeTheSchedule: the message is retried when the lease ends, as in RocketMQ 5.2.
func suiteServer() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.TimeoutsTakeTheSchedule, s.Recall = false, false
	s.Virtual = true
	s.Capabilities = transport.Capabilities{RepeatReceive: true, Suspend: true, Verdicts: transport.Snooze, IdempotentDeadLetter: true}
	return s
}

func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults faults
	}{
		{"responds at once", faults{}},
		{"takes its time", faults{
			openDelay: 2 * time.Millisecond, deliverDelay: time.Millisecond,
			slow: func(held.Settlement) time.Duration { return time.Millisecond },
		}},
		{"pushes more than it was asked for", faults{excess: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := suiteServer()
			server.FullReceives = c.faults.excess == 0 // a receive may return the excess alone
			transporttest.Run(t, func(*testing.T) transporttest.Fixture {
				f := newFake(held.Options{Grace: 6 * time.Millisecond})
				f.faults = c.faults
				return f.fixture()
			}, server)
		})
	}
}
