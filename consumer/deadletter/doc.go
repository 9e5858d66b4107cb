// Package deadletter lists dead letters, groups them by the reason of their failure, edits them,
// and sends them back without loss or duplicates.
//
// A [Source] has the dead letters of a consumer group. [Broker] reads them over the HTTP
// administration interface of a tidegate broker. [Queue] receives them from the topic %DLQ%group,
// for example of a RocketMQ.
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
// [Redrive] sends dead letters back to their topics at a limited rate (Options.PerSecond). It stops
// if too many of them fail (MaxFailureShare), and skips messages that were already redriven three
// times (MaxGenerations). With DryRun it reports its decisions and sends nothing.
//
// The journal is a file of JSON lines: an audit trail of the redrive, and its state. All calls of
// Redrive with the same journal are one job. After a crash, call Redrive again with the same
// journal. Each message is sent back once:
//
//   - On a tidegate broker, an unedited message is stored in its topic and removed from the dead
//     letters in one write of the broker.
//   - An edited message, and every message of a Queue, is sent as a new message. Its ID depends
//     only on the message's first ID and the number of the redrive. The dead letter is removed
//     after the send; with ToGroupOnly a tidegate broker does both in one write. The journal
//     records the intent before the send and the result after it. If two letters of a job have one
//     ID, which a topic can store beyond its duplicate window, the ID of the second one also
//     depends on its place. The ID does not depend on the job: a letter that jobs with different
//     journals send is stored once within the duplicate window, and so are two letters with one ID
//     of two topics that two such jobs send to one.
//
// After a crash between intent and result, the next run repeats the send with the same ID. A
// tidegate broker drops the repeated message within the duplicate window of the topic, by default 2
// minutes. A RocketMQ stores the message twice: consumers recognize the duplicate by its ID, for
// example with package consumer/inbox.
//
// A redrive locks its journal. A second one with the same journal returns an error that names the
// process of the first.
package deadletter
