package letters

import (
	"iter"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// CheckRetryTopics returns an error with 40000 if the new settings c separate a group from one of
// its retry topics: one that it receives from, or one that still has retries for it. received has
// the progress of the group in each topic that it receives from.
func (l *Letters) CheckRetryTopics(g *topic.Group, received []*topic.Consumption, c *settings.RetryTopic) error {
	before := &g.Settings().RetryTopic
	progress := map[string]*topic.Consumption{}
	retries := map[string]bool{}
	for _, s := range received {
		name := s.Topic().Name()
		progress[name] = s
		if _, itself := before.Original(name, g.Name()); !itself {
			name = before.RetryName(name, g.Name())
		}
		retries[name] = true
	}
	for name := range retries {
		from, _ := before.Original(name, g.Name())
		if now, is := c.Original(name, g.Name()); is && now == from {
			continue
		}
		s := progress[name]
		if before.Enabled && s != nil {
			return refusal.New(tidegate.CodeBadRequest, g.Name(),
				"the group receives from the retry topic %s, so retry_topic.naming and retry_topic.topic cannot change; delete that topic, or use another group", name)
		}
		if l.hasRetries(name, s) {
			return refusal.New(tidegate.CodeBadRequest, g.Name(),
				"the group's retry topic %s has messages that the group would no longer receive, so retry_topic.naming and retry_topic.topic cannot change; enable the retry topic as before until its messages are consumed, or delete it", name)
		}
	}
	return nil
}

// hasRetries reports whether a retry topic has messages that its group has not consumed. s is nil
// if the group never received from the topic.
func (l *Letters) hasRetries(name string, s *topic.Consumption) bool {
	t := l.Directory.FindTopic(name)
	switch {
	case t == nil:
		return false
	case t.Delayed().Messages > 0:
		return true
	case s == nil:
		return t.Written().Messages > t.Before().Messages
	}
	return s.Backlog().Messages > 0
}

// CheckRetryNames returns an error with 40000 if a configured retry topic of a group is also a
// retry topic of another group: each group would consume retries of the other one. Two names that
// Naming forms may be equal, because a receive takes only the messages of its own topic.
func CheckRetryNames(group string, c *settings.RetryTopic, groups iter.Seq[*topic.Group]) error {
	if !c.Enabled {
		return nil
	}
	for g := range groups {
		other := &g.Settings().RetryTopic
		if g.Name() == group || !other.Enabled {
			continue
		}
		name, clash := c.Topic, false
		if name != "" {
			_, clash = other.Original(name, g.Name())
		} else if name = other.Topic; name != "" {
			_, clash = c.Original(name, group)
		}
		if clash {
			return refusal.New(tidegate.CodeBadRequest, group,
				"the retry topic %s is also that of group %s, so each group would consume the retries of the other; give retry_topic.topic another name", name, g.Name())
		}
	}
	return nil
}
