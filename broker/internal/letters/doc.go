// Package letters handles the messages that a consumer group could not consume:
//
//   - departures: it writes messages that leave a subscription to a dead letter topic, a retry
//     topic or an expiry address ([Letters.Depart], [Letters.ReconsumeLater]);
//   - stored dead letters: it lists them, sends them back to their topics and removes them
//     ([Letters.Browse], [Letters.Redrive], [Letters.Purge]);
//   - parked message groups: it lists them and sends them on ([Letters.Parked],
//     [Letters.RedriveParked]).
//
// A departure takes two writes, because messages and leases are in two databases: first the message
// with a mark, then the removal of its lease. The mark prevents a second copy after a crash. A
// redrive adds a message to its topic and removes the dead letter in one write. One redrive, purge
// or other removal runs at a time ([Letters.Hold]).
//
// The package knows a subscription only as small interfaces.
package letters
