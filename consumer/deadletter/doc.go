// Package deadletter lists dead letters, groups them by the reason of their failure, edits
// them, and sends them back without losing or doubling any.
//
// A [Source] is where the dead letters of a consumer group are: [Broker] for a tidegate broker,
// through its HTTP administration; [Queue] for a RocketMQ, by receiving from %DLQ%group.
//
//	src := deadletter.Broker{Client: client, Group: "billing"}
//	classes, err := deadletter.Summarize(ctx, src, deadletter.Filter{})
//	...
//	report, err := deadletter.Redrive(ctx, src, deadletter.Options{
//		Filter:  deadletter.Filter{Fingerprint: classes[0].Fingerprint},
//		Journal: "billing-2026-01-31.jsonl",
//	})
//
// # A redrive
//
// [Redrive] sends dead letters back at a limited rate. It stops if too many fail, skips those that
// were sent back three times before, and can be tried with DryRun.
//
// The journal is an audit trail in JSON lines, and makes a redrive resumable: one journal is one
// job. After a crash, call Redrive again with the same journal. Each message is sent back once:
//
//   - On a tidegate broker, an unedited message is stored in its topic and removed from the dead
//     letters in one write of the broker.
//   - An edited message, and every message of a Queue, is sent with an ID that depends only on its
//     first ID and the number of the redrive. It is removed afterwards. The journal records the
//     intent before the send and the result after it.
//
// A crash between intent and result repeats the send with the same ID. A tidegate broker stores it
// once within the duplicate window of the topic, by default 2 minutes. A RocketMQ stores it again:
// consumers recognize it by its ID, for example with package consumer/inbox.
//
// One redrive of a journal runs at a time.
package deadletter
