// Package producer sends messages and retries failed sends: at once after a transient failure, and
// with growing delays while the server throttles. It does not retry after permanent errors.
// [Options].OnAttempt observes every attempt and the decision after it.
//
//	p, err := producer.New(t, producer.Options{})
//	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: body})
//
// [Producer.Send], [Producer.SendAsync] and [Producer.SendBatch] share one engine with the limits,
// the retries and the order described below.
//
// # Retries
//
// The class of an attempt's error decides the next step (RocketMQ: sending retry and throttling
// policy):
//
//   - throttled (reply code 530, TOO_MANY_REQUESTS): wait Backoff.Delay(n), or as
//     long as the server requests if that is longer, and send again. Another server of the
//     topic can get the message after Backoff.Delay(n);
//   - transient (connection lost, no response in time, a failure of the server):
//     send again at once, at another server if there is one. If such failures repeat,
//     the retries wait (Options.Pacing). Retries wait for a connection; the first attempt
//     does not. An attempt that never had a connection does not count in MaxAttempts: such
//     attempts repeat until the deadline of ctx, or for two minutes without one;
//   - permanent (the request is wrong, or not permitted): stop;
//   - ctx ended, or the producer was closed: stop.
//
// A retry that could not end before the deadline of ctx is not attempted. The send fails early, and
// its error has the necessary and the remaining time.
//
// A message keeps its ID in all attempts. If only the response was lost, a failed attempt may have
// been stored; [SendError].MaybeStored reports that. A server that detects duplicate IDs stores
// such a message only once.
//
// # Spool
//
// A producer with [Options].Spool accepts messages while no server does. It stores them on the
// local disk and sends them later, in the order of their message groups and with the same IDs. The
// receipt of such a message has Spooled set and no offset.
//
// # Shared requests
//
// If the transport supports it ([transport.LaneSender]) and the server announces it, messages of
// one topic to one server share requests. If no such request is under way, a message is sent at
// once. At most two requests are under way, except while responses are late: then another one
// begins each 100 ms. A second request waits for up to 5 ms for further messages. Later messages
// queue, and the next request takes as many of them as the server permits.
// If the server rejects a shared request because of one message, the producer repeats it in halves
// until only the faulty message is left, and the others are stored.
//
// # Pauses
//
// After a throttle the producer pauses all sends of the topic to that server. Then it sends one
// message as a probe. It sends the others once the server has accepted the probe. A server that
// takes one message a request gets another probe if it has not responded after the length of the
// pause.
package producer

// Life of a message, for readers of the code:
//
// An item (item.go) is a message with its limits, its history and its state. Send, SendAsync and
// SendBatch (send.go) prepare and admit it (producer.go): they validate the message and wait for a
// place (internal/ledger). The topic (topic.go) then has the item until its end:
//
//   - submit queues the item (internal/plan), or moves it to the spool (spool.go);
//   - pump begins the jobs that are ready: an ask for lanes, or a request;
//   - work carries out jobs, on a worker or on the goroutine of a Send. It routes an ask, sends the
//     request (request.go: limiter, ctx, transport), and settles it;
//   - settle charges the attempt to each item (settle.go) and decides (outcome.go; the policy is
//     internal/retry). After a throttle it needs the settings of the server (settings.go). finish
//     then applies the decisions, adapts the lane, and returns the other items to the queue;
//   - end gives an item its state (end.go). The ledger counts it, and its caller wakes.
//
// Transactions and recalls do not use the queue: repeat.go has their loop.
//
// A Send that is throttled once passes through these functions:
//
//	Send       prepare, admit, submit: Queue.Add, pump: Queue.Next has an ask
//	  work     route: lanesFor, Queue.Routed has a request; start; send: throttled
//	    settle charge; decide: awaitedSettings sends a request, retry.Decide has a delay;
//	           finish: apply notes it, adapt pauses the lane, Queue.Finished queues the item,
//	           pump sets a timer
//	  await    until the end
//	wake       pump: Queue.Next has an ask; a worker begins
//	  work     route, start, send: accepted
//	    settle charge; finish: apply calls end, conclude counts; wakeCallers
//
// The first attempt takes the lock of the topic three times if it succeeds.
