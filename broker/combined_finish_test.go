package broker_test

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// runDry consumes all that is left, and looks where each message went.
func (c *combined) runDry() {
	ctx := c.t.Context()
	for _, s := range c.b.AllAddressSettings() {
		_ = c.b.DeleteAddressSettings(ctx, s.Match)
	}
	for _, t := range c.b.Topics() {
		t.Retention = settings.Retention{Time: -1}
		putTopic(c.t, c.b, t.Name, t.Topic)
	}
	for name := range combinedFilters {
		g, _ := c.b.Group(name)
		g.MaxAttempts = -1
		putGroup(c.t, c.b, name, g.Group)
	}
	putGroup(c.t, c.b, "w", settings.Group{MaxAttempts: -1})
	if err := c.b.Close(); err != nil {
		c.t.Error(err)
	}
	time.Sleep(11 * 24 * time.Hour) // all delays are over
	c.open()
	elapse(15 * time.Minute) // and all transactions
	c.step++
	for quiet := 0; quiet < 3; quiet++ {
		c.step++
		for _, t := range c.b.Topics() {
			groups := slices.Collect(maps.Keys(combinedFilters))
			if _, ours := combinedTopics[t.Name]; !ours {
				groups = append(slices.Clone(t.Groups), "w")
			}
			for _, g := range groups {
				if r, _ := c.b.Group("r"); g == "w" && mustOriginal(r.RetryTopic, t.Name) {
					continue
				}
				for c.receive(c.rnd, g, t.Name, 32) > 0 {
					quiet = 0
					c.ack(c.held)
					c.held = nil
				}
			}
		}
		elapse(3 * time.Minute)
		c.audit()
	}
	c.account()
	c.empty()
}

func mustOriginal(rt settings.RetryTopic, topic string) bool {
	_, is := rt.Original(topic, "r")
	return is
}

// account finds every confirmed message.
func (c *combined) account() {
	for _, m := range c.messages {
		if in := c.number(m.topic); in == 0 || in != m.in || m.gone || m.step <= c.purged[m.in] || c.lossy[m.topic] {
			continue
		}
		for name := range combinedFilters {
			of := c.numbers(name, m.topic)
			if m.tag == "c" && (name == "g" || name == "s") {
				continue
			}
			if began := c.began[of]; began == 0 || began > m.step {
				continue // it may have come when others had consumed the message
			}
			if !c.done[doneKey(of[0], m.id)] && !c.dead[name+" "+m.id] {
				c.t.Errorf("%s, confirmed in step %d, was never delivered to %s (%d, since %d)", m.id, m.step, name, of[0], c.began[of])
			}
		}
	}
}

// empty checks that nothing is left once everything is consumed.
func (c *combined) empty() {
	for _, s := range serve(c.b).Stats().Groups {
		if s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 || s.OldestMS != 0 || s.UndeliveredMS != 0 {
			c.t.Errorf("%s is left with %+v", s.Group, s)
		}
	}
	for _, s := range subscriptions(c.b) {
		c.quiet(s)
	}
	for _, t := range c.b.Topics() {
		t.Retention.Consumed = true
		putTopic(c.t, c.b, t.Name, t.Topic)
	}
	elapse(10 * time.Minute)
	c.audit()
	for _, t := range c.b.Topics() {
		if len(t.Groups) > 0 && (t.StoredMessages != 0 || t.StoredBytes != 0) || t.HalfMessages != 0 {
			c.t.Errorf("%s is left with %d messages, %d bytes, %d half messages", t.Name, t.StoredMessages, t.StoredBytes, t.HalfMessages)
		}
	}
}

// quiet checks that a subscription keeps nothing in memory.
func (c *combined) quiet(s *engine.Subscription) {
	waiting := s.Status().Waiting
	s.Look(func(p *consume.Progress) {
		if _, due := p.NextDue(); due || p.Counts() != (consume.Counts{}) || p.MessageGroups() > 0 || waiting > 0 {
			c.t.Errorf("%s in %s keeps %v, %d message groups, %d receives", s.Group().Name(), s.Topic().Name(), p.Counts(), p.MessageGroups(), waiting)
		}
	})
}
