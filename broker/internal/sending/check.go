package sending

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	maxDelay      = 24 * time.Hour // maximum time until a delivery time (RocketMQ: 24 h)
	maxFirstCheck = time.Hour      // maximum of Message.FirstCheck (RocketMQ: maxTransactionRecoverySecond)
)

// check returns the topic of a message, or the reason why the message is invalid.
func (s *Sender) check(m *Message) (*topic.Topic, error) {
	if err := m.Validate(s.MaxBodySize); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, refusal.New(protocol.CodeIllegalMessageID, "message ID", "the ID is empty; give each message its own")
	}
	t, err := s.Directory.Topic(m.Topic)
	if err != nil {
		return nil, err
	}
	kind := m.kind()
	if m.Half {
		if err := m.checkHalf(); err != nil {
			return nil, err
		}
	}
	if kind == settings.TopicDelay {
		if ahead := time.Until(m.DeliverAt); ahead > maxDelay {
			return nil, refusal.New(tidegate.CodeIllegalDeliveryTime, "delivery time", "it is %v ahead; the limit is %v", ahead.Round(time.Millisecond), maxDelay)
		}
	}
	want := t.Settings().Type
	if kind != want && (m.Half || !topic.IsDeadLetter(m.Topic)) {
		return nil, refusal.New(tidegate.CodeMessagePropertyConflict, m.Topic, "the topic's type is %s, and the message is %s; %s", want, because(kind, m.Message), needs(want))
	}
	return t, nil
}

// kind returns the type of topics that accept the message.
func (m *Message) kind() settings.TopicType {
	if m.Half {
		return settings.TopicTransaction
	}
	return typeOf(m.Message)
}

// typeOf returns the type of topics that accept a message, which is no half message.
func typeOf(m *tidegate.Message) settings.TopicType {
	switch {
	case m.MessageGroup != "":
		return settings.TopicFIFO
	case !m.DeliverAt.IsZero():
		return settings.TopicDelay
	}
	return settings.TopicNormal
}

// checkHalf returns the reason why a message cannot be a half message, or nil.
func (m *Message) checkHalf() error {
	switch {
	case m.MessageGroup != "":
		return refusal.New(tidegate.CodeMessagePropertyConflict, "message", "a half message cannot have a message group (%q); leave it out", m.MessageGroup)
	case !m.DeliverAt.IsZero():
		return refusal.New(tidegate.CodeMessagePropertyConflict, "message", "a half message cannot have a delivery time; leave it out")
	case m.FirstCheck < 0 || m.FirstCheck > maxFirstCheck:
		return refusal.New(tidegate.CodeBadRequest, "first check", "it is %v; give 0 to %v", m.FirstCheck, maxFirstCheck)
	}
	return nil
}

// because returns the type of a message and the reason for it, as a text for people.
func because(k settings.TopicType, m *tidegate.Message) string {
	switch k {
	case settings.TopicFIFO:
		return fmt.Sprintf("FIFO: it has the message group %q", m.MessageGroup)
	case settings.TopicDelay:
		return "DELAY: it has a delivery time"
	case settings.TopicTransaction:
		return "TRANSACTION: it is a half message"
	}
	return "NORMAL: it has neither a message group nor a delivery time"
}

// needs returns the remedy for a message that a topic of the type rejects.
func needs(k settings.TopicType) string {
	switch k {
	case settings.TopicFIFO:
		return "give the message a message group and no delivery time"
	case settings.TopicDelay:
		return "give the message a delivery time and no message group"
	case settings.TopicTransaction:
		return "send the message in a transaction"
	}
	return "leave both out"
}
