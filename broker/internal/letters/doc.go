// Package letters handles the messages that a consumer group could not consume:
//
//   - stored dead letters: it lists them, sends them back to their topics and removes them
//     ([Letters.Browse], [Letters.Redrive], [Letters.Purge]);
//   - parked message groups: it lists them and sends them on ([Letters.Parked],
//     [Letters.RedriveParked]).
//
// Package subscription writes them: a departure. A redrive adds a message to its topic and removes
// the dead letter in one write. One redrive, purge or other removal runs at a time
// ([Letters.Hold]). Letters also finds the topic and the delay of a message that a consumer sends
// to a retry topic ([Letters.ReconsumeLater]).
package letters
