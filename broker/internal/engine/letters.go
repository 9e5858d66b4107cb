package engine

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// LettersConfig has the parts of a broker that Letters uses.
type LettersConfig struct {
	Store     *store.Store
	Directory directory
	Logger    *slog.Logger

	// Life ends when the broker closes.
	Life context.Context //nolint:containedctx // the broker's own life, not a request's

	// Redrives creates the topics of messages that are redriven to one group; set by NewCatalog.
	Redrives redrives

	MaxBodySize int // the maximum size of a body in bytes

	// Damaged counts the corrupt messages that a scan skipped.
	Damaged *atomic.Int64
}

// A directory finds topics and groups by name. Its methods take one lock, hold it only for the
// look, and return nil for an unknown name.
type directory interface {
	FindTopic(name string) *Topic
	FindGroup(name string) *Group
}

// redrives creates topics of redriven messages.
type redrives interface {
	// RedriveTopic returns the topic of the messages of a topic that are redriven to a group alone,
	// and creates it if necessary. It waits for other changes of settings.
	RedriveTopic(ctx context.Context, g *Group, original *Topic) (*Topic, error)
}

// Letters handles the dead letters, retries and parked message groups of a broker. Several
// goroutines can call its methods at the same time.
type Letters struct {
	LettersConfig
	token chan struct{} // held while messages in the middle of queues are moved or removed
}

// NewLetters returns the Letters of a broker.
func NewLetters(c LettersConfig) *Letters {
	return &Letters{LettersConfig: c, token: make(chan struct{}, 1)}
}

// Hold waits until no redrive, purge or other holder runs, and excludes them until release is
// called. It returns the cause of ctx if ctx ends first, or of LettersConfig.Life. The caller holds
// no lock, and of the tokens of the broker only admin and the task of retention.
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
func (l *Letters) topic(name string) (*Topic, error) {
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
func (l *Letters) topicOf(group, in string) (*Topic, error) {
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
	*Topic
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

// A LetterQuery selects dead letters of a group.
type LetterQuery struct {
	status.DeadLetterFilter
	In    string // topic with the dead letters; empty means %DLQ%group
	After string // position of the previous page; empty means the beginning
	Limit int    // maximum number of dead letters

	Newest bool // the newest letter of each queue first, and the queues in descending order

	NoBodies bool  // omit the bodies
	MaxBytes int64 // ends a page that has so many bytes; 0 means no limit beside that of a call
}

// Browse returns one page of dead letters, in the order of the query, and the position of the
// next page, which is empty after the last one. A call reads a bounded number of messages, so any
// page can have fewer dead letters than the limit. The error is 40403 if there is neither such a
// group nor a dead letter of it, 40402 if the query names an unknown topic, and 40000 if After is
// invalid.
func (l *Letters) Browse(group string, q LetterQuery) (page []deadletter.Letter, next string, err error) {
	_, scan, err := l.scan(group, &q)
	if err != nil || scan == nil {
		return nil, "", err
	}
	left := q.MaxBytes
	if left == 0 {
		left = math.MaxInt64
	}
	for len(page) < q.Limit && left > 0 && !scan.Over() {
		scan.AtATime = left
		found, err := scan.Next(q.Limit - len(page))
		if err != nil {
			return page, "", refusal.Store(err)
		}
		for i := range found {
			l := &found[i]
			l.BodySize = len(l.Body)
			if q.NoBodies {
				l.Body = nil
			}
			left -= int64(l.Size())
		}
		page = append(page, found...)
	}
	return page, scan.Position(), nil
}

// Count returns the number of the dead letters that a query selects, and the position to continue
// at, which is empty at the end. Limits of the query do not apply; a call reads a bounded number of
// messages. The errors are those of Browse.
func (l *Letters) Count(group string, q LetterQuery) (n int64, next string, err error) {
	_, scan, err := l.scan(group, &q)
	if err != nil || scan == nil {
		return 0, "", err
	}
	for !scan.Over() {
		found, err := scan.Next(deadletter.Chunk)
		if err != nil {
			return n, "", refusal.Store(err)
		}
		n += int64(len(found))
	}
	return n, scan.Position(), nil
}

// scan begins the scan of a query. It returns nil if the group has no topic of dead letters yet.
func (l *Letters) scan(group string, q *LetterQuery) (*Topic, *deadletter.Scan, error) {
	at, err := parsePosition(q.After)
	if err != nil {
		return nil, nil, err
	}
	t, err := l.topicOf(group, q.In)
	if err != nil || t == nil {
		return nil, nil, err
	}
	if q.Newest && q.After == "" {
		at = deadletter.Last(source{t, l})
	}
	return t, &deadletter.Scan{
		Topic: source{t, l}, Group: group, Filter: q.DeadLetterFilter, At: at, Newest: q.Newest,
		Messages: deadletter.BrowseMessages, Bytes: deadletter.BrowseBytes,
	}, nil
}

// A ClassPage is a page of the classes of dead letters of a group in a topic.
type ClassPage struct {
	Letters int64 // of all classes, Rest included
	Classes []store.LetterClass
	Rest    store.LetterClass // its Count is 0 if there is none
	Next    string            // empty on the last page
}

// Classes returns a page of the classes of a group in the topic in, or in %DLQ%group if in is
// empty, the largest first. from is the topic of the original sends; empty means all. It reads only
// memory. The errors are those of Browse.
func (l *Letters) Classes(group, in, from, after string, limit int) (p ClassPage, err error) {
	at, err := parseClassPosition(after)
	if err != nil {
		return p, err
	}
	t, err := l.topicOf(group, in)
	if err != nil || t == nil {
		return p, err
	}
	all, rest := t.Classes().Of(group)
	p.Rest, p.Letters = rest, rest.Count
	for i := range all {
		p.Letters += all[i].Count
	}
	p.Classes = slices.DeleteFunc(all, func(c store.LetterClass) bool {
		return from != "" && c.Topic != from || after != "" && deadletter.CompareClasses(c, at) <= 0
	})
	if len(p.Classes) > limit {
		p.Classes = p.Classes[:limit:limit]
		last := &p.Classes[limit-1]
		p.Next = fmt.Sprintf("%d-%s", last.Count, last.Fingerprint)
	}
	return p, nil
}

// parseClassPosition reads the position of a page, which has the count and the fingerprint of the
// class before it.
func parseClassPosition(text string) (at store.LetterClass, err error) {
	if text == "" {
		return at, nil
	}
	count, fingerprint, ok := strings.Cut(text, "-")
	at.Fingerprint = fingerprint
	n, nerr := strconv.ParseInt(count, 10, 64)
	if at.Count = n; !ok || nerr != nil || n <= 0 || fingerprint == "" {
		return at, refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", text)
	}
	return at, nil
}

// A ParkedGroup is a parked or blocked message group of a topic.
type ParkedGroup struct {
	consume.ParkedGroup
	Topic     *Topic
	MessageID string // of the failed message; empty if it does not exist any more
}

func (g *ParkedGroup) compare(topic, messageGroup string) int {
	return cmp.Or(strings.Compare(g.Topic.Name(), topic), strings.Compare(g.MessageGroup, messageGroup))
}

// Parked returns up to limit message groups that are parked or blocked and that wanted selects,
// after a position, by topic and name, and the position of the next page, which is empty on the
// last one.
func (l *Letters) Parked(subs []*Subscription, wanted func(*consume.ParkedGroup) bool, after string, limit int) (page []ParkedGroup, next string, err error) {
	for _, s := range subs {
		for _, g := range s.ParkedGroups() {
			if wanted(&g) {
				page = append(page, ParkedGroup{ParkedGroup: g, Topic: s.Consumed().Topic()})
			}
		}
	}
	slices.SortFunc(page, func(x, y ParkedGroup) int { return x.compare(y.Topic.Name(), y.MessageGroup) })
	if after != "" {
		name, group, _ := strings.Cut(after, "/") // no name of a topic has a slash
		page = slices.DeleteFunc(page, func(g ParkedGroup) bool { return g.compare(name, group) <= 0 })
	}
	if len(page) > limit {
		page = page[:limit:limit]
		next = page[limit-1].Topic.Name() + "/" + page[limit-1].MessageGroup
	}
	for i := range page {
		m, ok, err := l.Store.Header(page[i].Place)
		if err != nil {
			return nil, "", refusal.Store(err)
		}
		if ok {
			page[i].MessageID = m.ID
		}
	}
	return page, next, nil
}

// RedriveParked sends parked message groups on, in order, the failed message first or, with
// deadLetter, without it, and returns their numbers when this is on disk. messageGroup names the
// only one; empty means all. With an error the result has the message groups that were sent on.
func (l *Letters) RedriveParked(ctx context.Context, subs []*Subscription, messageGroup string, deadLetter bool) (groups, messages int64, err error) {
	for _, s := range subs {
		if ctx.Err() != nil {
			return groups, messages, context.Cause(ctx)
		}
		g, m, err := s.RedriveParked(messageGroup, deadLetter)
		groups += g
		messages += m
		if err != nil {
			return groups, messages, err
		}
	}
	return groups, messages, nil
}

// ownGroup returns the group of a redrive to this group alone.
func (l *Letters) ownGroup(name, to string) (*Group, error) {
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
func (r *redrive) toGroup(letter *deadletter.Letter) (to, original *Topic) {
	original = r.Directory.FindTopic(letter.Origin.Topic)
	name := r.group.Settings().RetryTopic.RedriveName(letter.Origin.Topic, r.group.Name())
	if original == nil || tidegate.ValidateTopic(name) != nil {
		return nil, nil
	}
	return r.Directory.FindTopic(name), original
}

// ReconsumeLater ends a delivery and stores its message as a new one: in the group's retry topic,
// or in its dead letter topic after the maximum of retries. It returns the new message when it is
// on disk. The error is 40000 if the group has no retry topics or the mode is invalid, and 40013 if
// the handle is not valid any more.
func (l *Letters) ReconsumeLater(ctx context.Context, s *Subscription, h consume.Handle, mode transport.Verdict) (out Reconsumed, err error) {
	from := s.Consumed()
	group, c := from.Group().Name(), from.Group().Settings().RetryTopic
	if !c.Enabled {
		return out, refusal.New(tidegate.CodeBadRequest, group,
			"the group has no retry topics; set retry_topic.enabled, or retry without a new message")
	}
	m, ok, err := l.Store.Get(h.Place)
	if err != nil {
		return out, refusal.Store(err)
	}
	if !ok {
		return out, refusal.InvalidHandle("the message was deleted")
	}
	original, times := deadletter.Origin(&c, &m, from.Topic().Name(), group)
	times++
	delay, dead, err := c.Reconsume(times, mode.Delay, mode.Level)
	if err != nil {
		return out, err
	}
	out = Reconsumed{Topic: c.RetryName(original, group), MessageID: tidegate.NewMessageID(), Times: times, DeadLetter: dead}
	if dead {
		out.Topic, out.Times = c.DeadLetterName(original, group), times-1
	}
	if err := tidegate.ValidateTopic(out.Topic); err != nil {
		return Reconsumed{}, err // the names are too long together
	}
	retry := &deadletter.Retry{ID: out.MessageID, Times: out.Times, Dead: dead}
	if times == 1 {
		retry.From = original
	}
	reason := fmt.Sprintf("retried %d times, the maximum", out.Times)
	if err := s.Reconsume(ctx, h, reconsumption{To: out.Topic, Retry: retry, Delay: delay, Reason: reason}); err != nil {
		return Reconsumed{}, err
	}
	out.DeliverAt = retry.Due
	return out, nil
}

// CheckRetryTopics returns an error with 40000 if the new settings c separate a group from one of
// its retry topics: one that it receives from, or one that still has retries for it. received has
// the progress of the group in each topic that it receives from.
func (l *Letters) CheckRetryTopics(g *Group, received []*Consumption, c *settings.RetryTopic) error {
	before := &g.Settings().RetryTopic
	progress := map[string]*Consumption{}
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
func (l *Letters) hasRetries(name string, s *Consumption) bool {
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

// checkRetryNames returns an error with 40000 if a configured retry topic of a group is also a
// retry topic of another group: each group would consume retries of the other one. Two names that
// Naming forms may be equal, because a receive takes only the messages of its own topic.
func checkRetryNames(group string, c *settings.RetryTopic, groups iter.Seq[*Group]) error {
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
