// Package login has the sessions of pages in browsers, and delays logins after failed ones. It
// knows neither HTTP nor the rules of keys: its caller authenticates, and passes a digest of the
// key that changes with the key's secrets and rules.
package login
