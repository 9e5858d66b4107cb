package broker_test

import (
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Every receipt handle of a client is rejected with 40013, or names a delivery that is there.
func FuzzHandle(f *testing.F) {
	b := open(f, broker.Options{})
	putTopic(f, b, "t", settings.Topic{Queues: 1})
	putGroup(f, b, "g", settings.Group{})
	f.Add(consume.Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 0, Offset: 0}, Serial: 1}.String())
	f.Add(consume.Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 9, Offset: -1}}.String())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		d := &tidegate.Delivery{Handle: s}
		_, retried := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		_, changed := b.Extend(t.Context(), d, time.Second, false)
		for name, err := range map[string]error{
			"ack": b.Ack(t.Context(), []*tidegate.Delivery{d})[0], "retry": retried, "change": changed,
		} {
			if !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Fatalf("%s with handle %q: %v", name, s, err)
			}
		}
		serve(b).Return(t.Context(), []*tidegate.Delivery{d})
	})
}

// Every recall handle of a client is rejected, or names a waiting message.
func FuzzRecallHandle(f *testing.F) {
	b := open(f, broker.Options{})
	putTopic(f, b, "d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
	r := send(f, b, &tidegate.Message{ID: "m", Topic: "d", DeliverAt: time.Now().Add(time.Hour), Body: []byte("x")})[0]
	if r.Err != nil {
		f.Fatal(r.Err)
	}
	f.Add(r.Receipt.RecallHandle[:len(r.Receipt.RecallHandle)-1] + "A")
	f.Add(base64.RawURLEncoding.EncodeToString(make([]byte, 21)))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := b.Recall(t.Context(), "d", s)
		if e := (*tidegate.Error)(nil); s != r.Receipt.RecallHandle &&
			(id != "" || !errors.As(err, &e) || e.Code != tidegate.CodeBadRequest && e.Code != protocol.CodeMessageNotFound) {
			t.Fatalf("recall handle %q: %q, %v", s, id, err)
		}
	})
}
