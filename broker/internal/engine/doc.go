// Package engine has the parts of a broker that work under its locks: the catalog of topics, groups
// and address settings (Catalog), the subscriptions of groups, sends and limits, dead letters, the
// removal of messages, and the history of rates and backlogs.
package engine
