package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// A State is a topic of a tidegate broker as one group sees it.
type State struct {
	Topic  status.Topic        `json:"-"`
	Group  status.Group        `json:"-"`
	Others []string            `json:"other_groups,omitempty"` // that have received from the topic
	Sees   status.Subscription `json:"-"`
	Dead   int64               `json:"dead_letters"`
}

// Inspect reads the state. The error matches tidegate.ErrNotFound or tidegate.ErrTopicNotFound if
// the topic or the group does not exist.
func Inspect(ctx context.Context, client *admin.Client, topic, group string) (s State, err error) {
	if s.Topic, err = client.Topic(ctx, topic); err != nil {
		return s, err
	}
	if s.Group, err = client.Group(ctx, group); err != nil {
		return s, err
	}
	for _, g := range s.Topic.Groups {
		if g != group {
			s.Others = append(s.Others, g)
		}
	}
	s.Sees = status.Subscription{Topic: topic, Ready: s.Topic.StoredMessages, Backlog: status.Backlog{Messages: s.Topic.StoredMessages}}
	if i := slices.IndexFunc(s.Group.Topics, func(x status.Subscription) bool { return x.Topic == topic }); i >= 0 {
		s.Sees = s.Group.Topics[i]
	}
	for _, name := range s.Group.DeadLetterTopics {
		t, err := client.Topic(ctx, name)
		if err != nil && !errors.Is(err, tidegate.ErrTopicNotFound) {
			return s, err
		}
		s.Dead += t.StoredMessages
	}
	return s, nil
}

// Left is the number of messages that a move can still carry.
func (s State) Left() int64 { return s.Sees.Backlog.Messages - s.Sees.Parked + s.Topic.DelayedMessages }

// Parallel reports whether several receives at the same time keep the order of message groups: the
// topic has none, or the broker delivers one message of a group at a time.
func (s State) Parallel() bool {
	return s.Topic.Topic.WithDefaults().Type != settings.TopicFIFO || s.Group.FIFO
}

// Creates returns the commands that create the topic and the group on the target. On Artemis one
// command creates both, and is returned as ofTopic.
func (s State) Creates(kind, context, topic, group string) (ofTopic, ofGroup string) {
	t, g := s.Topic.Topic.WithDefaults(), s.Group.Group.WithDefaults()
	if kind == connection.AMQP {
		return fmt.Sprintf("artemis queue create --name %s --address %s --multicast --durable --preserve-on-no-consumers --auto-create-address", shell.Quote(topic+"."+group), shell.Quote(topic)), ""
	}
	if kind == connection.RocketMQ {
		order := ""
		if g.FIFO || t.Type == settings.TopicFIFO {
			order = " -o true"
		}
		return fmt.Sprintf("mqadmin updateTopic -n NAMESERVER -c CLUSTER -t %s -r %d -w %d -a +message.type=%s", shell.Quote(topic), t.Queues, t.Queues, t.Type),
			fmt.Sprintf("mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g %s -r %d%s", shell.Quote(group), max(g.MaxAttempts-1, 0), order)
	}
	var retry []string
	for _, d := range g.Retry {
		retry = append(retry, d.String())
	}
	set := []string{group, fmt.Sprintf("max_attempts=%d", g.MaxAttempts)}
	if g.FIFO {
		set = append(set, "fifo=true")
	}
	if len(retry) > 0 {
		set = append(set, "retry="+strings.Join(retry, " "))
	}
	at := shell.Flag("context", context)
	return shell.LineFlags("tidegate topic create", at, topic, fmt.Sprintf("type=%s", t.Type), fmt.Sprintf("queues=%d", t.Queues)),
		shell.LineFlags("tidegate group create", at, set...)
}
