package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// The bounds of one call.
const (
	maxMessages = 10_000
	maxBytes    = 32 << 20 // of the bodies of the messages that were looked at
	maxTime     = time.Second

	// merged is the largest number of queues whose messages are merged by time. Each has some
	// headers in memory.
	merged = 64

	// ahead is the number of headers in memory, for all queues together.
	ahead = 256

	// besideBody is the approximate memory of a message without its texts.
	besideBody = 1 << 10
)

// A reader reads one queue.
type reader struct {
	queue    uint16
	from, to int64 // offsets that were not looked at
	heads    []store.Header
}

// A scan is one call.
type scan struct {
	store   *store.Store
	topic   uint32
	query   *status.MessageQuery
	readers []*reader
	page    status.MessagePage
	bytes   int64 // that were read
	kept    int64 // memory of the page
}

// BrowsePage returns one page. It ends when it has room bytes; 0 means that only the bounds of a
// call apply. The error is 40000 if the query is invalid.
func BrowsePage(st *store.Store, t *Topic, q *status.MessageQuery, limit int, room int64) (status.MessagePage, error) {
	s := &scan{store: st, topic: t.ID(), query: q}
	s.page.Messages = []status.StoredMessage{}
	if err := s.open(t); err != nil {
		return s.page, err
	}
	until := time.Now().Add(maxTime)
	for !s.over() && len(s.page.Messages) < limit && s.page.Scanned+s.page.Corrupt < maxMessages && s.bytes < maxBytes && (room == 0 || s.kept < room) {
		if s.page.Scanned%64 == 63 && time.Now().After(until) {
			break
		}
		h, r, err := s.next()
		if err != nil {
			return s.page, refusal.Store(err)
		}
		if h == nil {
			continue // the rest could not be read
		}
		s.page.Scanned++
		s.page.Reached = h.StoredAt
		if err := s.consider(h, int(r.queue), func() (store.Message, bool, error) {
			return s.store.Get(store.Place{Topic: s.topic, Queue: r.queue, Offset: h.Offset})
		}); err != nil {
			return s.page, refusal.Store(err)
		}
	}
	for _, r := range s.readers {
		s.page.Left += r.to - r.from
	}
	if s.page.Complete = s.over(); !s.page.Complete {
		s.page.Next = s.cursor()
	}
	return s.page, nil
}

// open prepares the readers: the range of each queue by the bounds of time and the cursor.
func (s *scan) open(t *Topic) error {
	queues := t.Queues()
	if t.lite() && s.query.LiteTopic != "" && s.query.Queue == nil {
		q, err := t.findLite(s.query.LiteTopic)
		if err != nil {
			return err
		}
		s.query.Queue = new(int(q.Number()))
	}
	if s.query.Queue == nil && len(queues) > settings.MaxQueues {
		return refusal.New(tidegate.CodeBadRequest, t.Name(), "the topic has more than %d queues, because it has many lite topics; name one of these (lite_topic), or a queue", settings.MaxQueues)
	}
	if n := s.query.Queue; n != nil && (*n < 0 || *n >= len(queues)) {
		return refusal.New(tidegate.CodeBadRequest, "queue", "queue %d does not exist; topic %q has the queues 0 to %d", *n, t.Name(), len(queues)-1)
	}
	if s.query.Offset != nil && s.query.Queue == nil {
		return refusal.New(tidegate.CodeBadRequest, "offset", "an offset needs a queue; give both")
	}
	for i, q := range queues {
		if s.query.Queue != nil && i != *s.query.Queue {
			continue
		}
		r := &reader{queue: q.Number(), from: q.Low().Offset, to: q.End()}
		within := store.Range{Topic: s.topic, Queue: r.queue, From: r.from, To: r.to}
		for _, bound := range []struct {
			at     time.Time
			offset *int64
		}{{s.query.Since, &r.from}, {s.query.Before, &r.to}} {
			if bound.at.IsZero() {
				continue
			}
			offset, err := s.store.FirstThat(within, func(m store.Stored) bool { return !m.At.Before(bound.at) })
			if err != nil {
				return refusal.Store(err)
			}
			*bound.offset = offset
		}
		switch at := s.query.Offset; {
		case at != nil && s.query.Newest:
			r.to = min(r.to, *at+1)
		case at != nil:
			r.from = max(r.from, *at)
		}
		r.from = min(r.from, q.End())
		r.to = max(r.to, r.from)
		s.readers = append(s.readers, r)
	}
	return s.resume()
}

func (s *scan) over() bool {
	return !slices.ContainsFunc(s.readers, func(r *reader) bool { return r.from < r.to })
}

// next returns the next message in the order of the query. It returns nil if only corrupt messages
// were left in a queue.
func (s *scan) next() (*store.Header, *reader, error) {
	var best *reader
	for _, r := range s.readers {
		if r.from >= r.to {
			continue
		}
		if len(r.heads) == 0 {
			if err := s.fill(r); err != nil {
				return nil, nil, err
			}
			if len(r.heads) == 0 {
				continue
			}
		}
		if best == nil || s.before(&r.heads[0], &best.heads[0]) {
			best = r
		}
		if len(s.readers) > merged {
			break // queue by queue
		}
	}
	if best == nil {
		return nil, nil, nil
	}
	h := best.heads[0]
	best.heads = best.heads[1:]
	if s.query.Newest {
		best.to = h.Offset
	} else {
		best.from = h.Offset + 1
	}
	return &h, best, nil
}

func (s *scan) before(a, b *store.Header) bool {
	if s.query.Newest {
		return a.StoredAt.After(b.StoredAt)
	}
	return a.StoredAt.Before(b.StoredAt)
}

// fill reads the next headers of a queue.
func (s *scan) fill(r *reader) error {
	n := int64(min(len(s.readers), merged))
	hs, damaged, err := s.store.Headers(store.Range{Topic: s.topic, Queue: r.queue, From: r.from, To: r.to}, s.query.Newest, int(max(ahead/n, 1)), maxBytes/8/n)
	s.page.Corrupt += damaged
	for i := range hs {
		s.bytes += hs[i].Size
	}
	if r.heads = hs; len(hs) == 0 {
		r.from = r.to
	}
	return err
}

// consider adds a message to the page if the filter selects it. read reads it with its body.
func (s *scan) consider(h *store.Header, queue int, read func() (store.Message, bool, error)) error {
	f := &s.query.MessageFilter
	if !matches(f, h) {
		return nil
	}
	var body []byte
	if f.Contains != "" || s.query.Contents {
		m, ok, err := read()
		switch {
		case store.IsDamage(err):
			s.page.Corrupt++
			return nil
		case err != nil:
			return err
		case !ok || !bytes.Contains(m.Body, []byte(f.Contains)): // it may be removed meanwhile
			return nil
		}
		body = m.Body
	}
	out := status.StoredMessage{
		ID: h.ID, Queue: queue, Offset: h.Offset, StoredAt: h.StoredAt, BornAt: h.BornAt,
		Tag: h.Tag, MessageGroup: h.MessageGroup, LiteTopic: h.LiteTopic, Priority: h.Priority, BodySize: h.Size,
	}
	s.kept += besideBody
	if s.query.Contents {
		out.Keys, out.TraceContext, out.Body = h.Keys, h.TraceContext, body
		s.kept += int64(len(body))
		for k, v := range h.Properties {
			if tidegate.ReservedProperty(k) {
				continue
			}
			if out.Properties == nil {
				out.Properties = map[string]string{}
			}
			out.Properties[k] = v
			s.kept += int64(len(k) + len(v))
		}
	}
	s.page.Messages = append(s.page.Messages, out)
	return nil
}

// matches reports whether the filter selects a message, except for its body.
func matches(f *status.MessageFilter, h *store.Header) bool {
	for name, want := range f.Properties {
		if v, ok := h.Properties[name]; !ok || v != want {
			return false
		}
	}
	return (f.ID == "" || f.ID == h.ID) && (f.Tag == "" || f.Tag == h.Tag) &&
		(f.MessageGroup == "" || f.MessageGroup == h.MessageGroup) &&
		(f.LiteTopic == "" || f.LiteTopic == h.LiteTopic) && (f.Key == "" || slices.Contains(h.Keys, f.Key))
}

// A cursor is the direction of the query and the position in each of its queues.
const (
	forward  = 1
	backward = 2
)

func (s *scan) direction() byte {
	if s.query.Newest {
		return backward
	}
	return forward
}

// cursor returns the text of the present position.
func (s *scan) cursor() string {
	b := []byte{s.direction()}
	for _, r := range s.readers {
		at := r.from
		if s.query.Newest {
			at = r.to
		}
		b = binary.AppendUvarint(b, uint64(at))
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// resume moves the readers to the position of the query.
func (s *scan) resume() error {
	if s.query.After == "" {
		return nil
	}
	at, err := parse(s.query.After, s.direction())
	if err != nil || len(at) > len(s.readers) {
		return refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page of this query; give the value next of the previous page, or nothing for the first page", s.query.After)
	}
	for i, offset := range at { // the topic may have further queues meanwhile
		r := s.readers[i]
		if s.query.Newest {
			r.to = max(min(r.to, offset), r.from)
		} else {
			r.from = max(r.from, min(offset, r.to))
		}
	}
	return nil
}

var errCursor = errors.New("it is not a cursor")

func parse(text string, direction byte) (at []int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 2 || b[0] != direction {
		return nil, errCursor
	}
	for b = b[1:]; len(b) > 0; {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > 1<<62 {
			return nil, errCursor
		}
		at, b = append(at, int64(n)), b[size:]
	}
	return at, nil
}

// nowhere is the queue and the offset of a message that is in no queue yet.
const nowhere = -1

// BrowseDelayed returns one page of the messages of a topic that wait for their delivery time, in
// the order in which they were stored. Its bounds and errors are those of Page.
func BrowseDelayed(st *store.Store, t *Topic, q *status.MessageQuery, limit int, room int64) (status.MessagePage, error) {
	s := &scan{store: st, topic: t.ID(), query: q}
	s.page.Messages = []status.StoredMessage{}
	from, earlier, err := s.delayedFrom()
	if err != nil {
		return s.page, err
	}
	until := time.Now().Add(maxTime)
	for !s.page.Complete {
		ds, err := st.DelayedOf(s.topic, from, ahead)
		if err != nil {
			return s.page, refusal.Store(err)
		}
		s.page.Complete = len(ds) < ahead
		for i := range ds {
			if !q.Before.IsZero() && !ds[i].Stored.Before(q.Before) {
				s.page.Complete = true
				break
			}
			full := len(s.page.Messages) >= limit || s.page.Scanned+s.page.Corrupt >= maxMessages || s.bytes >= maxBytes || room != 0 && s.kept >= room
			if full || time.Now().After(until) && s.page.Scanned > 0 {
				s.page.Complete = false
				earlier += s.page.Scanned
				s.page.Next = delayedCursor(from, earlier)
				s.page.Left = max(1, t.Delayed().Messages-earlier)
				return s.page, nil
			}
			if from = ds[i]; !from.Stored.Before(q.Since) {
				if err := s.delayed(&from); err != nil {
					return s.page, refusal.Store(err)
				}
			}
		}
	}
	return s.page, nil
}

// delayed considers one message.
func (s *scan) delayed(d *store.StoredDelayed) error {
	m, ok, err := s.store.GetDelayed(d.Delayed)
	switch {
	case d.Gone || store.IsDamage(err):
		s.page.Corrupt++
		return nil
	case err != nil:
		return err
	case !ok:
		return nil // it is in its queue meanwhile, or was recalled
	}
	s.page.Scanned++
	s.page.Reached = d.Stored
	s.bytes += d.Size
	before := len(s.page.Messages)
	h := store.Header{Message: m, Offset: nowhere, Size: d.Size}
	h.StoredAt = d.Stored
	err = s.consider(&h, nowhere, func() (store.Message, bool, error) { return m, true, nil })
	for i := range s.page.Messages[before:] {
		s.page.Messages[before+i].DeliverAt = d.Due
	}
	return err
}

// delayedFrom returns the place behind which the page begins, and the number of messages that
// earlier pages looked at.
func (s *scan) delayedFrom() (from store.StoredDelayed, earlier int64, err error) {
	switch q := s.query; {
	case q.Queue != nil || q.Offset != nil:
		return from, 0, refusal.New(tidegate.CodeBadRequest, "queue", "a delayed message is in no queue yet; leave queue and offset out")
	case q.Newest:
		return from, 0, refusal.New(tidegate.CodeBadRequest, "order", "delayed messages have the order oldest")
	case q.After != "":
		b, err := base64.RawURLEncoding.DecodeString(q.After)
		if err != nil || len(b) != 33 || b[0] != delayedKind {
			return from, 0, refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page of this query; give the value next of the previous page, or nothing for the first page", q.After)
		}
		at := func(i int) time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(b[i:]))) } //nolint:gosec // as delayedCursor wrote it
		from.Stored, from.Due, from.Number = at(1), at(9), binary.BigEndian.Uint64(b[17:])
		earlier = max(0, int64(binary.BigEndian.Uint64(b[25:]))) //nolint:gosec // as above
	case q.Since.IsZero():
		return from, 0, nil // the first
	default:
		from.Stored = q.Since.Add(-1)
	}
	from.Topic = s.topic
	return from, earlier, nil
}

// delayedKind begins the cursors of delayed messages.
const delayedKind = 3

// delayedCursor returns the text of a position behind a message.
func delayedCursor(d store.StoredDelayed, scanned int64) string {
	b := []byte{delayedKind}
	for _, n := range []uint64{uint64(d.Stored.UnixNano()), uint64(d.Due.UnixNano()), d.Number, uint64(scanned)} { //nolint:gosec // the bits are kept
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}
