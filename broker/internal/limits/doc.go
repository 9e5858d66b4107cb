// Package limits decides whether a send may be stored. [Limits.Check] compares the state of the
// storage, the backlogs of a topic and its groups, the cold reads and the rate of the topic with
// their limits. Package throttle has the arithmetic; this package has the limits in effect, the
// locks around the state of each limit, and the reads of the store.
//
// A send calls [Limits.WithinQuota] and [Limits.Observe] without a lock, and then Check for each
// message, within the message log's Add. A rejected send gets the error of [Rejected].
//
// # Adding a limit
//
//  1. The rule is a pure function in package throttle, with its table of tests. A Gate there ends a
//     throttle below the limit.
//  2. Its state for each topic is in topic.Throttling. Values that must survive a restart are
//     counted in package topic, and package catalog restores them in Recover.
//  3. The values of the message that it compares are in [Sender]. Package sending sets them for
//     sends, and package letters for redrives.
//  4. The name of the limit is a constant in throttle.go, which is also in Names, in the comment of
//     [Throttle] and in openapi.yaml. The name of a topic's limit begins with "topic", that of a
//     group's with "group". A new unit needs its constant and the unit in openapi.yaml.
//  5. Limits.Check calls it before the rate, because the rate counts the accepted messages. Its
//     sender can be nil. Limits.States (topicStates for a topic) returns its state, and remedies
//     has the advice to the client.
//  6. Its setting is a field of the topic or of the broker: see "Adding to it" in DESIGN.md. If a
//     changed setting must reset the state, Catalog.PutTopicLocked does it, as for RateChanged.
//  7. A limit that rejects all sends is also in the alert TidegateStoragePressed of
//     broker/server/monitoring. One that rejects one client has no metric limit_reached.
//
// TestNamesAreComplete and TestEachLimitHasARemedy (here), TestOpenAPIThrottleLimits and
// TestMonitoringKnowsTheStoragesLimits (broker/server) find most omissions.
package limits
