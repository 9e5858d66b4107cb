// Package policy lets a consumer retry some messages differently from others: by topic, tag or
// property.
//
//	opts := consumer.PushOptions{Policies: []policy.Policy{
//		{MaxAttempts: 10}, // every message
//		{Topic: "orders.#", Retry: backoff.Steps{time.Second, time.Minute}},
//		{Tag: "invoice", MaxAttempts: 3},
//		{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 5},
//	}}
//
// A [Policy] sets values for the messages that it matches. If several policies match a message,
// each value comes from the most specific one that sets it. A value that no matching policy sets
// comes from Subscription.Retry, the server's settings or the default, in this order.
//
// A policy is more specific than another one if it
//
//  1. has more properties;
//  2. has more properties with a value, if they have the same number;
//  3. has a tag and the other one has none;
//  4. has the more specific topic pattern: more words that are not wildcards, then more words
//     including "*", then fewer "#", then its plain words further to the left;
//  5. comes first in the list.
//
// The first condition in which two policies differ decides. The topic patterns are those of the
// broker's address settings (Apache ActiveMQ Artemis manual, Undelivered Messages).
//
// Push.EffectivePolicy returns an [Effective]: the values in effect for a message with their
// sources. [Effective.Preview] lists the retries until the last attempt.
package policy
