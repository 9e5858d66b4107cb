// Package store keeps what the engine knows on disk, in two Pebble databases:
//
//   - messages: the message log keyed (topic, queue, offset), and the settings
//     of topics and groups. A write is answered after its fsync.
//   - groups: how far each consumer group is, and its leases: small records,
//     changed with every delivery. A commit is with the operating system, so that
//     it survives the end of the process; the fsync follows shortly after (see
//     [groupsSyncDelay]), or at once for those who wait for it (see
//     [Flight.WaitSynced]): acknowledgements do, first deliveries do not. After
//     a power failure a message can therefore be delivered again that was
//     delivered once, but nothing that was answered is taken back.
//
// Both gather the writes of all callers into one batch at a time (see [Log]).
// In memory the same code runs on Pebble's in-memory file system.
package store
