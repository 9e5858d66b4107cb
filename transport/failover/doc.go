// Package failover is a transport over an ordered list of endpoints: RocketMQ clusters, tidegate
// brokers, or both. Sends go to the active endpoint, at the beginning the first one. [New]
// accepts transports of any kind.
//
// # Switching
//
// Sends leave the active endpoint after one of these:
//
//   - [Options].Failures transient failures of sends in a row;
//   - a transient failure of a send, followed by a failed probe;
//   - two throttles, [Options].ThrottleGrace or longer apart, without an accepted send since the
//     first of them.
//
// A certificate or credentials that the endpoint had accepted before count as transient failures.
// A missing permission for a topic never does. Cancelled calls, permanent errors and single
// throttles do not count, and neither do the results of sends that began before the last switch.
//
// Sends switch to the first endpoint in the list that works; if none works, they stay. From an
// endpoint that throttles they return to an earlier one only after [Options].SwitchBack, because
// they may have left that one for its throttles. Attempts that wait for a connection to a failing
// endpoint end with the switch, so that the next attempts use the new one.
//
// The Transport probes the other endpoints with Ping. Sends return to an endpoint that precedes the
// active one in the list once it has worked for [Options].SwitchBack. If sends leave it again
// within ten times that time, or before it accepted a send, it has to work for twice as long the
// next time, up to 32 times as long. Recurring faults of an endpoint therefore cause fewer
// switches.
//
// # Receiving
//
// Consumers receive from all endpoints as long as they run, also from an empty endpoint that sends
// do not use. No endpoint can be treated as drained: other programs may switch at other times, a
// retry can be due hours after the last new message, and operators send dead letters back. The
// price is one waiting receive for each queue of each endpoint. Receives from an endpoint that is
// down fail, and the consumer repeats each after its ReceiveBackoff: by default after about 1 s at
// first, and then at most every 5 s. [Transport.Queues] returns the queues of all endpoints, for
// separate Receives. A delivery is settled at its endpoint; Delivery.Endpoint begins with the
// endpoint's name.
//
// A message group is in order within one endpoint. Messages on two endpoints around a switch have
// no order. A send whose response was lost can be stored on both, with the same message ID.
package failover
