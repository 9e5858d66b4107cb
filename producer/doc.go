// Package producer sends messages and retries those that can still succeed: at
// once after a failure, with growing delays while the server throttles, and not at
// all where another attempt is pointless. Every attempt and the reason for what
// follows it can be observed.
//
//	p, err := producer.New(t, producer.Options{})
//	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: body})
//
// [Producer.Send], [Producer.SendAsync] and [Producer.SendBatch] share one engine,
// and so the bounds, retries and order below.
//
// # Retries
//
// What follows an attempt depends on the class of its error (RocketMQ: sending retry
// and throttling policy):
//
//   - throttled (reply code 530, TOO_MANY_REQUESTS): wait Backoff.Delay(n), or as
//     long as the server asks for if that is longer, and send again;
//   - transient (connection lost, no response in time, a failure of the server):
//     send again at once, at another server if there is one. From the second attempt
//     on, an attempt waits for a connection;
//   - permanent (the request is wrong, or not permitted): stop;
//   - ctx ended, or the producer was closed: stop.
//
// A retry that could not end before the deadline of ctx is not begun: the send fails
// early, and its error has the time needed and the time left.
//
// A message keeps one ID over all its attempts. A failed attempt may have been
// stored if only its response was lost. [SendError].MaybeStored reports that, and a
// server that remembers IDs stores the next attempt only once.
//
// # Spool
//
// A producer with [Options].Spool accepts messages while no server does: they wait on
// the local disk, and the producer sends them later, in the order of their message
// groups and with the same IDs. The receipt of such a message has Spooled and no
// offset.
//
// # Shared requests
//
// If the transport supports it ([transport.LaneSender]) and the server announced it,
// messages share requests. A call to an idle server sends at once. While two requests
// are under way, messages queue, and the next request takes the whole queue. If the
// server refuses such a request for the fault of one message, the producer isolates
// that message, and the others are stored.
//
// A server that throttles is left alone for a while, and then gets one message, the
// probe. The others follow when the probe was accepted.
package producer
