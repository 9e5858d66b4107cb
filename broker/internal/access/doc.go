// Package access decides who a request is from and what it may do. It is
// pure: it knows no wire, no clock and no file, and a [Policy] is never changed.
//
// Who: [Policy.Signature] checks RocketMQ 5's v2 signature, [Policy.Password]
// a name and a secret, [Policy.Certificate] the names of a verified client
// certificate. What: [Policy.Allows] compares a [Need], which is what a request
// asks for, with the rules of an [Identity]. What no rule allows is refused.
//
// A check does the same work for a key that is not there as for a wrong
// secret, compares in constant time, and remembers nothing.
package access
