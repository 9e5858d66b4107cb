// Package removal removes messages: by retention, by a purge, and with a deleted topic. Package
// retention plans a round; this package runs it on a topic, its groups and the store, and returns
// the disk space of removed messages.
//
// One token, that of the task of retention, is held by each round, purge and rewind. So at most one
// of them runs at a time.
package removal
