package server

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// This file serves consumers of lite topics. Over gRPC such a consumer is a client of the type
// LITE_PUSH_CONSUMER, and its ID is that of the client. Its Telemetry stream reports the lite topics
// that it has no more. Over HTTP the consumer is a part of the path.

// maxLiteTopicSize is the limit of tidegate.ValidateLiteTopic, which clients get with their settings.
const maxLiteTopicSize = 64

// syncLiteSubscription changes the lite topics of a client. As RocketMQ 5.5, it ignores the version
// of the set, and the offset of a removal.
func (s *Server) syncLiteSubscription(ctx context.Context, client string, req *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	group, topic, err := names(req.GetGroup(), req.GetTopic())
	if err != nil {
		return nil, err
	}
	change := transport.LiteSync{
		// The engine keeps the names, which are parts of the request's memory.
		LiteConsumer: transport.LiteConsumer{Group: strings.Clone(group), Topic: strings.Clone(topic), ID: strings.Clone(client)},
		Topics:       make([]string, len(req.GetLiteTopicSet())),
	}
	for i, name := range req.GetLiteTopicSet() {
		change.Topics[i] = strings.Clone(name)
	}
	switch a := req.GetAction(); a {
	case rmqpb.LiteSubscriptionAction_PARTIAL_ADD:
		change.Action = transport.LiteAdd
	case rmqpb.LiteSubscriptionAction_PARTIAL_REMOVE:
		change.Action = transport.LiteRemove
	case rmqpb.LiteSubscriptionAction_COMPLETE_ADD:
	case rmqpb.LiteSubscriptionAction_COMPLETE_REMOVE:
		change.Topics = nil
	default:
		return nil, refusal.New(tidegate.CodeBadRequest, "action", "the action is %d; give PARTIAL_ADD (0), PARTIAL_REMOVE (1), COMPLETE_ADD (2) or COMPLETE_REMOVE (3)", a)
	}
	if change.Action != transport.LiteRemove && len(change.Topics) > 0 {
		if change.Start, err = liteStart(req.GetOffsetOption()); err != nil {
			return nil, err
		}
	}
	if err := s.engine.SyncLite(ctx, change); err != nil {
		return nil, err
	}
	s.sessions.Subscribes(client, change.LiteConsumer)
	return &rmqpb.SyncLiteSubscriptionResponse{Status: wire.OK}, nil
}

// liteStart returns the position that an offset_option means.
func liteStart(o *rmqpb.OffsetOption) (at transport.LiteStart, err error) {
	number := func(name string, n int64, field *int64, zero *bool) {
		*field, *zero = n, n == 0
		if n < 0 {
			err = refusal.New(tidegate.CodeBadRequest, "offset_option", "the %s is %d; give 0 or more", name, n)
		}
	}
	switch t := o.GetOffsetType().(type) {
	case *rmqpb.OffsetOption_Policy_:
		switch t.Policy {
		case rmqpb.OffsetOption_LAST:
		case rmqpb.OffsetOption_MIN:
			at.Oldest = true
		case rmqpb.OffsetOption_MAX:
			at.Newest = true
		default:
			err = refusal.New(tidegate.CodeBadRequest, "offset_option", "the policy is %d; give LAST (0), MIN (1) or MAX (2)", t.Policy)
		}
	case *rmqpb.OffsetOption_Offset:
		number("offset", t.Offset, &at.Offset, &at.Oldest)
	case *rmqpb.OffsetOption_TailN:
		number("tail_n", t.TailN, &at.Last, &at.Newest)
	case *rmqpb.OffsetOption_Timestamp:
		if at.Time = time.UnixMilli(t.Timestamp); !refusal.Storable(at.Time) {
			err = refusal.New(tidegate.CodeBadRequest, "offset_option", "the timestamp is %d ms after 1970; give a time between 1970 and %d", t.Timestamp, refusal.LastYear)
		}
	}
	return at, err
}

// liteConsumer returns the ID of the consumer of lite topics that receives from a topic, empty if the
// client is none. After a restart of the server the settings of a client can be missing for a while;
// until then the type of the topic decides.
func (s *Server) liteConsumer(c *session.Client, client, topic string) string {
	if p := c.Profile(); p != nil {
		if p.IsLite() {
			return client
		}
		return ""
	}
	if t, err := s.engine.TopicSettings(topic); err == nil && t.Type == settings.TopicLite {
		return client
	}
	return ""
}

// asLite returns the settings of a group for a consumer of lite topics. The first one creates the
// group.
func asLite(c settings.Group, sub *rmqpb.Subscription) settings.Group {
	c.FIFO = true
	if entries := sub.GetSubscriptions(); len(entries) > 0 {
		c.Lite.Topic = cmp.Or(c.Lite.Topic, entries[0].GetTopic().GetName())
	}
	c.Lite = c.Lite.WithDefaults()
	if c.Lite.MaxTopics > 0 {
		sub.LiteSubscriptionQuota = new(int32(c.Lite.MaxTopics))
	}
	sub.MaxLiteTopicSize = new(int32(maxLiteTopicSize))
	return c
}

// serveLite reports to a Telemetry stream the lite topics that its client has no more, until stop is
// called or the stream ends.
func (s *Server) serveLite(ctx context.Context, t *session.Stream, c transport.LiteConsumer) (stop context.CancelFunc) {
	ctx, stop = context.WithCancel(ctx)
	s.wg.Go(func() {
		defer stop()
		defer t.LiteOver(c)
		// A later stream of the client takes over, or the next SyncLiteSubscription serves it again.
		if err := s.engine.ServeLite(ctx, c, t.LiteEnded); err != nil {
			s.log.DebugContext(ctx, "the end of lite topics is not reported", "client", c.ID, "group", c.Group, "topic", c.Topic, "error", err)
		}
	})
	return stop
}

// unsubscribeLite is the command that reports the end of a lite topic.
func unsubscribeLite(name string) *rmqpb.TelemetryCommand {
	return &rmqpb.TelemetryCommand{Status: wire.OK, Command: &rmqpb.TelemetryCommand_NotifyUnsubscribeLiteCommand{
		NotifyUnsubscribeLiteCommand: &rmqpb.NotifyUnsubscribeLiteCommand{LiteTopic: name},
	}}
}

// A liteChange is a change of the lite topics of a consumer.
type liteChange struct {
	LiteTopics *[]string        `json:"lite_topics"` // of a PUT: all
	Add        []string         `json:"add"`         // of a PATCH, or Remove
	Remove     []string         `json:"remove"`
	Start      *liteStartOfJSON `json:"start"`
}

// A liteStartOfJSON is a position in a lite topic. One field is set.
type liteStartOfJSON struct {
	From   string     `json:"from"`
	Last   *int64     `json:"last"`
	Offset *int64     `json:"offset"`
	Time   *time.Time `json:"time"`
}

func (j *liteStartOfJSON) start() (at transport.LiteStart, err error) {
	if j == nil {
		return at, nil
	}
	given := 0
	for _, is := range []bool{j.From != "", j.Last != nil, j.Offset != nil, j.Time != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		return at, refusal.New(tidegate.CodeBadRequest, "start", "start has %d keys; give one of from, last, offset and time, or leave start out", given)
	}
	switch {
	case j.From == "oldest":
		at.Oldest = true
	case j.From == "newest":
		at.Newest = true
	case j.From != "":
		return at, refusal.New(tidegate.CodeBadRequest, "start.from", "start.from is %.100q; give oldest or newest", j.From)
	case j.Last != nil:
		at.Last, at.Newest = *j.Last, *j.Last == 0
	case j.Offset != nil:
		at.Offset, at.Oldest = *j.Offset, *j.Offset == 0
	default:
		at.Time = *j.Time
	}
	return at, nil
}

// liteConsumerOf is the consumer in the path of a request. As over gRPC, the key precedes its ID.
func liteConsumerOf(r *http.Request) transport.LiteConsumer {
	return transport.LiteConsumer{Group: r.PathValue("group"), Topic: r.PathValue("topic"), ID: auth.ScopedTo(r, r.PathValue("consumer"))}
}

// PutLiteConsumer sets the lite topics of a consumer.
func (h *adminRoutes) PutLiteConsumer(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var in liteChange
	if err := readJSON(w, r, &in); err != nil {
		return 0, nil, err
	}
	if in.LiteTopics == nil || in.Add != nil || in.Remove != nil {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "lite_topics", "give lite_topics, the names of all lite topics of the consumer; PATCH has add and remove")
	}
	return h.syncLite(r, in.Start, transport.LiteSync{Action: transport.LiteSet, Topics: *in.LiteTopics})
}

// PatchLiteConsumer adds lite topics to a consumer, or removes some.
func (h *adminRoutes) PatchLiteConsumer(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var in liteChange
	if err := readJSON(w, r, &in); err != nil {
		return 0, nil, err
	}
	switch {
	case in.LiteTopics != nil || (len(in.Add) > 0) == (len(in.Remove) > 0):
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "add", "give add or remove, with names of lite topics; PUT has lite_topics")
	case len(in.Remove) > 0:
		return h.syncLite(r, in.Start, transport.LiteSync{Action: transport.LiteRemove, Topics: in.Remove})
	}
	return h.syncLite(r, in.Start, transport.LiteSync{Action: transport.LiteAdd, Topics: in.Add})
}

func (h *adminRoutes) syncLite(r *http.Request, start *liteStartOfJSON, change transport.LiteSync) (int, any, error) {
	at, err := start.start()
	if err != nil {
		return 0, nil, err
	}
	change.LiteConsumer, change.Start = liteConsumerOf(r), at
	return http.StatusNoContent, nil, h.engine.SyncLite(r.Context(), change)
}

// DeleteLiteConsumer ends a consumer.
func (h *adminRoutes) DeleteLiteConsumer(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	h.engine.EndLite(liteConsumerOf(r))
	return http.StatusNoContent, nil, nil
}

// An endedLite is a line of listEndedLite.
type endedLite struct {
	LiteTopic string `json:"lite_topic"`
}

// liteAlive is the time after which a stream without a line gets an empty one.
const liteAlive = 20 * time.Second

// listEndedLite reports the lite topics that the broker takes from a consumer, as a stream of lines,
// until the client leaves, the server stops or other access rules hold.
func (s *Server) listEndedLite(w http.ResponseWriter, r *http.Request) (int, any, error) {
	c := liteConsumerOf(r)
	if _, err := s.engine.LiteTopics(c.Topic, status.LiteTopicQuery{Limit: 1}); err != nil {
		return 0, nil, err // with a status, because the stream has not begun
	}
	place, err := s.parkHTTP(r)
	if err != nil {
		return 0, nil, err
	}
	defer place.Release()
	ctx, stop := s.whileAllowed(r.Context())
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	names, served := make(chan string), make(chan error, 1)
	defer func() {
		cancel()
		for range served { // until it is closed
		}
	}()
	go func() {
		defer close(served)
		served <- s.engine.ServeLite(ctx, c, func(name string) {
			select {
			case names <- name:
			case <-ctx.Done():
			}
		})
	}()
	out := newLineWriter(w)
	if err := out.Open(); err != nil {
		return 0, nil, responseCut(err)
	}
	alive := time.NewTicker(liteAlive)
	defer alive.Stop()
	for {
		select {
		case name := <-names:
			err = writeLines(out, endedLite{name})
		case <-alive.C:
			err = out.Alive()
		case err = <-served:
			switch {
			case err == nil, session.EndedHere(ctx), r.Context().Err() != nil:
				return 0, nil, nil
			}
			err = out.End(err)
			return 0, nil, responseCut(err)
		}
		if err != nil {
			return 0, nil, responseCut(err)
		}
	}
}

// ListLiteTopics returns a page of the lite topics of a topic.
func (h *adminRoutes) ListLiteTopics(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "after", "limit")
	query := status.LiteTopicQuery{After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.LiteTopics(r.PathValue("topic"), query)
	return http.StatusOK, page, err
}

// DeleteLiteTopic removes a lite topic.
func (h *adminRoutes) DeleteLiteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	defer h.surveys.Expire()
	return http.StatusNoContent, nil, h.engine.DeleteLiteTopic(r.Context(), r.PathValue("topic"), r.PathValue("lite_topic"))
}
