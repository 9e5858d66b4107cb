package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/tidegate/tidegate/broker/status"
)

// Messages returns a page of the stored messages of a topic, without delivering them. Contents, and
// filters by keys, properties and bodies, need the permission to receive from the topic. The error
// matches tidegate.ErrTopicNotFound if there is no such topic.
func (c *Client) Messages(ctx context.Context, topic string, q status.MessageQuery) (status.MessagePage, error) {
	v := url.Values{}
	set(v, "id", q.ID)
	set(v, "tag", q.Tag)
	set(v, "message_group", q.MessageGroup)
	set(v, "key", q.Key)
	set(v, "contains", q.Contains)
	for name, value := range q.Properties {
		v.Add("property", name+"="+value)
	}
	if q.Queue != nil {
		v.Set("queue", strconv.Itoa(*q.Queue))
	}
	if q.Offset != nil {
		v.Set("offset", strconv.FormatInt(*q.Offset, 10))
	}
	moment(v, "since", q.Since)
	moment(v, "before", q.Before)
	if q.Delayed {
		v.Set("state", "delayed")
	}
	if q.Newest {
		v.Set("order", "newest")
	}
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "contents", q.Contents)
	yes(v, "text", q.Text)
	return get[status.MessagePage](ctx, c, "Messages", topic, escaped("topics", topic, "messages"), v)
}

// Trace returns the stored messages of a topic that have an ID, with their states in each group
// that the client may observe; a group selects one of them. It uses these fields of the query: ID,
// Since, Before, After, Limit, Contents and Text. Between since and before it reads a bounded
// number of messages; the last fields of the trace report how far it came. The error matches
// tidegate.ErrTopicNotFound if there is no such topic.
func (c *Client) Trace(ctx context.Context, topic, group string, q status.MessageQuery) (status.Trace, error) {
	v := url.Values{}
	set(v, "group", group)
	moment(v, "since", q.Since)
	moment(v, "before", q.Before)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "contents", q.Contents)
	yes(v, "text", q.Text)
	return get[status.Trace](ctx, c, "Trace", topic, escaped("topics", topic, "messages", q.ID), v)
}
