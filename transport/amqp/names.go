package amqp

import "strings"

// A place is an address of the server with its routing type.
type place struct {
	address string
	anycast bool
}

// capability is the capability of a source or target that selects the routing type.
func (p place) capability() string {
	if p.anycast {
		return "queue"
	}
	return "topic"
}

const deadLetterPrefix = "%DLQ%"

// place returns the address that the messages of a topic are sent to.
func (c *Client) place(topic string) place {
	if group, ok := strings.CutPrefix(topic, deadLetterPrefix); ok {
		return c.deadLetters(group)
	}
	return place{address: topic}
}

// deadLetters returns the address of the dead letters of a group.
func (c *Client) deadLetters(group string) place {
	return place{address: group + ".DLQ", anycast: true}
}

// queue returns the queue of a group.
func (c *Client) queue(topic, group string) place {
	if p := c.place(topic); p.anycast {
		return p
	}
	return place{address: topic + "::" + c.options.Queue(topic, group)}
}
