// Package inbox makes the effects of a handler happen once for each message.
//
// Consumers deliver at least once: a message comes again if its acknowledgement
// was lost, if its lease ran out, or if a producer sent it twice with one ID. An
// inbox remembers the messages that a consumer group has consumed, by message
// ID, and acknowledges a repeated one without calling the handler.
//
//   - [SQL] records a message in the same database transaction as the handler's
//     own writes. Either both are committed or neither is, also after a crash.
//   - [Memory] remembers messages of this process only. It suits handlers whose
//     repetition is a nuisance but no fault.
package inbox
