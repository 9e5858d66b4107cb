// Package store stores the data of the engine in two Pebble databases:
//
//   - messages: the message log keyed (topic, queue, offset), and the settings
//     of topics and groups.
//   - groups: the cursor and the leases of each consumer group: small records,
//     changed with every delivery.
//
// A write is acknowledged after its fsync. Lazy writes ([Log.AddLazy]) are the exception: first
// deliveries do not wait for the fsync, which follows within 20 ms. After a crash or a power
// failure a message that was delivered once can therefore be delivered again as attempt 1.
//
// Both databases gather the writes of all callers into one batch at a time ([Log]).
// In memory the same code runs on Pebble's in-memory file system.
package store
