// Package store keeps what the engine knows on disk, in two Pebble databases:
//
//   - messages: the message log keyed (topic, queue, offset), and the settings
//     of topics and groups. A write is answered after its fsync.
//   - groups: how far each consumer group is, and its leases: small records,
//     changed with every delivery. A write is answered when the operating
//     system has it, so that it survives the end of the process; the fsync
//     follows shortly after (see [groupsSyncDelay]). After a power failure a
//     message can therefore be delivered again, but never be lost.
//
// Both gather the writes of all callers into one batch at a time (see [Log]).
// In memory the same code runs on Pebble's in-memory file system.
package store
