package status

import "time"

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
	//	"push_consumer", "simple_consumer"
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
	// the key may observe: tags joined by ||, or an SQL expression after "SQL92: ". They have at
	// most 256 bytes of the expression. A message that the filter does not match is skipped for the
	// whole group.
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
