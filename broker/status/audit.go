package status

import "time"

// An AuditRecord is an operation over HTTP that changed settings, copied data, or removed or moved
// messages, or that failed to do so. Requests that were rejected for their credentials or
// permissions have no record.
type AuditRecord struct {
	Time      time.Time `json:"time"`
	Key       string    `json:"key,omitempty"` // the principal; empty on a broker without access rules
	Peer      string    `json:"peer"`          // the client's host:port
	Operation string    `json:"operation"`     // its operationId in openapi.yaml
	Subject   string    `json:"subject"`       // the topic, group or address pattern, or "broker"
	Query     string    `json:"query,omitempty"`

	// Result is "ok" or the text of the error. Texts are cut to 256 bytes.
	Result string `json:"result"`
}

// An AuditQuery selects one page of records. The zero value selects the newest.
type AuditQuery struct {
	Since     time.Time // zero means all times
	Key       string    // the whole value, as of Subject and Operation; empty means all
	Subject   string
	Operation string
	After     string // Next of the previous page; empty means the first page
	Limit     int    // at most 1000; 0 means 100
}

// An AuditPage is one page of records, the newest first. The broker keeps the latest 10 000 in
// memory; after a restart only its log has the earlier ones.
type AuditPage struct {
	Records []AuditRecord `json:"records"`
	Next    string        `json:"next,omitempty"` // After of the next page; empty on the last page
}
