package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// ladder is the retry schedule of the scene normal; the last step repeats.
var ladder = []time.Duration{time.Second, 2 * time.Second}

// The message that fails once, and the one that always fails.
const (
	flaky  = "order 3"
	poison = "poison"
)

// normal sends NORMAL messages to a push consumer that fails on some.
func (s scene) normal(ctx context.Context) error {
	topic, err := s.topic(ctx, "orders", settings.Topic{Type: settings.TopicNormal, Queues: 4})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "billing", settings.Group{Retry: ladder, MaxAttempts: 4})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, deliveries, err := s.pushConsumer(ctx, group, topic, func(d delivery) bool {
		return d.body == poison || d.body == flaky && d.attempt == 1
	})
	if err != nil {
		return err
	}

	sent := map[string]message{}
	ids := map[string]string{}
	for _, body := range []string{"order 1", "order 2", flaky, "order 4", "order 5", poison} {
		m := message{topic: topic, body: body, tag: "paid", keys: []string{body}, properties: map[string]string{"currency": "EUR"}}
		if ids[body], err = send(ctx, p, m); err != nil {
			return err
		}
		sent[body] = m
	}
	s.say("sent %d messages to %s", len(sent), topic)

	const expected = 4 + 2 + 4 // the good ones, the flaky one twice, the poison four times
	seen := map[string][]delivery{}
	for range expected {
		d, err := next(ctx, deliveries)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, seen)
		}
		s.say("delivered: %s", d)
		s.checkContent(d, sent[d.body], ids[d.body])
		seen[d.body] = append(seen[d.body], d)
	}
	for body := range sent {
		s.checkAttempts(body, seen[body])
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 5, Redelivered: 1 + 3, DeadLetters: 1}); err != nil {
		return err
	}
	if err := s.readDeadLetter(ctx, group, poison, ids[poison]); err != nil {
		return err
	}
	if err := s.stop(ctx, c, p, topic, ""); err != nil {
		return err
	}
	s.assert(len(deliveries) == 0, "%d deliveries, not %d", expected, expected+len(deliveries))
	return nil
}

func (s scene) checkContent(d delivery, m message, id string) {
	s.assert(d.id == id && d.tag == m.tag && d.group == m.group, "%s as it was sent: %+v, not %+v with ID %s", d, d, m, id)
	assertEqual(s, "keys of "+d.body, d.keys, m.keys)
	for k, v := range m.properties {
		s.assert(d.properties[k] == v, "property %s of %s: got %q, want %q", k, d, d.properties[k], v)
	}
}

// checkAttempts asserts the attempt numbers of a message, and that no retry
// came before its step of the retry schedule was over.
func (s scene) checkAttempts(body string, ds []delivery) {
	want := max(1, map[string]int{flaky: 2, poison: 4}[body])
	s.assert(len(ds) == want, "%d deliveries of %s: %v", want, body, ds)
	for i, d := range ds {
		s.assert(int(d.attempt) == i+1, "attempt %d of %s: %v", i+1, body, ds)
		if i == 0 {
			continue
		}
		step := ladder[min(i, len(ladder))-1]
		waited := d.at.Sub(ds[i-1].at)
		s.assert(waited >= step, "%s not before %v: after %v", d, step, waited)
		s.say("%s came after %.2fs, the schedule has %v", d, waited.Seconds(), step)
	}
}

// readDeadLetter takes the only dead letter of a group with a simple consumer.
func (s scene) readDeadLetter(ctx context.Context, group, body, id string) error {
	deadLetters := "%DLQ%" + group
	s.willDelete(made{deadLetters, s.admin.DeleteTopic})
	auditors, err := s.group(ctx, s.name+"-auditors", settings.Group{})
	if err != nil {
		return err
	}
	c, err := s.simpleConsumer(ctx, auditors, deadLetters)
	if err != nil {
		return err
	}
	defer c.GracefulStop()
	mvs, err := receive(ctx, c, 1)
	if err != nil {
		return fmt.Errorf("receiving a dead letter from %s: %w", deadLetters, err)
	}
	d := deliveryOf(mvs[0])
	s.say("dead letter in %s: %q, because: %s", deadLetters, d.body, d.properties["DLQ_REASON"])
	s.assert(d.body == body && d.id == id && d.properties["DLQ_GROUP"] == group && d.properties["DLQ_REASON"] != "",
		"the dead letter %s with ID %s of group %s, and a reason: %+v", body, id, group, d)
	if err := c.Ack(ctx, mvs[0]); err != nil {
		return err
	}
	return s.settled(ctx, auditors, deadLetters, progress{Acked: 1})
}
