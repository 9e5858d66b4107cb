// Package access authenticates requests and checks their permissions. It is pure: it knows no
// protocol, no clock and no file, and a [Policy] is never changed.
//
// Authentication: [Policy.Signature] checks RocketMQ 5's v2 signature, [Policy.Password] a name and
// a secret, [Policy.Certificate] the names of a verified client certificate. Permissions:
// [Policy.Allows] compares a [Need] of a request with the rules of an [Identity]. A request that no
// rule allows is rejected.
//
// A check does the same work for an unknown key as for a wrong secret, compares in constant time,
// and stores nothing.
package access
