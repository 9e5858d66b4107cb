package broker_test

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// ownerOf returns the names of the groups that a dead letter or an expired message is of.
func ownerOf(d *tidegate.Delivery) []string {
	return []string{d.Properties[protocol.PropertyDeadLetterGroup], d.Properties[protocol.PropertyOriginalQueue]}
}

// delivered checks a delivery of a receive that began in a step. mu is held.
func (c *combined) delivered(d *tidegate.Delivery, began int, owned bool) {
	id := d.Properties["k"]
	if len(d.Body) == 0 || string(d.Body) != strings.Repeat(id, len(d.Body)/max(1, len(id))) {
		c.t.Errorf("%s has the body %.50q", id, d.Body)
	}
	h, err := consume.ParseHandle(d.Handle)
	if err != nil {
		c.t.Fatal(err)
	}
	key := copyOf{h.Group, h.Place}
	for _, g := range ownerOf(d) {
		if g != "" {
			c.dead[g+" "+id] = true
		}
	}
	if _, ours := combinedTopics[d.Topic]; !ours {
		c.held = append(c.held, taken{d, key, c.boot, owned})
		return
	}
	m, copied := c.messages[id], c.copies[key]
	if copied == nil {
		copied = &combinedCopy{}
		c.copies[key] = copied
	}
	original := d.Properties[protocol.PropertyRealTopic] == ""
	switch {
	case m == nil:
	case m.gone && m.goneIn < began:
		c.t.Errorf("%s was recalled, rolled back or never committed, and %s got it", id, d.ConsumerGroup)
	case string(d.Body) != m.body || d.Tag != m.tag || d.ID != id && original:
		c.t.Errorf("%s has another body, tag or ID: %+v", id, d.Message)
	case time.Now().Before(m.due):
		c.t.Errorf("%s came at %v and is due at %v", id, time.Now(), m.due)
	case original && m.step < c.purged[h.Place.Topic] && c.purged[h.Place.Topic] < began:
		c.t.Errorf("%s was sent in step %d, purged in %d, and delivered", id, m.step, c.purged[h.Place.Topic])
	case d.ConsumerGroup == "g" && d.Tag == "c", d.ConsumerGroup == "s" && d.Tag == "c":
		c.t.Errorf("%s does not match the filter of %s", id, d.ConsumerGroup)
	}
	if original {
		where := placeKey(h.Place.Topic, id)
		if p, ok := c.places[where]; ok && p != h.Place {
			c.t.Errorf("%s is stored twice: at %+v and %+v", id, p, h.Place)
		}
		c.places[where] = h.Place
	}
	if copied.acked != 0 && copied.acked < began {
		c.t.Errorf("%s was acknowledged by %s in step %d (power lost in %d) and delivered again in attempt %d: %s", id, d.ConsumerGroup, copied.acked, c.lost, d.Attempt, copied.how)
	}
	if copied.step < c.step {
		copied.earlier, copied.step = copied.attempt, c.step
	}
	if d.Attempt < copied.earlier {
		c.t.Errorf("%s was delivered to %s in attempt %d after %d", id, d.ConsumerGroup, d.Attempt, copied.earlier)
	}
	copied.attempt = max(copied.attempt, d.Attempt)
	if d.ConsumerGroup == "o" && d.MessageGroup != "" && original {
		at := orderKey(h, d.MessageGroup)
		if d.Offset < c.order[at]-1 {
			c.t.Errorf("%s at offset %d of message group %s comes after that at %d", id, d.Offset, d.MessageGroup, c.order[at]-1)
		}
		c.order[at] = max(c.order[at], d.Offset+1)
	}
	c.held = append(c.held, taken{d, key, c.boot, owned})
}

// settle settles one delivery, or acknowledges several.
func (c *combined) settle(rnd *rand.Rand) {
	c.mu.Lock()
	var held []taken
	for range 1 + rnd.IntN(8) {
		if len(c.held) > 0 {
			i := rnd.IntN(len(c.held))
			held = append(held, c.held[i])
			c.held = append(c.held[:i:i], c.held[i+1:]...)
		}
	}
	c.mu.Unlock()
	if len(held) == 0 {
		return
	}
	if rnd.IntN(2) == 0 {
		c.ack(held)
		return
	}
	ctx := c.t.Context()
	for _, h := range held {
		dur := time.Duration(rnd.IntN(40)) * time.Second
		var err error
		switch rnd.IntN(8) {
		case 0:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.Retry, Delay: dur})
		case 7:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.Snooze, Delay: dur})
		case 1:
			_, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.NegativeAck, Delay: dur})
		case 2:
			var r engine.Reconsumed
			mode := transport.Verdict{Kind: transport.RetryTopic}
			if rnd.IntN(4) == 0 {
				mode.Delay = time.Duration(1+rnd.IntN(864_000)) * time.Second
			}
			if r, err = serve(c.b).ReconsumeLater(ctx, h.Delivery, mode); err == nil && r.MessageID != "" {
				c.acked(h, "reconsumed")
			}
		case 3:
			var handle string
			if rnd.IntN(2) == 0 {
				dur = 0
			}
			if handle, err = c.b.Extend(ctx, h.Delivery, dur, false); err == nil && dur > 0 {
				changed := *h.Delivery
				changed.Handle, changed.InvisibleUntil = handle, time.Now().Add(dur)
				c.mu.Lock()
				c.held = append(c.held, taken{&changed, h.key, c.boot, false})
				c.mu.Unlock()
			}
		case 4:
			if _, err = c.b.Settle(ctx, h.Delivery, transport.Verdict{Kind: transport.DeadLetter, Reason: "combined"}); err == nil {
				c.acked(h, "dead letter")
			}
		case 5:
			serve(c.b).Return(ctx, []*tidegate.Delivery{h.Delivery})
		default:
			c.ack([]taken{h})
		}
		c.wrong(h, err)
	}
}

func (c *combined) ack(held []taken) {
	ds := make([]*tidegate.Delivery, len(held))
	for i := range held {
		ds[i] = held[i].Delivery
	}
	for i, err := range c.b.Ack(c.t.Context(), ds) {
		if err == nil {
			c.acked(held[i], "consumed")
		}
		c.wrong(held[i], err)
	}
}

// acked notes that a group is done with its copy, permanently if it has consumed it.
func (c *combined) acked(h taken, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if copied := c.copies[h.key]; copied != nil && copied.acked == 0 {
		copied.acked, copied.how = c.step, how
	}
	if how == "consumed" {
		c.done[doneKey(h.key.group, h.Properties["k"])] = true
	}
}

// wrong reports an error that nothing explains.
func (c *combined) wrong(h taken, err error) {
	switch code := codeOf(err); {
	case err == nil, code == tidegate.CodeBadRequest && h.ConsumerGroup != "r":
	case code != tidegate.CodeInvalidReceiptHandle && code != tidegate.CodeTopicNotFound && code != tidegate.CodeConsumerGroupNotFound:
		c.t.Errorf("%s of %s: %v", h.Properties["k"], h.ConsumerGroup, err)
	}
}
