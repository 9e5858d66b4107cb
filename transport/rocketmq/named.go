package rocketmq

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// maxNamedBytes bounds the encoded topics in the settings of a session. It is three quarters of the
// size that a tidegate broker accepts for all settings. The broker ends a stream with larger
// settings, and the session could then never open.
const maxNamedBytes = 48 << 10

// A namedTopic is a topic in the settings of a session.
type namedTopic struct {
	filter *rmqpb.FilterExpression // nil for producers
	usedAt time.Time
}

// chooseTopics returns the sorted names of the topics for the settings: the topics used within
// maxIdle before now, the most recently used first, up to limit bytes. The most recently used topic
// is always among them. The others can be left out, because each request names its topic. forget
// lists the topics that were not used within maxIdle.
func chooseTopics(topics map[string]namedTopic, namespace string, now time.Time, maxIdle time.Duration, limit int) (names, forget []string) {
	latest := slices.SortedFunc(maps.Keys(topics), func(a, b string) int {
		return cmp.Or(topics[b].usedAt.Compare(topics[a].usedAt), cmp.Compare(a, b))
	})
	size, full := 0, false
	for i, name := range latest {
		t := topics[name]
		if i > 0 && now.Sub(t.usedAt) > maxIdle {
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

// namedSize returns an upper bound of the encoded size of a topic in settings.
func namedSize(name, namespace string, filter *rmqpb.FilterExpression) int {
	const around = 24 // tags and lengths
	return len(name) + len(namespace) + proto.Size(filter) + around
}

// name adds a topic to the settings. If the topic or its filter is new, the settings are sent
// again. The call counts as a use of the session.
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

// A naming is a topic to be named in the settings.
type naming struct {
	topic  string
	filter *rmqpb.FilterExpression
}

// takeTopics returns the topics to send, and removes the topics that were not used for long.
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
