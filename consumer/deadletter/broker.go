package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Broker is the source of a group's dead letters on a tidegate broker. Listing does not consume
// them.
type Broker struct {
	Client *admin.Client
	Group  string
	In     string // topic with the dead letters, see status.Group.DeadLetterTopics; empty means %DLQ%group
}

func (b Broker) group() string { return b.Group }

func (b Broker) letters(ctx context.Context, f *Filter, by query) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		q := status.DeadLetterQuery{DeadLetterFilter: f.onBroker(), In: b.In, Limit: by.page, Bodies: by.bodies}
		err := httpapi.Pages("", func(after string) (string, error) {
			q.After = after
			page, err := b.Client.DeadLetters(ctx, b.Group, q)
			for i := range page.DeadLetters {
				if !yield(b.letter(&page.DeadLetters[i], &q), nil) {
					return "", nil
				}
			}
			return page.Next, err
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func (b Broker) letter(d *status.DeadLetter, q *status.DeadLetterQuery) *Letter {
	o := d.Origin
	return &Letter{
		Message: tidegate.Message{
			ID: d.MessageID, Topic: b.topic(), Tag: d.Tag, Keys: d.Keys, MessageGroup: d.MessageGroup, LiteTopic: d.LiteTopic,
			Priority:   d.Priority,
			Properties: d.Properties, Body: d.Body,
		},
		Origin: tidegate.DeadLetter{
			Topic: o.Topic, MessageID: d.MessageID, Queue: o.Queue, Offset: o.Offset, Group: o.Group, Attempts: o.Attempts, Reason: o.Reason, Redrives: o.Redrives,
		},
		StoredAt: d.StoredAt, BodySize: d.BodySize, page: q.After, filter: &q.DeadLetterFilter, queue: d.Queue, offset: d.Offset,
	}
}

func (b Broker) topic() string {
	if b.In != "" {
		return b.In
	}
	return tidegate.DeadLetterTopic(b.Group)
}

// filter selects letters of one page by their IDs. It keeps the other conditions of the page: a
// letter that they exclude can have the same ID.
func (b Broker) filter(ls []*Letter) status.DeadLetterFilter {
	f := *ls[0].filter
	f.Topic, f.MessageIDs = ls[0].Origin.Topic, nil
	for _, l := range ls {
		f.MessageIDs = append(f.MessageIDs, l.Message.ID)
	}
	return f
}

func (b Broker) selection(ls []*Letter) status.DeadLetterSelection {
	return status.DeadLetterSelection{DeadLetterFilter: b.filter(ls), In: b.In, After: ls[0].page, Limit: len(ls)}
}

// locate makes page of a letter the start of a page that begins with it, so that a request of one
// letter selects it and not an earlier one with the same ID. It returns false if the letter is
// gone: a request could then select an earlier one.
func (b Broker) locate(ctx context.Context, l *Letter) (found bool, err error) {
	q := status.DeadLetterQuery{DeadLetterFilter: b.filter([]*Letter{l}), In: b.In, After: l.page, Limit: 1}
	err = httpapi.Pages(l.page, func(after string) (string, error) {
		q.After = after
		page, err := b.Client.DeadLetters(ctx, b.Group, q)
		for _, d := range page.DeadLetters {
			if d.Queue == l.queue && d.Offset == l.offset {
				l.page, found = after, true
				return "", nil
			}
		}
		return page.Next, err
	})
	return found, err
}

// remove removes a letter that was sent as id. An older broker rejects SentAs. It then gets the
// request without SentAs, because a letter that stays would be sent again.
func (b Broker) remove(ctx context.Context, l *Letter, id string) error {
	s := b.selection([]*Letter{l})
	s.SentAs = id
	_, err := b.Client.PurgeDeadLetters(ctx, b.Group, s)
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code == tidegate.CodeBadRequest {
		s.SentAs = ""
		_, err = b.Client.PurgeDeadLetters(ctx, b.Group, s)
	}
	return err
}

// errNoTarget is the error of a letter without a suitable topic.
var errNoTarget = errors.New("the topic of the dead letter does not exist, or does not accept it; set Options.To")

// sendBack sends letters of one page, generation and topic to that topic, another one, or the group
// alone. It returns an error for each letter that stays. A repetition has no effect: a redriven
// letter is gone, and a returned one has a later generation. err is the error of the request.
func (b Broker) sendBack(ctx context.Context, ls []*Letter, o *Options) (stay map[string]error, err error) {
	s := b.selection(ls)
	s.To, s.ToGroupOnly, s.MaxRedrives = o.To, o.ToGroupOnly, ls[0].Generation()+1
	done, err := b.Client.RedriveDeadLetters(ctx, b.Group, s)
	if err == nil && done.Redriven == int64(len(ls)) {
		return nil, nil
	}
	if err != nil && !maybe(err) {
		return nil, err
	}
	// The counts do not identify the letters that stayed, and a response may be lost.
	q := status.DeadLetterQuery{DeadLetterFilter: s.DeadLetterFilter, In: b.In, After: s.After, Limit: len(ls)}
	page, lookErr := b.Client.DeadLetters(ctx, b.Group, q)
	if lookErr != nil {
		return nil, errors.Join(err, lookErr)
	}
	why := errNoTarget
	switch {
	case err != nil:
		why = err
	case done.Throttle != nil:
		why = &tidegate.Error{
			Op: "RedriveDeadLetters", Subject: b.Group, Endpoint: b.Client.Endpoint(), Code: tidegate.CodeTooManyRequests,
			Message: fmt.Sprintf("%s of %q is %d, the limit is %d", done.Throttle.Limit, done.Throttle.Subject, done.Throttle.Value, done.Throttle.Mark), RetryAfter: time.Duration(done.Throttle.RetryAfter),
		}
	}
	stay = map[string]error{}
	for i := range page.DeadLetters {
		if d := &page.DeadLetters[i]; d.Origin.Redrives == ls[0].Generation() {
			stay[d.MessageID] = why
		}
	}
	return stay, nil
}

// errGone is the error of a letter that was removed after it was listed.
var errGone = &tidegate.Error{Op: "RedriveDeadLetters", Code: tidegate.CodeNotFound, Message: "the dead letter was sent back or removed meanwhile"}

// replace sends a letter back to the group alone with the changes that m has, under the ID of m.
// unsure reports whether an earlier call may have done it; replace updates it. A repetition has no
// effect, because the letter is gone from its place.
func (b Broker) replace(ctx context.Context, l *Letter, m *tidegate.Message, unsure *bool) error {
	f := b.filter([]*Letter{l})
	s := status.DeadLetterSelection{DeadLetterFilter: f, In: b.In, Limit: 1, ToGroupOnly: true, MaxRedrives: l.Generation() + 1, Edit: editOf(l, m)}
	done, err := b.Client.RedriveDeadLetters(ctx, b.Group, s)
	switch {
	case maybe(err):
		*unsure = true
		if found, lookErr := b.locate(ctx, l); found || lookErr != nil {
			return err
		}
		return nil
	case err != nil:
		return err
	case done.Redriven == 1:
		return nil
	case done.NoTarget > 0:
		return &tidegate.Error{Op: "RedriveDeadLetters", Subject: l.Origin.Topic, Code: tidegate.CodeTopicNotFound, Err: errNoTarget}
	case *unsure:
		return nil
	}
	return errGone
}

// editOf returns the changes that make m of a letter.
func editOf(l *Letter, m *tidegate.Message) *status.DeadLetterEdit {
	e := &status.DeadLetterEdit{Queue: l.queue, Offset: l.offset, ID: m.ID, Properties: map[string]*string{}}
	if !bytes.Equal(m.Body, l.Message.Body) {
		e.Body = m.Body
	}
	if m.Tag != l.Message.Tag {
		e.Tag = &m.Tag
	}
	if !slices.Equal(m.Keys, l.Message.Keys) {
		e.Keys = append([]string{}, m.Keys...)
	}
	for name := range l.Message.Properties {
		if _, has := m.Properties[name]; !has {
			e.Properties[name] = nil
		}
	}
	for name, value := range m.Properties {
		if before, had := l.Message.Properties[name]; !had || before != value {
			e.Properties[name] = &value
		}
	}
	delete(e.Properties, protocol.PropertyDeadLetterRedrives) // the broker counts
	return e
}

// maybe reports whether a failed request may have taken effect.
func maybe(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && e.MaybeStored
}

// generationOf returns the number of earlier redrives of a received letter. The ID has it if the
// message had no room for the property.
func generationOf(d *tidegate.Delivery) int {
	text, has := d.Properties[protocol.PropertyDeadLetterRedrives]
	if !has {
		_, n := protocol.CutRedrive(d.ID)
		return n
	}
	n, _ := strconv.Atoi(text) // the letter itself counts more than a number
	return max(n, 0)
}
