// Package status has the state of a broker as it is shown: topics, consumer groups, throttles, dead
// letters and parked message groups, and the types that select and change them. Package broker, its
// HTTP administration and package broker/admin use the same types; the JSON of the HTTP API is that
// of these types.
//
// The package has no code of the engine, and needs neither the storage engine nor gRPC.
package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// An Overview is the state of a broker as a whole. The broker computes it at most once a second for
// all clients.
type Overview struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"` // the counters begin here
	Now      time.Time `json:"now"`     // the broker's clock
	AsOf     time.Time `json:"as_of"`   // when the figures of topics and groups were read
	Ready    bool      `json:"ready"`
	NotReady string    `json:"not_ready,omitempty"` // the reason, empty if Ready

	Clock   *Clock      `json:"clock,omitempty"` // nil while the broker trusts its wall clock
	Storage Storage     `json:"storage"`
	Memory  []MemoryUse `json:"memory"`
	Clients int64       `json:"clients"` // with an open stream, a waiting receive or a recent request

	Totals   Totals   `json:"totals"`
	Counters Counters `json:"counters"`
	Top      Top      `json:"top"`
	Wrong    Wrong    `json:"wrong"`
}

// A Clock is a wall clock that the broker does not trust, because it was set, or because it differs
// from the newest time in the data directory. Until AcceptedAt no message is removed by its age.
type Clock struct {
	AheadMS    int64     `json:"ahead_ms"`    // how far the clock went ahead, in milliseconds; negative if it went back
	AtStart    bool      `json:"at_start"`    // AheadMS is the difference to the newest time in the data directory
	Expected   time.Time `json:"expected"`    // the time without that change
	AcceptedAt time.Time `json:"accepted_at"` // when the time of the clock is accepted, in that time

	// Kept counts the messages that are older than the retention of their topic by this clock.
	// Postponed counts those that are older than the expiry-delay of their address: they are
	// neither delivered nor removed.
	Kept      int64 `json:"kept"`
	Postponed int64 `json:"postponed"`
}

// Storage is the state of a broker's databases.
type Storage struct {
	InMemory  bool  `json:"in_memory,omitempty"` // without a disk: DiskBytes are of memory, and there are no fsyncs
	DiskBytes int64 `json:"disk_bytes"`          // of all files
	WALBytes  int64 `json:"wal_bytes"`           // of the write-ahead logs, a part of DiskBytes

	// Fsyncs counts the fsyncs of the log of messages since the start. FsyncP50 and FsyncP99 are
	// upper bounds of their median and 99th percentile. Zero means that there was none.
	Fsyncs   int64             `json:"fsyncs"`
	FsyncP50 settings.Duration `json:"fsync_p50,omitempty"`
	FsyncP99 settings.Duration `json:"fsync_p99,omitempty"`
}

// MemoryUse is a budget of the server's memory.
type MemoryUse struct {
	Use      string `json:"use"` // "requests", "streams" or "waiting_receives"
	Held     int64  `json:"held"`
	Limit    int64  `json:"limit"`
	Rejected int64  `json:"rejected"` // requests since the start
}

// Totals are sums over all topics and groups. A message counts once for each group that has not
// consumed it.
type Totals struct {
	Topics        int64   `json:"topics"`
	Groups        int64   `json:"groups"`
	Subscriptions int64   `json:"subscriptions"` // of a group to a topic
	Stored        Backlog `json:"stored"`
	Delayed       Backlog `json:"delayed"`
	HalfMessages  int64   `json:"half_messages"`
	Backlog       Backlog `json:"backlog"`
	Ready         int64   `json:"ready"`
	Inflight      int64   `json:"inflight"`
	WaitingRetry  int64   `json:"waiting_retry"`
	Parked        int64   `json:"parked"`
	Blocked       int64   `json:"blocked"`
	ParkedGroups  int64   `json:"parked_groups"`
	BlockedGroups int64   `json:"blocked_groups"`
	Waiting       int64   `json:"waiting"` // receives that wait for a message

	// OldestMS and UndeliveredMS are the largest values of all groups.
	OldestMS      int64 `json:"oldest_ms"`
	UndeliveredMS int64 `json:"undelivered_ms"`

	InRate  float64 `json:"in_rate"`
	OutRate float64 `json:"out_rate"`

	// DeadLettersHour counts the messages that became dead letters in the last hour, of at most 65
	// minutes. DeadLettersStored counts the dead letters that were neither redriven nor removed.
	DeadLettersHour   int64 `json:"dead_letters_hour"`
	DeadLettersStored int64 `json:"dead_letters_stored"`
}

// Counters count since the start of the broker. The counts of a deleted topic or group are left
// out.
type Counters struct {
	Accepted    Backlog          `json:"accepted"`
	Duplicates  int64            `json:"duplicates"` // sends whose message was stored before
	Delivered   int64            `json:"delivered"`
	Redelivered int64            `json:"redelivered"`
	Acked       int64            `json:"acked"`
	DeadLetters int64            `json:"dead_letters"`
	Overtaken   int64            `json:"overtaken"`
	Discarded   int64            `json:"discarded"`
	Expired     int64            `json:"expired"`
	Corrupt     int64            `json:"corrupt"`
	Rejected    map[string]int64 `json:"rejected"`  // messages by reason, as in the metrics
	Throttled   map[string]int64 `json:"throttled"` // messages by limit, as in Throttle
}

// Top has the topics and groups with the highest values, at most ten in each list. Those with 0 are
// left out.
type Top struct {
	Topics map[string][]TopicSummary `json:"topics"` // "backlog", "age", "in_rate"
	Groups map[string][]GroupSummary `json:"groups"` // "backlog", "age", "waiting_retry", "dead_letters" (stored)
}

// Wrong has the problems that need an operator.
type Wrong struct {
	Throttles Found[LimitState]   `json:"throttles"` // limits that reject sends
	Parked    Found[GroupSummary] `json:"parked"`    // most parked messages first
	Blocked   Found[GroupSummary] `json:"blocked"`   // groups with blocked message groups, most of these first

	// Behind are the groups with a message that has waited for its first delivery for a minute or
	// longer, and those with a message as old as that whose ready messages no consumer takes. The
	// longest wait comes first.
	Behind Found[GroupSummary] `json:"behind"`

	// Held are the groups with a message that a client has held for a minute or longer, the longest
	// time first: the client may hang.
	Held Found[GroupSummary] `json:"held"`

	// DeadLetters are the groups with stored dead letters, most of them first.
	DeadLetters Found[GroupSummary] `json:"dead_letters"`
}

// Found is a number of things and the first ten of them.
type Found[T any] struct {
	Count int64 `json:"count"`
	First []T   `json:"first"`
}

// A TopicSummary is the state of a topic in lists. Its JSON leaves out zero values.
type TopicSummary struct {
	Name    string             `json:"name"`
	Type    settings.TopicType `json:"type"`
	Queues  int                `json:"queues"`
	Stored  Backlog            `json:"stored,omitzero"`
	Backlog Backlog            `json:"backlog,omitzero"` // of the slowest group; without a group, all stored messages
	Delayed Backlog            `json:"delayed,omitzero"`
	Half    int64              `json:"half_messages,omitempty"`

	// OldestMS is the age of the oldest message that a group has not consumed, in milliseconds.
	OldestMS int64 `json:"oldest_ms,omitempty"`

	// InRate is the number of messages stored in a second, of the last 1 to 60 s. It is 0 if the
	// broker has no value of before to compare with. OutRate is the number of messages that the
	// group with the largest backlog finishes in a second.
	InRate  float64 `json:"in_rate,omitempty"`
	OutRate float64 `json:"out_rate,omitempty"`

	// Accepted counts the messages that were stored since the start of the broker, Acked each
	// acknowledgement of each group.
	Accepted int64 `json:"accepted,omitempty"`
	Acked    int64 `json:"acked,omitempty"`

	Groups   int64     `json:"groups,omitempty"`
	Throttle *Throttle `json:"throttle,omitempty"` // that rejects sends now
}

// A GroupSummary is the state of a consumer group in one topic. Without a topic it is the state of
// the group in all its topics. Its JSON leaves out zero values.
type GroupSummary struct {
	Group         string  `json:"group"`
	Topic         string  `json:"topic,omitempty"`
	Ready         int64   `json:"ready,omitempty"`
	Inflight      int64   `json:"inflight,omitempty"`
	WaitingRetry  int64   `json:"waiting_retry,omitempty"`
	Parked        int64   `json:"parked,omitempty"`
	Blocked       int64   `json:"blocked,omitempty"`
	ParkedGroups  int64   `json:"parked_groups,omitempty"`
	BlockedGroups int64   `json:"blocked_groups,omitempty"`
	Backlog       Backlog `json:"backlog,omitzero"`

	// OldestMS is the age of the oldest message that the group has not consumed, in milliseconds.
	// UndeliveredMS is that of the oldest one that was never delivered and is neither Parked nor
	// Blocked.
	OldestMS      int64 `json:"oldest_ms,omitempty"`
	UndeliveredMS int64 `json:"undelivered_ms,omitempty"`

	InRate  float64 `json:"in_rate,omitempty"` // of the topic, see TopicSummary
	OutRate float64 `json:"out_rate,omitempty"`
	Waiting int64   `json:"waiting,omitempty"` // receives that wait for a message

	// Acked, Redelivered and DeadLetters count since the start. DeadLettersHour counts the messages
	// that became dead letters in the last hour, of at most 65 minutes.
	Acked           int64 `json:"acked,omitempty"`
	Redelivered     int64 `json:"redelivered,omitempty"`
	DeadLetters     int64 `json:"dead_letters,omitempty"`
	DeadLettersHour int64 `json:"dead_letters_hour,omitempty"`

	// DeadLettersStored counts the dead letters that were neither redriven nor removed, of messages
	// that were sent to the topic. Letters beyond the limits of classes, see DeadLetterClassPage,
	// count in the totals only.
	DeadLettersStored int64 `json:"dead_letters_stored,omitempty"`

	// Filtered counts, since the start, the messages that were skipped because the filter of the
	// consumer did not match them.
	Filtered int64 `json:"filtered,omitempty"`

	// Clients are the clients of the group, in any topic, that are connected or were within the
	// last two minutes.
	Clients int64 `json:"clients,omitempty"`

	// Held is the client with the delivery in flight that began first. Nil if there is none.
	Held *Holding `json:"held,omitempty"`

	Why string `json:"why,omitempty"` // see Subscription; empty without a topic
}

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

// A Client is a client that is connected, or was within the last two minutes. Programs that only
// send over HTTP are not among the clients.
type Client struct {
	// ID is the ID that the client chose. On a broker with access rules, the access key and a
	// slash precede it.
	ID  string `json:"id"`
	Key string `json:"key,omitempty"` // the access key; empty without access rules

	// Kind is one of
	//
	//	"producer"
	//	"push_consumer", "simple_consumer", "lite_push_consumer"
	//	"http"      it receives over HTTP
	//	"consumer"  the broker has not received its settings yet
	Kind string `json:"kind"`

	Language string `json:"language,omitempty"` // such as GO or JAVA
	Version  string `json:"version,omitempty"`
	Host     string `json:"host,omitempty"`     // as the client names it
	Outdated bool   `json:"outdated,omitempty"` // another client of the same language has a newer version

	Group  string   `json:"group,omitempty"`
	Topics []string `json:"topics,omitempty"`        // by name, at most 16
	Hidden int      `json:"hidden_topics,omitempty"` // further topics, and those that the key may not observe

	// Filters are the filters of a consumer by topic, for those of Topics that have one and that
	// the key may observe: tags joined by ||, an SQL expression after "SQL92: ", or an expression of
	// another type after "unknown type " and its number. They have at most 256 bytes of the
	// expression. A message that the filter does not match is skipped for the whole group.
	Filters map[string]string `json:"filters,omitempty"`

	Address  string    `json:"address,omitempty"` // host:port; only for keys that may observe the whole broker
	Since    time.Time `json:"since"`
	LastSeen time.Time `json:"last_seen"` // a request, or a heartbeat that it shares with others of its connection
	Online   bool      `json:"online"`    // it has an open stream of commands or a waiting receive
	Waiting  int64     `json:"waiting"`   // receives
	Inflight int64     `json:"inflight"`  // deliveries that it holds, since the start of the broker
}

// A ClientQuery selects one page of clients. Fields that are not zero select the clients that match
// each of them.
type ClientQuery struct {
	Match    string // pattern of the ID, with *, ? and [a-z]
	Kind     string
	Group    string
	Topic    string
	Language string
	Version  string
	Outdated bool
	Idle     time.Duration // silent for at least this long
	After    string        // Next of the previous page; empty means the first page
	Limit    int           // at most 1000; 0 means 100
}

// A ClientPage is one page of clients, by ID. A key that may not observe the whole broker gets the
// consumers of the groups, and the producers of the topics, that it may observe.
type ClientPage struct {
	Clients  []Client        `json:"clients"`
	Total    int64           `json:"total"` // of all pages
	Versions []ClientVersion `json:"versions"`
	AsOf     time.Time       `json:"as_of"`
	Next     string          `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A ClientVersion counts the selected clients of a language and version. A page has at most 100,
// those with the most clients first.
type ClientVersion struct {
	Language string `json:"language"`
	Version  string `json:"version"`
	Clients  int64  `json:"clients"`
	Outdated bool   `json:"outdated,omitempty"`
}

// A Session is the principal of a request with its permissions, so that a page can leave out
// actions that the broker would reject.
type Session struct {
	Key        string `json:"key,omitempty"` // name of the access key; empty for an anonymous request
	Restricted bool   `json:"restricted"`    // false if no keys are configured: then everything is allowed
	Rules      []Rule `json:"rules"`         // in effect for the request; empty if not Restricted

	// Token is the half of the session's token that a page keeps, only in the response to a login.
	Token string `json:"token,omitempty"`

	// Expires is the time at which the session ends at the latest. It also ends after Idle without
	// a request. Both are zero without a session.
	Expires time.Time         `json:"expires,omitzero"`
	Idle    settings.Duration `json:"idle,omitempty"`
}

// A Rule allows actions on topics and groups: "send", "receive", "observe" and "admin", which
// includes "observe". In names * matches any characters.
type Rule struct {
	Actions []string `json:"actions"`
	Topics  []string `json:"topics,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}
