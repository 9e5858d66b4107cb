package access

import (
	"fmt"
	"slices"
	"strings"
)

// A Need is a permission that a request needs. The zero value is never allowed.
type Need struct {
	kind         kind
	action       Action
	topic, group string
}

type kind uint8

const (
	kindNone kind = iota
	kindSigned
	kindSend
	kindReceive
	kindBrowse
	kindAsGroup
	kindUse
	kindTopic
	kindGroup
	kindBoth
	kindServer
	kindSendAnywhere
	kindLook
	kindRead
)

// Signed is allowed to everyone with credentials, and to anonymous requests
// if there is anything that these may do.
func Signed() Need { return Need{kind: kindSigned} }

// ToSend is to send to a topic.
func ToSend(topic string) Need { return Need{kind: kindSend, topic: topic} }

// ToReceive is the need to receive from a topic as a group, or to settle such a delivery.
func ToReceive(topic, group string) Need { return Need{kind: kindReceive, topic: topic, group: group} }

// ToBrowse is the need to list messages of a topic for a group without their bodies. The permission
// to observe the group on the topic is sufficient, and so is the permission to receive.
func ToBrowse(topic, group string) Need { return Need{kind: kindBrowse, topic: topic, group: group} }

// ToLook is the need to list the stored messages of a topic without their contents. The permission
// to observe the topic is sufficient, and so is the permission to receive from it.
func ToLook(topic string) Need { return Need{kind: kindLook, topic: topic} }

// ToRead is the need to read stored messages of a topic, with bodies, keys and properties, without
// receiving them. It is the permission to receive from the topic, as any group.
func ToRead(topic string) Need { return Need{kind: kindRead, topic: topic} }

// AsGroup is the need to be a consumer of a group, in any topic.
func AsGroup(group string) Need { return Need{kind: kindAsGroup, group: group} }

// ToUse is the need to look up the route of a topic. Any permission for the topic is sufficient.
func ToUse(topic string) Need { return Need{kind: kindUse, topic: topic} }

// OnTopic is to do a, which is Observe or Admin, with a topic.
func OnTopic(a Action, topic string) Need { return Need{kind: kindTopic, action: a, topic: topic} }

// OnGroup is to do a, which is Observe or Admin, with a group.
func OnGroup(a Action, group string) Need { return Need{kind: kindGroup, action: a, group: group} }

// OnBoth is to do a, which is Observe or Admin, with a group on one topic.
func OnBoth(a Action, topic, group string) Need {
	return Need{kind: kindBoth, action: a, topic: topic, group: group}
}

// OnServer is to do a, which is Observe or Admin, with the broker as a whole.
func OnServer(a Action) Need { return Need{kind: kindServer, action: a} }

// ToSendAnywhere is the need to send to at least one topic.
func ToSendAnywhere() Need { return Need{kind: kindSendAnywhere} }

// String returns the text of the need, as in "it may not send to topic x".
func (n Need) String() string {
	switch n.kind {
	case kindSigned:
		return "do anything"
	case kindSend:
		return fmt.Sprintf("send to topic %.130q", n.topic)
	case kindReceive:
		return fmt.Sprintf("receive from topic %.130q as group %.130q", n.topic, n.group)
	case kindBrowse:
		return fmt.Sprintf("observe topic %.130q as group %.130q", n.topic, n.group)
	case kindAsGroup:
		return fmt.Sprintf("receive as group %.130q", n.group)
	case kindUse:
		return fmt.Sprintf("use topic %.130q", n.topic)
	case kindTopic:
		return fmt.Sprintf("%s topic %.130q", verb(n.action), n.topic)
	case kindGroup:
		return fmt.Sprintf("%s group %.130q", verb(n.action), n.group)
	case kindBoth:
		return fmt.Sprintf("%s group %.130q on topic %.130q", verb(n.action), n.group, n.topic)
	case kindServer:
		return verb(n.action) + " the whole broker"
	case kindSendAnywhere:
		return "send to any topic"
	case kindLook:
		return fmt.Sprintf("observe topic %.130q", n.topic)
	case kindRead:
		return fmt.Sprintf("receive from topic %.130q, whose contents the request reads", n.topic)
	}
	return "do this"
}

func verb(a Action) string {
	if a == Admin {
		return "administer"
	}
	return string(a)
}

// allow reports whether one of the rules allows n.
func allow(rules []Rule, n Need) bool {
	if n.kind == kindSigned {
		return true
	}
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.allows(n) })
}

// allows is the decision. It looks at nothing but its arguments.
func (r Rule) allows(n Need) bool {
	switch n.kind {
	case kindSend:
		return r.has(Send) && matchAny(r.Topics, n.topic)
	case kindReceive:
		return r.has(Receive) && matchAny(r.Groups, n.group) && r.receivable(n.topic)
	case kindBrowse:
		return (r.has(Receive) || r.has(Observe)) && matchAny(r.Groups, n.group) && r.receivable(n.topic)
	case kindAsGroup:
		return r.has(Receive) && matchAny(r.Groups, n.group)
	case kindUse:
		return r.has(Receive) && r.receivable(n.topic) ||
			(r.has(Send) || r.has(Observe) || r.has(Admin)) && matchAny(r.Topics, n.topic)
	case kindTopic:
		return r.has(n.action) && matchAny(r.Topics, n.topic)
	case kindGroup:
		return r.has(n.action) && matchAny(r.Groups, n.group)
	case kindBoth:
		return r.has(n.action) && matchAny(r.Topics, n.topic) && matchAny(r.Groups, n.group)
	case kindServer:
		return r.has(n.action) && slices.Contains(r.Topics, "*") && slices.Contains(r.Groups, "*")
	case kindSendAnywhere:
		return r.has(Send)
	case kindLook:
		return r.has(Observe) && matchAny(r.Topics, n.topic) || r.has(Receive) && r.receivable(n.topic)
	case kindRead:
		return r.has(Receive) && r.receivable(n.topic)
	}
	return false
}

func (r Rule) has(a Action) bool {
	return slices.Contains(r.Actions, a) || a == Observe && slices.Contains(r.Actions, Admin)
}

// abandoned is in the place of a group's name in the topic of abandoned
// transactions: half messages of all topics, so no group's own.
const abandoned = "TRANS_CHECK_MAX_TIME_TOPIC"

// receivable reports whether the rule lets its groups receive from a topic, or browse it. The dead
// letters of a group were messages of the group, so a permission to receive as the group includes
// them.
func (r Rule) receivable(topic string) bool {
	if matchAny(r.Topics, topic) {
		return true
	}
	group, dead := strings.CutPrefix(topic, dlqPrefix)
	return dead && group != abandoned && matchAny(r.Groups, group)
}
