package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// The scene fifo has a retry interval and three messages: one that fails once, one that always
// fails, and one that is sent while the first waits for its retry.
const (
	interval   = 2 * time.Second
	fifoFlaky  = "alice 2"
	fifoPoison = "carol 3"
	fifoLate   = "bob 6"
)

// fifo sends FIFO messages in three message groups to a push consumer that
// fails on some.
//
// The official client makes the retries of FIFO messages itself, at the interval that the broker
// announces. After the last attempt it requests a dead letter. The broker holds the later messages
// of the message group until then.
func (s scene) fifo(ctx context.Context) error {
	topic, err := s.topic(ctx, "tickets", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
	if err != nil {
		return err
	}
	// Before the client starts: it asks whether its group is FIFO only then.
	group, err := s.group(ctx, "support", settings.Group{FIFO: true, FIFORetryInterval: settings.Duration(2 * time.Second), MaxAttempts: 3})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, deliveries, err := s.pushConsumer(ctx, group, topic, func(d delivery) bool {
		return d.body == fifoPoison || d.body == fifoFlaky && d.attempt == 1
	})
	if err != nil {
		return err
	}

	customers := []string{"alice", "bob", "carol"}
	ids := map[string]string{}
	post := func(customer string, i int) (err error) {
		body := fmt.Sprintf("%s %d", customer, i)
		ids[body], err = send(ctx, p, message{topic: topic, body: body, group: customer})
		return err
	}
	for i := range 5 {
		for _, customer := range customers {
			if err := post(customer, i+1); err != nil {
				return err
			}
		}
	}
	s.say("sent 5 messages in each of the message groups %s", strings.Join(customers, ", "))

	var seen []delivery
	const expected = 5 + 1 + 5 + 1 + 5 + 2 // bob has one more, one of alice is retried once, one of carol twice
	for range expected {
		d, err := next(ctx, deliveries)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, seen)
		}
		s.say("delivered: %s", d)
		s.checkContent(d, message{topic: topic, body: d.body, group: strings.Fields(d.body)[0]}, ids[d.body])
		seen = append(seen, d)
		if d.body == fifoFlaky && d.attempt == 1 {
			if err := post("bob", 6); err != nil {
				return err
			}
		}
	}
	s.checkOrder(seen)
	if err := s.settled(ctx, group, topic, progress{Acked: 5 + 6 + 4, DeadLetters: 1}); err != nil {
		return err
	}
	if err := s.readDeadLetter(ctx, group, fifoPoison, ids[fifoPoison]); err != nil {
		return err
	}
	if err := s.stop(ctx, c, p, topic, strings.Split("abcdefgh", "")...); err != nil {
		return err
	}
	s.assert(len(deliveries) == 0, "%d deliveries, not %d", expected, expected+len(deliveries))
	return nil
}

// checkOrder asserts that every message group came in order, retries included,
// not before their time, and that others flowed meanwhile.
func (s scene) checkOrder(seen []delivery) {
	order := map[string][]string{
		"alice": {"alice 1 (attempt 1)", "alice 2 (attempt 1)", "alice 2 (attempt 2)", "alice 3 (attempt 1)", "alice 4 (attempt 1)", "alice 5 (attempt 1)"},
		"bob":   {"bob 1 (attempt 1)", "bob 2 (attempt 1)", "bob 3 (attempt 1)", "bob 4 (attempt 1)", "bob 5 (attempt 1)", "bob 6 (attempt 1)"},
		"carol": {
			"carol 1 (attempt 1)", "carol 2 (attempt 1)", "carol 3 (attempt 1)", "carol 3 (attempt 2)", "carol 3 (attempt 3)",
			"carol 4 (attempt 1)", "carol 5 (attempt 1)",
		},
	}
	for customer, want := range order {
		var got []string
		var last delivery
		for _, d := range seen {
			if d.group != customer {
				continue
			}
			got = append(got, d.String())
			if waited := d.at.Sub(last.at); d.attempt > 1 {
				s.assert(waited >= interval, "%s not before %v: after %v", d, interval, waited)
				s.say("%s came after %.2fs, the interval is %v", d, waited.Seconds(), interval)
			}
			last = d
		}
		assertEqual(s, "order of message group "+customer, got, want)
		s.say("in order: message group %s", customer)
	}
	late := slices.IndexFunc(seen, func(d delivery) bool { return d.body == fifoLate })
	retry := slices.IndexFunc(seen, func(d delivery) bool { return d.body == fifoFlaky && d.attempt == 2 })
	s.assert(late >= 0 && late < retry, "%s, sent while %s waited for its retry, before that retry: %v", fifoLate, fifoFlaky, seen)
	s.say("%s came while %s waited for its retry", fifoLate, fifoFlaky)
}
