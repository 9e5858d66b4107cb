// Package failover is a transport over an ordered list of endpoints: RocketMQ clusters,
// tidegate brokers, or both. Sends go to the active endpoint, which is the first one at
// the beginning. [Dial] is for the common case, a primary and a secondary address; [New]
// takes transports of any kind.
//
// # When it switches
//
// The active endpoint is left after [Options].Failures sends in a row that failed in a transient
// way, after one that was followed by a failed probe, or after throttling without a break for
// [Options].ThrottleGrace. Attempts that wait for a connection to it end then, so that the next
// ones go to another endpoint. A cancelled call, a permanent error or a single throttle never
// counts. The next endpoint is the first in the list that works; if none does, the active one
// stays.
//
// Endpoints that are not active are probed with Ping. Sends go back to an earlier
// endpoint once it was well for [Options].SwitchBack. If it has to be left again soon
// afterwards, it has to be well for twice as long the next time, at most 32 times as
// long, so that an endpoint with recurring faults does not make sends flap.
//
// # Receiving
//
// Consumers receive from all endpoints: other programs may have switched before or
// after this one, and messages wait where they were stored. [Transport.Queues] names the
// queues of all endpoints, each to be received from in a Receive of its own. A delivery
// is settled where it came from; its Endpoint begins with the endpoint's name.
//
// A message group is in order within one endpoint. Messages that were stored on two of
// them around a switch have no order between them, and a send whose response was lost
// may be stored on both, with one message ID.
package failover
