package interop

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// Messages keep their ID, tag, keys and properties in every kind of send. A RocketMQ does not
// announce Capabilities.Batch, so each message travels in a request of its own.
func TestSend(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		p := x.producer(producer.Options{})
		const each = 20
		sent := map[string]string{}
		message := func(how string, i int) *tidegate.Message {
			m := &tidegate.Message{
				ID: tidegate.NewMessageID(), Topic: sub.Topic, Tag: fmt.Sprint(how, i), Keys: []string{fmt.Sprint("key", i)},
				Properties: map[string]string{"how": how}, Body: fmt.Append(nil, how, " ", i),
			}
			sent[m.ID] = fmt.Sprint(m.Tag, m.Keys, m.Properties, string(m.Body))
			return m
		}
		results := make(chan error, each)
		var batch []*tidegate.Message
		for i := range each {
			r := x.send(p, message("send", i))
			assert.That(t, r.Attempts == 1 && r.RecallHandle == "" && r.TransactionID == "", "receipt %+v", r)
			assert.Must(t, p.SendAsync(x.ctx, message("async", i), func(_ tidegate.Receipt, err error) { results <- err }))
			batch = append(batch, message("batch", i))
		}
		for range each {
			assert.NoError(t, <-results)
		}
		for i, r := range p.SendBatch(x.ctx, batch) {
			assert.That(t, r.Err == nil && r.Receipt.MessageID == batch[i].ID, "message %d of the batch: %+v", i, r)
		}
		for _, d := range x.take(sub, 3*each) {
			got := fmt.Sprint(d.Tag, d.Keys, d.Properties, string(d.Body))
			assert.That(t, got == sent[d.ID], "message %s: received %s, sent %s", d.ID, got, sent[d.ID])
			delete(sent, d.ID)
		}
		assert.Equal(t, "capabilities", x.client.Capabilities(""), x.server.Capabilities)
		a, err := p.Shutdown(x.ctx)
		assert.That(t, err == nil && a.Delivered == 3*each && a.Failed == 0, "accounts %+v, %v", a, err)
	})
}

// The SDK rejects messages that the server would reject or wrongly accept. It sends no request for
// them, and returns the same code for every server.
func TestSendRejected(t *testing.T) {
	on(t, func(x *target) {
		p := x.producer(producer.Options{})
		normal, fifo := x.topic("orders", settings.TopicNormal), x.topic("lines", settings.TopicFIFO)
		for name, c := range map[string]struct {
			msg    tidegate.Message
			code   tidegate.Code
			reason producer.StopReason
		}{
			"no body":        {tidegate.Message{Topic: normal}, protocol.CodeMessageBodyEmpty, producer.StopInvalid},
			"late delivery":  {tidegate.Message{Topic: normal, DeliverAt: time.Now().Add(25 * time.Hour)}, protocol.CodeIllegalDeliveryTime, producer.StopInvalid},
			"empty property": {tidegate.Message{Topic: normal, Properties: map[string]string{"k": ""}}, protocol.CodeIllegalMessagePropertyKey, producer.StopInvalid},
			"a group":        {tidegate.Message{Topic: normal, MessageGroup: "g"}, protocol.CodeMessagePropertyConflict, producer.StopPermanent},
			"no group":       {tidegate.Message{Topic: fifo}, protocol.CodeMessagePropertyConflict, producer.StopPermanent},
			"no topic":       {tidegate.Message{Topic: x.name("nowhere")}, tidegate.CodeTopicNotFound, producer.StopPermanent},
		} {
			if name != "no body" {
				c.msg.Body = []byte("x")
			}
			_, err := p.Send(x.ctx, &c.msg)
			send, ok := errors.AsType[*producer.SendError](err)
			assert.That(t, ok && send.Reason == c.reason && !send.MaybeStored,
				"%s: %v, want the reason %q and nothing stored", name, err, c.reason)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != c.code {
				t.Errorf("%s: %v, want %d %s", name, err, int(c.code), c.code)
			}
		}
		assert.NoError(t, x.client.Ping(x.ctx, normal))
		err := x.client.Ping(x.ctx, x.name("nowhere"))
		assert.That(t, errors.Is(err, tidegate.ErrTopicNotFound), "Ping of a topic that is missing: %v", err)
	})
}

// A delayed message is delivered at its time. If the server cannot recall it, the receipt has no
// handle, and Recall fails with CodeNotImplemented; if the server forbids it, CodeForbidden.
func TestDelayAndRecall(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("later", settings.TopicDelay)}
		p := x.producer(producer.Options{})
		unit := time.Second
		if x.real != nil {
			unit = 10 * time.Second // on a busy machine a message that is due earlier can be sent too late for a recall
		}
		recalled := x.send(p, &tidegate.Message{Topic: sub.Topic, Body: []byte("recalled"), DeliverAt: time.Now().Add(4 * unit)})
		at := time.Now().Add(5 * unit)
		delayed := x.send(p, &tidegate.Message{Topic: sub.Topic, Body: []byte("kept"), DeliverAt: at})
		assert.Equal(t, "the offset of a delayed message is before it is delivered", recalled.Offset, -1)
		want := []string{delayed.MessageID}
		if x.server.Recall {
			id, err := p.Recall(x.ctx, sub.Topic, recalled.RecallHandle)
			assert.That(t, err == nil && id == recalled.MessageID, "recalled %q, %v", id, err)
		} else {
			want = []string{recalled.MessageID, delayed.MessageID}
			handle, code := "handle", tidegate.CodeNotImplemented
			forbidden := x.real != nil && knowsRecall(x.real.Options())
			if forbidden {
				handle, code = recalled.RecallHandle, tidegate.CodeForbidden
			}
			_, err := p.Recall(x.ctx, sub.Topic, handle)
			e, ok := errors.AsType[*tidegate.Error](err)
			if !ok || e.Code != code || e.MaybeStored || (recalled.RecallHandle != "") != forbidden {
				t.Errorf("Recall with the handle %q of the receipt: %v, want %s, and a handle: %v", recalled.RecallHandle, err, code, forbidden)
			}
		}
		var got []string
		for _, d := range x.take(sub, len(want)) {
			got = append(got, d.ID)
			assert.That(t, d.ID != delayed.MessageID || !time.Now().Before(at.Add(-10*time.Millisecond)),
				"delivered %v early", time.Until(at))
		}
		assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "received %v, want %v", got, want)
	})
}

// Consumers receive messages of committed transactions only. The server requests the resolution of
// a transaction that its producer left open.
func TestTransactions(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("payments", settings.TopicTransaction)}
		var checks atomic.Int64
		p := x.producer(producer.Options{Checker: func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
			checks.Add(1)
			assert.That(t, string(c.Message.Body) == "open", "the server asks about %q", c.Message.Body)
			return transport.Commit
		}})
		begin := func(body string) *producer.Transaction {
			tx := assert.Value(p.Begin(x.ctx, &tidegate.Message{Topic: sub.Topic, Body: []byte(body)}))(t)
			assert.That(t, tx.Receipt().TransactionID != "", "receipt %+v has no transaction ID", tx.Receipt())
			return tx
		}
		ctx, cancel := context.WithCancel(x.ctx)
		served := make(chan error, 1)
		go func() { served <- p.ServeChecks(ctx, sub.Topic) }()
		assert.NoError(t, begin("rolled back").Rollback(x.ctx))
		assert.NoError(t, begin("committed").Commit(x.ctx))
		begin("open")
		for _, want := range []string{"committed", "open"} {
			d := x.take(sub, 1)[0]
			assert.That(t, string(d.Body) == want && d.TransactionID != "" && len(d.Properties) == 0,
				"received %q with the transaction ID %q and the properties %v, want %q", d.Body, d.TransactionID, d.Properties, want)
		}
		assert.Equal(t, "the server asked times", checks.Load(), 1)
		cancel()
		assert.NoError(t, <-served, "ServeChecks")
	})
}
