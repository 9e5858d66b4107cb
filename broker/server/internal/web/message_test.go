package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

// Every message survives the way to JSON and back.
func FuzzDelivery(f *testing.F) {
	f.Add("id", "tag", "key", "v", []byte("x"), int64(1))
	f.Add("", "", "", "\u2028", []byte{0xff}, int64(-1))
	f.Fuzz(func(t *testing.T, id, tag, key, value string, body []byte, born int64) {
		d := &tidegate.Delivery{Message: tidegate.Message{
			ID: valid(id), Tag: valid(tag), Keys: []string{valid(key)}, Properties: map[string]string{valid(key): valid(value)}, Body: body,
		}, BornAt: time.Unix(0, born).UTC()}
		for _, text := range []bool{true, false} {
			raw, err := json.Marshal(DeliveryOf(d, text, time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			var back Delivery
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			var got []byte
			if back.BodyText != nil {
				got = []byte(*back.BodyText)
			} else if back.Body != nil {
				got = *back.Body
			}
			if back.ID != d.ID || back.Tag != d.Tag || back.Keys[0] != d.Keys[0] || back.Properties[d.Keys[0]] != valid(value) ||
				!bytes.Equal(got, body) || !back.BornAt.Equal(d.BornAt) {
				t.Errorf("%+v became %s", d, raw)
			}
		}
	})
}

func valid(s string) string { return strings.ToValidUTF8(s, "") }

// However a query is, it is a message or a refusal that names the parameter.
func FuzzHTTPQuery(f *testing.F) {
	f.Add("id=a&key=b&key=c&property.x=y&deliver_after=1s")
	f.Add("tag=a&tag=b")
	f.Add("deliver_at=&=&property.")
	f.Fuzz(func(t *testing.T, query string) {
		r, err := http.NewRequest("POST", "http://h/?", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		values := r.URL.Query()
		if _, err := MessageOfQuery(values); err != nil {
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || values[e.Subject] == nil {
				t.Errorf("%q: %v", query, err)
			}
		}
	})
}
