package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"

	"github.com/tidegate/tidegate/broker/settings"
)

// The settings of the scene transaction: when the broker asks about a
// transaction first, and how long it waits until it asks again.
const (
	checkAfter    = 2 * time.Second
	checkInterval = time.Second
)

// transaction sends half messages: one is committed, one is rolled back, and one is left
// unresolved, as by a producer that crashed. The broker sends transaction checks for that one. The
// checker returns unknown at first, and then commit.
func (s scene) transaction(ctx context.Context) error {
	topic, err := s.topic(ctx, "transfers", settings.Topic{
		Type: settings.TopicTransaction, Queues: 2, Transaction: settings.Transaction{Timeout: settings.Duration(checkAfter), CheckInterval: settings.Duration(checkInterval)},
	})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "ledger", settings.Group{})
	if err != nil {
		return err
	}
	checks := make(chan delivery, 100)
	var asked atomic.Int32
	checker := &rmq.TransactionChecker{Check: func(mv *rmq.MessageView) rmq.TransactionResolution {
		checks <- deliveryOf(mv)
		if asked.Add(1) == 1 {
			return rmq.UNKNOWN
		}
		return rmq.COMMIT
	}}
	p, err := rmq.NewProducer(s.config(""), rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	if err != nil {
		return err
	}
	if err := starting(ctx, "producer of "+topic, p.Start); err != nil {
		return err
	}
	defer p.GracefulStop()
	c, err := s.simpleConsumer(ctx, group, topic)
	if err != nil {
		return err
	}
	defer c.GracefulStop()

	sent := map[string]time.Time{}
	ids := map[string]string{}
	begin := func(body string) (rmq.Transaction, error) {
		tx := p.BeginTransaction()
		m := &rmq.Message{Topic: topic, Body: []byte(body)}
		m.SetKeys(body)
		m.AddProperty("currency", "EUR")
		receipts, err := p.SendWithTransaction(ctx, m, tx)
		if err != nil {
			return nil, fmt.Errorf("sending the half message %q: %w", body, err)
		}
		if len(receipts) != 1 || receipts[0].TransactionId == "" {
			return nil, fmt.Errorf("sending the half message %q: want one receipt with a transaction ID, got %+v", body, receipts)
		}
		sent[body], ids[body] = time.Now(), receipts[0].MessageID
		return tx, nil
	}
	const orphan, committed, rolledBack = "transfer 1", "transfer 2", "transfer 3"
	if _, err := begin(orphan); err != nil {
		return err
	}
	txCommitted, err := begin(committed)
	if err != nil {
		return err
	}
	txRolledBack, err := begin(rolledBack)
	if err != nil {
		return err
	}
	if _, err := p.Send(ctx, &rmq.Message{Topic: topic, Body: []byte("not in a transaction")}); err == nil {
		s.assert(false, "the topic takes half messages only")
	}
	s.say("sent 3 half messages to %s", topic)

	if err := txRolledBack.RollBack(); err != nil {
		return err
	}
	if err := txCommitted.Commit(); err != nil {
		return err
	}
	s.say("committed %s, rolled back %s, left %s alone", committed, rolledBack, orphan)
	err = txCommitted.Commit()
	s.assert(codeOf(err) == codeNoTransaction, "a second commit of %s is rejected: %v", committed, err)

	var got []string
	for _, want := range []string{committed, orphan} {
		mvs, err := receive(ctx, c, 1)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, got)
		}
		d := deliveryOf(mvs[0])
		got = append(got, d.body)
		s.say("delivered: %s", d)
		s.checkContent(d, message{body: want, keys: []string{want}, properties: map[string]string{"currency": "EUR"}}, ids[want])
		if err := c.Ack(ctx, mvs[0]); err != nil {
			return err
		}
	}
	assertEqual(s, "delivered transactions", got, []string{committed, orphan})

	for i, after := range []time.Duration{checkAfter, checkAfter + checkInterval} {
		d, err := next(ctx, checks)
		if err != nil {
			return fmt.Errorf("waiting for check %d: %w", i+1, err)
		}
		waited := d.at.Sub(sent[orphan])
		s.assert(d.body == orphan && d.id == ids[orphan] && slices.Equal(d.keys, []string{orphan}) && d.properties["currency"] == "EUR" &&
			d.properties["TRANSACTION_CHECK_TIMES"] == fmt.Sprint(i+1), "check %d of %s with all that it has: %+v", i+1, orphan, d)
		// The response to the send arrived a little after the broker began to count.
		s.assert(waited > after-500*time.Millisecond, "check %d not before %v: after %v", i+1, after, waited)
		s.say("asked about %s after %.2fs, for the %d. time", d.body, waited.Seconds(), i+1)
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 2}); err != nil {
		return err
	}
	s.assert(len(checks) == 0, "2 checks, not %d", 2+len(checks))
	return nil
}
