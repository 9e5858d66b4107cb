// Package retention plans which messages of a topic are removed. It has no lock and no clock, and
// writes nothing: callers pass the state of the queues and the progress of the groups, read the
// stored messages through [Messages], and carry the plan out.
//
// Retention moves the beginning of a queue. Messages before the beginning that a group is not done
// with stay; they are leftovers. Each round of retention makes one [Plan] for a topic:
//
//  1. [New] decides where each queue begins from now on.
//  2. The groups move to the new beginnings. [QueuePlan.Retain] notes the messages that they still
//     need.
//  3. [Plan.Complete] reads these messages, as far as they are not known.
//  4. The caller removes [QueuePlan.Ranges] and [QueuePlan.Finished]; [Plan.Commit] counts.
//  5. [Plan.Next] returns when the next round is due.
//
// A round that fails after step 1 is continued by the next one.
package retention
