// Package limits decides whether a send may be stored. Check compares the backlogs of a topic and
// its groups, the rate of the topic, the reads far behind its end and the state of the storage with
// their limits. Package throttle has the arithmetic; this package has the limits in effect, the
// locks around the state of each limit, and the questions to the store.
package limits
