// Package limits decides whether a send may be stored. [Limits.Check] compares the state of the
// storage, the backlogs of a topic and its groups, the cold reads and the rate of the topic with
// their limits. Package throttle has the arithmetic; this package has the limits in effect, the
// locks around the state of each limit, and the reads of the store.
//
// A send calls [Limits.WithinQuota] and [Limits.Observe] without a lock, and then Check for each
// message, within the message log's Add. A rejected send gets the error of [Rejected].
package limits
