// Package consumer receives messages, hands them to a handler, and settles each: acknowledges it,
// has it delivered again later, or makes it a dead letter.
//
//	c, err := consumer.NewPush(t, consumer.Subscription{Group: "billing", Topic: "orders"},
//		func(ctx context.Context, d *tidegate.Delivery) error { return charge(ctx, d.Body) },
//		consumer.PushOptions{})
//	err = c.Run(ctx) // until ctx ends and the handlers have returned
//
// [Push] runs the handler, extends the invisible time while it works, and retries failures by the
// group's retry schedule. [Simple] leaves all of that to the program: receive, work, acknowledge.
//
// [NewBatch] returns a push consumer whose handler gets several messages at once.
//
// Both deliver at least once: a message can come again after its handler succeeded, when the
// acknowledgement was lost or late, and with a real RocketMQ when the response to an extension was
// lost, since only that response has the handle to acknowledge with. Let handlers be idempotent by
// message ID.
package consumer
