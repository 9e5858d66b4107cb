package session

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A Client is one client, by its ID. Goroutines may share it.
type Client struct {
	id      string
	origin  string                  // that its settings count for
	seen    atomic.Int64            // the time of the last request, in ns since 1970
	profile atomic.Pointer[Profile] // nil until its settings are known
	sent    atomic.Uint64           // the digest of the settings that it got last; 0 if none
	renews  atomic.Bool             // it received with auto_renew, which only push consumers do

	since     time.Time
	holder    *engine.Holder
	address   atomic.Pointer[string]    // of its connection; nil if it is not known
	reception atomic.Pointer[reception] // its last receive; nil before the first
	http      atomic.Bool               // it receives over HTTP

	// guarded by Clients.mu
	streams       map[*Stream]struct{}
	polls         map[*poll]struct{}
	topics        []string   // that it is in Clients.publishers for
	served        bool       // a receive of it succeeded, or it opened a stream, and it did not terminate since: only then is it remembered
	settingsBytes int        // its part of Clients.settingsBytes
	refused       *rejection // see Clients.Refuse; nil if its settings were not rejected
}

// IsPush reports whether the client passes messages to handlers. After a restart of the server the
// settings of a client can be missing for minutes (RocketMQ's Go client: 5); until then its
// receives show this.
func (c *Client) IsPush() bool {
	if p := c.profile.Load(); p != nil {
		return p.IsPush()
	}
	return c.renews.Load()
}

// Profile returns the settings that the client sent, or nil before the first.
func (c *Client) Profile() *Profile { return c.profile.Load() }

// AutoRenews notes that the client received with auto_renew.
func (c *Client) AutoRenews() { c.renews.Store(true) }

// Sends records the settings that the server is sending to the client.
func (c *Client) Sends(s *rmqpb.Settings) { c.sent.Store(digest(s)) }

// Sent reports whether these settings are the last that the server sent to the client.
func (c *Client) Sent(s *rmqpb.Settings) bool { return c.sent.Load() == digest(s) }

// Holder counts the deliveries in flight of the client.
func (c *Client) Holder() *engine.Holder { return c.holder }

// A reception has the group, the topic and the filter of a receive.
type reception struct {
	group, topic string
	filter       tidegate.Filter // its expression is cut
}

// Receives notes the group, the topic and the filter of a receive.
func (c *Client) Receives(group, topic string, filter tidegate.Filter) {
	filter.Expression = filter.Expression[:min(len(filter.Expression), maxFilter)]
	if last := c.reception.Load(); last == nil || last.group != group || last.topic != topic || last.filter != filter {
		filter.Expression = strings.Clone(filter.Expression) // all may be parts of a request's memory
		c.reception.Store(&reception{strings.Clone(group), strings.Clone(topic), filter})
	}
}

// OverHTTP notes that the client receives over HTTP.
func (c *Client) OverHTTP() { c.http.Store(true) }

// At notes the address of the client's connection.
func (c *Client) At(address string) {
	if last := c.address.Load(); last == nil || *last != address {
		c.address.Store(&address)
	}
}

// group returns the consumer group of the client, empty if it has none or it is not known.
func (c *Client) group() string {
	if p := c.Profile(); p != nil {
		return p.Group
	}
	if at := c.reception.Load(); at != nil {
		return at.group
	}
	return ""
}

// lastSeenLocked returns the time of the last request of the client, or of a later heartbeat on the
// connection of a stream that shares heartbeats. Clients.mu is held.
func (c *Client) lastSeenLocked() time.Time {
	at := c.seen.Load()
	for t := range c.streams {
		at = max(at, t.beats.LastBeat())
	}
	return time.Unix(0, at)
}

// kind returns the kind of the client, see status.Client.
func (c *Client) kind() string {
	switch p := c.Profile(); {
	case p != nil:
		return p.kind()
	case c.http.Load():
		return "http"
	case c.renews.Load():
		return "push_consumer"
	}
	return "consumer"
}
