// Package producer sends messages and does not give up too soon: it retries
// what may succeed, waits as long as a throttling server needs, stops at once
// where another attempt is pointless, and says of every attempt what it did and why.
//
//	p, err := producer.New(t, producer.Options{})
//	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: body})
//
// What happens after an attempt (seed 004):
//
//   - throttled (reply code 530, TOO_MANY_REQUESTS): wait Backoff.Delay(n), or what
//     the server asks for if that is longer, and send again;
//   - transient (connection lost, no answer in time, a fault on the server's side):
//     send again at once;
//   - permanent (the request itself is wrong, or not permitted): stop;
//   - ctx ended, or the producer was closed: stop.
//
// A message keeps one ID over all its attempts. A failed attempt may have been
// stored all the same, when only its answer was lost: [SendError].MaybeStored
// tells, and a server that remembers IDs stores the next attempt only once.
package producer
