package rocketmq

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// maxNamedBytes bounds the topics that settings name, in bytes as they travel:
// three quarters of what a tidegate broker takes of all settings. It ends a
// stream whose settings have more, and the session would never open again.
const maxNamedBytes = 48 << 10

// A namedTopic is what a session's settings say of a topic.
type namedTopic struct {
	filter *rmqpb.FilterExpression // nil for producers
	usedAt time.Time
}

// chooseTopics returns the names of the topics that settings are to name, sorted:
// those used within keep before now, the latest first, as many as have no more than
// limit bytes; and the latest in any case. The others need no name: requests say
// themselves what they ask for. forget are those that were not used for so long.
func chooseTopics(topics map[string]namedTopic, namespace string, now time.Time, keep time.Duration, limit int) (names, forget []string) {
	latest := slices.SortedFunc(maps.Keys(topics), func(a, b string) int {
		return cmp.Or(topics[b].usedAt.Compare(topics[a].usedAt), cmp.Compare(a, b))
	})
	size, full := 0, false
	for i, name := range latest {
		t := topics[name]
		if i > 0 && now.Sub(t.usedAt) > keep {
			return sorted(names), latest[i:]
		}
		size += namedSize(name, namespace, t.filter)
		if full = full || i > 0 && size > limit; !full {
			names = append(names, name)
		}
	}
	return sorted(names), nil
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// namedSize returns how many bytes a topic takes in settings, at most.
func namedSize(name, namespace string, filter *rmqpb.FilterExpression) int {
	const around = 24 // tags and lengths
	return len(name) + len(namespace) + proto.Size(filter) + around
}

// name adds a topic to the settings, which are sent again if that is new. Its
// caller has become a user.
func (s *session) name(topic string, f *rmqpb.FilterExpression) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.usedAt = now
	old, ok := s.topics[topic]
	if ok && (f == nil || old.filter.GetType() == f.GetType() && old.filter.GetExpression() == f.GetExpression()) {
		s.topics[topic] = namedTopic{old.filter, now}
		return
	}
	if f == nil && s.role.group != "" {
		f = tagFilter("*")
	}
	s.topics[topic] = namedTopic{f, now}
	s.unsent = true
	s.poke()
}

// A naming is a topic that settings are to name.
type naming struct {
	topic  string
	filter *rmqpb.FilterExpression
}

// takeTopics returns the topics to send, and forgets those that were not used for long.
func (s *session) takeTopics() []naming {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = false
	names, forget := chooseTopics(s.topics, s.c.opts.Namespace, time.Now(), 2*s.c.opts.SettingsSync, maxNamedBytes)
	for _, name := range forget {
		delete(s.topics, name)
	}
	list := make([]naming, len(names))
	for i, name := range names {
		list[i] = naming{name, s.topics[name].filter}
	}
	return list
}
