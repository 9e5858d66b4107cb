// Package audit keeps the latest records of the audit in memory, for GET /v1/audit. The log has all
// of them.
package audit
