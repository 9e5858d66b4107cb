// Package held makes a transport's receives and settlements for systems that push messages to a
// connection, such as ActiveMQ Artemis over AMQP 1.0. Such a system keeps a message until the
// connection settles it or ends. A [Table] turns that into the contract of [transport.Receiver] and
// [transport.Settler]: leases that end, repeated receives, message groups in order, and receives
// that wait. It keeps this state in the memory of the process.
//
// A transport implements [System] and [Link], and embeds the Table that [New] returns:
//
//	type Client struct {
//		*held.Table
//		…
//	}
//
// # Links and credit
//
// A Table opens one Link for each group, topic and filter that is received from. It grants the link
// as many messages as its receives wait for. Messages that arrive after their receive has ended
// stay in a buffer for the next one; no attempt is spent. If no receive comes for [Options].Idle,
// the buffered messages return to the system, and the link is closed once no delivery is in flight.
//
// Receives of one group with different filters compete for its messages, because each accepts the
// messages that its own filter does not select.
//
// # Leases and attempts
//
// The end of a lease fails the message in the system ([Retried]), so that every consumer can
// receive it. The last attempt makes it a dead letter ([DeadLettered]). Renewals need no request.
//
// In a FIFO group only the first message of a message group leaves the buffer. Its retries stay in
// this process, because the system would deliver a failed message after its successors. Released
// deliveries of push receives and snoozed messages also stay in this process until their time comes
// or the link is closed.
//
// # Losses of a crash
//
// When the process or its connection ends, the system delivers all held messages again at once. It
// may count a failed attempt of each: Artemis does so if the connection broke off, and not if it
// was closed. Lost are:
//   - the leases: other consumers receive the messages before the handlers have ended;
//   - the attempts that only this process counted, of retries and ended leases in FIFO groups. Over
//     a system that counts no broken connections, a message that always ends the process therefore
//     never becomes a dead letter;
//   - the delays of snoozed messages and of retries in FIFO groups.
//
// The order of a message group is kept.
package held
