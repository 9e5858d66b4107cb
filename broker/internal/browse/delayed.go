package browse

import (
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/status"
)

// nowhere is the queue and the offset of a message that is in no queue yet.
const nowhere = -1

// Delayed returns one page of the messages of a topic that wait for their delivery time, in the
// order in which they were stored. Its bounds and errors are those of Page.
func Delayed(st *store.Store, t *topic.Topic, q *status.MessageQuery, limit int, room int64) (status.MessagePage, error) {
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
