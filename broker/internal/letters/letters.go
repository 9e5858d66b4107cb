package letters

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// Config has the parts of a broker that Letters uses.
type Config struct {
	Store     *store.Store
	Directory Directory
	Logger    *slog.Logger

	// Life ends when the broker closes.
	Life context.Context //nolint:containedctx // the broker's own life, not a request's

	// Redrives creates the topics of messages that are redriven to one group; set by catalog.New.
	Redrives Redrives

	MaxBodySize int // the maximum size of a body in bytes

	// Damaged counts the corrupt messages that a scan skipped.
	Damaged *atomic.Int64
}

// A Directory finds topics and groups by name. Its methods take one lock, hold it only for the
// look, and return nil for an unknown name.
type Directory interface {
	FindTopic(name string) *topic.Topic
	FindGroup(name string) *topic.Group
}

// Redrives creates topics of redriven messages.
type Redrives interface {
	// RedriveTopic returns the topic of the messages of a topic that are redriven to a group alone,
	// and creates it if necessary. It waits for other changes of settings.
	RedriveTopic(ctx context.Context, g *topic.Group, original *topic.Topic) (*topic.Topic, error)
}

// Letters handles the dead letters, retries and parked message groups of a broker. Several
// goroutines can call its methods at the same time.
type Letters struct {
	Config
	token chan struct{} // held while messages in the middle of queues are moved or removed
}

// New returns the Letters of a broker.
func New(c Config) *Letters { return &Letters{Config: c, token: make(chan struct{}, 1)} }

// Hold waits until no redrive, purge or other holder runs, and excludes them until release is
// called. It returns the cause of ctx if ctx ends first, or of Config.Life. The caller holds no
// lock, and of the tokens of the broker only admin and the task of retention.
func (l *Letters) Hold(ctx context.Context) (release func(), err error) {
	select {
	case l.token <- struct{}{}:
		return func() { <-l.token }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.Life.Done():
		return nil, context.Cause(l.Life)
	}
}

// topic returns a topic, or an error with 40402 if there is none.
func (l *Letters) topic(name string) (*topic.Topic, error) {
	if t := l.Directory.FindTopic(name); t != nil {
		return t, nil
	}
	if err := tidegate.ValidateTopic(name); err != nil {
		return nil, err
	}
	return nil, refusal.TopicNotFound(name)
}

// topicOf returns a topic that has dead letters of a group: in, or %DLQ%group if in is empty. It
// returns nil if the group has no such topic yet.
func (l *Letters) topicOf(group, in string) (*topic.Topic, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	if in != "" {
		return l.topic(in)
	}
	t := l.Directory.FindTopic(tidegate.DeadLetterTopic(group))
	if t == nil && l.Directory.FindGroup(group) == nil {
		return nil, refusal.GroupNotFound(group)
	}
	return t, nil
}

func parsePosition(text string) (deadletter.Position, error) {
	p, err := deadletter.ParsePosition(text)
	if err != nil {
		return p, refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", text)
	}
	return p, nil
}

// source is the deadletter.Topic of a topic.
type source struct {
	*topic.Topic
	letters *Letters
}

// Bounds implements deadletter.Topic.
func (s source) Bounds(queue int) (begin, end int64, ok bool) {
	queues := s.Queues()
	if queue >= len(queues) {
		return 0, 0, false
	}
	return queues[queue].Low().Offset, queues[queue].End(), true
}

// Read implements deadletter.Topic.
func (s source) Read(queue int, from, to int64, limit int, maxBytes int64) ([]store.Message, []int64, error) {
	return s.letters.Store.Read(s.ID(), uint16(queue), from, to, limit, maxBytes)
}

// SkipDamaged implements deadletter.Topic.
func (s source) SkipDamaged(queue int, d *store.Damaged) {
	s.letters.Damaged.Add(d.To - d.From)
	s.letters.Logger.Error("dead letters skipped, because they are corrupt",
		"topic", s.Name(), "queue", queue, "from_offset", d.From, "to_offset", d.To-1, "error", d.Err)
}
