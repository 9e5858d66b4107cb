package messages

import (
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/permission"
	"github.com/tidegate/tidegate/internal/access"
)

// permitHandle checks the permission to settle a delivery by the topic in its handle, because the
// request names only the group. It sets the topic. A retry belongs to the topic of the receive, or
// for a receive from the retry topic to that topic.
func (h *Handlers) permitHandle(r *http.Request, d *tidegate.Delivery) error {
	if !h.Gate.Restricts(r) {
		return nil
	}
	topic, original, bad := h.Engine.TopicOf(d.Handle)
	if bad != nil {
		d.Topic = noTopic
		return nil //nolint:nilerr // the engine rejects it, each among many by itself
	}
	d.Topic = topic
	if topic != original && h.Gate.Allows(r, access.ToReceive(topic, d.ConsumerGroup)) {
		return nil
	}
	return h.Gate.Permit(r, access.ToReceive(original, d.ConsumerGroup))
}

// permitReconsume permits a request to send a delivery to the group's retry topics if the client
// may consume it (TDMQ for Pulsar: retry and dead letters).
func (h *Handlers) permitReconsume(r *http.Request, d *tidegate.Delivery) error {
	if !h.Gate.Restricts(r) {
		return nil
	}
	if needs := permission.OfReconsume(h.Engine, d); needs != nil {
		return h.Gate.Permit(r, needs...)
	}
	return nil
}

// noTopic is the name of no topic.
const noTopic = " "
