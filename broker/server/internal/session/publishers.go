package session

import (
	"strings"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

const (
	// maxPublished bounds the topics that one client is remembered to publish. Its
	// settings have room for no more: there, a topic takes 5 bytes and its namespace.
	maxPublished = requests.MaxSmallRequest / 5

	// publicationSize is the approximate memory of one publication, in bytes.
	publicationSize = 384

	// maxAsked bounds the streams that one check is offered to.
	maxAsked = 8
)

// A Publisher is a Telemetry stream of a client that publishes a topic.
type Publisher struct {
	Stream *Stream
	Topic  *rmqpb.Resource // as the client names it
}

// publishLocked notes that a client publishes a topic.
func (r *Clients) publishLocked(c *Client, topic *rmqpb.Resource) {
	name := topic.GetName()
	if _, known := r.publishers[name][c]; known || len(c.topics) >= maxPublished || !r.fitsLocked(c, c.settingsBytes+publicationSize) {
		return
	}
	name = strings.Clone(name) // which may be a part of a request's memory
	if r.publishers[name] == nil {
		r.publishers[name] = map[*Client]string{}
	}
	r.publishers[name][c] = strings.Clone(topic.GetResourceNamespace())
	c.topics = append(c.topics, name)
	r.addBytesLocked(c, publicationSize)
}

func (r *Clients) addBytesLocked(c *Client, bytes int) {
	c.settingsBytes, r.settingsBytes = c.settingsBytes+bytes, r.settingsBytes+bytes
	if r.originBytes[c.origin] += bytes; r.originBytes[c.origin] == 0 {
		delete(r.originBytes, c.origin)
	}
}

// retractLocked removes the settings of a client and its publications.
func (r *Clients) retractLocked(c *Client) {
	for _, name := range c.topics {
		if delete(r.publishers[name], c); len(r.publishers[name]) == 0 {
			delete(r.publishers, name)
		}
	}
	c.topics = nil
	r.addBytesLocked(c, -c.settingsBytes)
}

// Publishes notes that a client sends half messages to a topic, which its
// settings need not name.
func (r *Clients) Publishes(id string, topic *rmqpb.Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		r.publishLocked(c, topic)
	}
}

// Publishing returns Telemetry streams of clients that publish a topic, and
// may, in no order, so that all of them are asked in turn.
func (r *Clients) Publishing(topic string) []Publisher {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Publisher
	for c, namespace := range r.publishers[topic] {
		for t := range c.streams {
			if len(out) == maxAsked {
				return out
			}
			if t.client.MaySend(topic) {
				out = append(out, Publisher{t, &rmqpb.Resource{ResourceNamespace: namespace, Name: topic}})
			}
		}
	}
	return out
}
