package httpapi

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"

	"github.com/tidegate/tidegate/internal/assert"
)

// Every message survives the way to JSON and back.
func FuzzDelivery(f *testing.F) {
	f.Add("id", "tag", "key", "v", []byte("x"), int64(1))
	f.Add("", "", "", "\u2028", []byte{0xff}, int64(-1))
	f.Fuzz(func(t *testing.T, id, tag, key, value string, body []byte, born int64) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		d := &tidegate.Delivery{
			Message: tidegate.Message{
				ID: valid(id), Topic: "t", Tag: valid(tag), Keys: []string{valid(key)}, Properties: map[string]string{valid(key): valid(value)},
				MessageGroup: valid(key), DeliverAt: time.Unix(0, born).UTC(), TraceContext: valid(tag), Body: body,
			},
			Handle: "h", ConsumerGroup: "g", Attempt: 2, Queue: 3, Offset: born, BornAt: time.Unix(0, born).UTC(), BornHost: "b",
			StoredAt: time.Unix(0, born).UTC(), StoreHost: "s", InvisibleUntil: now.Add(time.Duration(1 + born&0xffff)),
		}
		for _, text := range []bool{true, false} {
			raw := assert.Value(json.Marshal(DeliveryOf(d, text, now)))(t)
			var back Delivery
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			if len(back.Body) > 0 && back.BodyText != "" || text && utf8.Valid(body) != (len(back.Body) == 0) {
				t.Errorf("the body %q became %s", body, raw)
			}
			got := back.Delivery("", now)
			if len(got.Body) == 0 {
				got.Body = body[:0]
			}
			assert.That(t, reflect.DeepEqual(got, d), "%+v became %+v by %s", d, got, raw)
		}
	})
}

func valid(s string) string { return strings.ToValidUTF8(s, "") }
