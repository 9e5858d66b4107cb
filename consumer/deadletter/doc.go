// Package deadletter lists dead letters, groups them by the reason of their failure, edits them,
// and sends them back without loss or duplicates.
//
// A [Source] has the dead letters of a consumer group: [Broker] reads them from a tidegate broker
// over its HTTP administration; [Queue] receives them from %DLQ%group of a RocketMQ.
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
// [Redrive] sends dead letters back at a limited rate. It stops if too many fail, and skips those
// with three earlier redrives. DryRun shows its decisions without effects.
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
// Only one redrive of a journal may run at a time.
package deadletter
