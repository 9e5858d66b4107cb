// Package simulation runs producers and consumers on one or two brokers in virtual time, with
// random options and random faults, and checks the promises of the SDK. It consists of tests.
//
// One seed determines a plan: the brokers, topics, groups and clients, the options of every
// producer and consumer, the reaction of every handler to every message, and the faults with their
// times. All faults end before the end of the plan's first phase. Then the simulation waits until
// everything is idle, sends some dead letters back, waits again, stops the producers and consumers,
// and checks the promises.
//
// The files:
//
//   - plan: the plan of a seed
//   - world: the brokers, topics, groups and clients of a plan
//   - faults: the kinds of faults, and their effect on a request
//   - wire: the in-process transport with faults, and the count of all transport calls
//   - producers, consumers: the users of the SDK
//   - limiter: calls beside the sends that share the adaptive limiter
//   - jobs: the dead letter jobs, which run when the groups are idle
//   - sessions: the sessions that the brokers have after the end of the clients
//   - book: everything that the users observed
//   - checks: the promises, one function for each
//
// To add a fault, add its kind, its row in the table of kinds, and its effect in around. To add a
// promise, add a function with its sentence to the list of promises. The function reads the book.
//
// Five faults of earlier versions were put back, one after the other. These seeds are the first
// that find them with the plans of today:
//
//   - asks for a lane that the transport no longer returns have no end: 34
//   - a late throttle beside a probe stops the queue of a topic: 47
//   - callers of an adaptive limiter wait at the rate at which they began: 2
//   - the kill switch excuses the failures of a message without bound: 1
//   - all topics share the time at which an endpoint of a failover was empty: 197
//
// A plan is deterministic, but the Go scheduler is not: two runs of a seed have the same faults at
// the same times, and can differ in the order of requests of the same instant. If a failure does
// not repeat, run the seed several times with -count.
package simulation
