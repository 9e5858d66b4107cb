package letters

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// ownGroup returns the group of a redrive to this group alone.
func (l *Letters) ownGroup(name, to string) (*topic.Group, error) {
	g := l.Directory.FindGroup(name)
	switch {
	case to != "":
		return nil, refusal.New(tidegate.CodeBadRequest, "to", "it is %q, and to_group_only sends each message to a topic of the group; give one of the two", to)
	case g == nil:
		return nil, refusal.GroupNotFound(name)
	case g.Settings().FIFO:
		return nil, refusal.New(tidegate.CodeBadRequest, name,
			"the group is FIFO, and a redrive to the group alone does not keep the order of message groups; redrive without to_group_only")
	}
	return g, nil
}

// toGroup returns the topic that the group alone receives a dead letter from, or, if it does not
// exist yet, the topic of the original send. Both are nil if the original topic does not exist, or
// if the names are too long together.
func (r *redrive) toGroup(letter *deadletter.Letter) (to, original *topic.Topic) {
	original = r.Directory.FindTopic(letter.Origin.Topic)
	name := r.group.Settings().RetryTopic.RedriveName(letter.Origin.Topic, r.group.Name())
	if original == nil || tidegate.ValidateTopic(name) != nil {
		return nil, nil
	}
	return r.Directory.FindTopic(name), original
}
