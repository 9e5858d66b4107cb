// Package consumer receives messages, calls a handler for each, and settles it: the message is
// acknowledged, delivered again later, or becomes a dead letter.
//
//	c, err := consumer.NewPush(t, consumer.Subscription{Group: "billing", Topic: "orders"},
//		func(ctx context.Context, d *tidegate.Delivery) error { return charge(ctx, d.Body) },
//		consumer.PushOptions{})
//	err = c.Run(ctx) // until ctx ends and the handlers have returned
//
// [Push] calls the handler, extends the invisible time while the handler works, and retries
// failures by the group's retry schedule. [NewBatch] returns a Push whose handler gets several
// messages at once. [Simple] has no handler: the program itself receives and acknowledges.
//
// The invisible time of a delivery is the time for which the server does not deliver the message to
// another consumer. If it ends before the message is settled, the message is delivered again.
//
// All consumers deliver at least once. A message can be delivered again after its handler has
// succeeded:
//
//   - if the acknowledgement was lost or late;
//   - on a RocketMQ, if the response to an extension of the invisible time was lost. An extension
//     replaces the receipt handle, and only its response has the new one.
//
// Handlers must therefore be idempotent by message ID. Package consumer/inbox filters duplicates.
package consumer
