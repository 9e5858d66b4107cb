// Package catalog has the topics, consumer groups and subscriptions of a broker.
//
// A [Directory] finds them. A [Catalog] creates, changes and deletes them with their stored
// records, and restores all of them when the broker opens ([Catalog.Recover]). Changes of settings
// run one at a time, under the token of [Directory.LockAdmin]. A change is on disk before it has an
// effect, except for the deletion of a group.
//
// The package also has the address settings, which apply to topics by pattern, and two tasks: the
// deletion of unused automatic dead letter queues, and of message IDs that are older than the
// duplicate window.
package catalog
