package topic

import (
	"encoding/json"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/redelivery"
	"github.com/tidegate/tidegate/broker/settings"
)

// All stored settings of a topic or group are rejected, or can be used.
func FuzzStoredSettings(f *testing.F) {
	f.Add([]byte(`{"id":1,"type":"FIFO","queues":3,"duplicate_window":"1s"}`))
	f.Add([]byte(`{"id":1,"max_attempts":3,"retry":["1s","2s"],"fifo":true}`))
	f.Add([]byte(`{"queues":-1}`))
	f.Fuzz(func(t *testing.T, v []byte) {
		if st, err := DecodeRecord("t", v); err == nil {
			tp := New(Config{ID: st.ID, Name: "t"}, st.Topic)
			if tp.Pick("g") == nil || tp.Settings().IDWindow() < 0 {
				t.Fatalf("the settings are %+v", *tp.Settings())
			}
		}
		if st, err := DecodeGroupRecord("g", v); err == nil {
			c := NewGroup("g", st.ID, st.Group).Settings()
			for _, attempt := range []int{1, 17, 1 << 20} {
				if d := c.Interval(attempt); d < 0 {
					t.Fatalf("the interval after delivery %d is %v", attempt, d)
				}
			}
		}
	})
}

// All valid settings, stored or sent, make a policy within its bounds.
func FuzzAddressSettings(f *testing.F) {
	f.Add(`{"redelivery-delay":5000,"redelivery-delay-multiplier":2,"max-redelivery-delay":15000}`, 3)
	f.Add(`{"redelivery-delay":"876000h","redelivery-collision-avoidance-factor":1,"max-delivery-attempts":-1}`, 1<<30)
	f.Add(`{"redelivery-delay-multiplier":1e308,"redelivery-delay":1}`, -1)
	f.Fuzz(func(t *testing.T, text string, attempt int) {
		var s settings.Address
		if json.Unmarshal([]byte(text), &s) != nil || s.Validate() != nil {
			return
		}
		r := NewAddressPolicy(s).Redelivery
		if r == nil {
			return
		}
		for _, d := range []redelivery.Draw{{}, {Negative: true, Number: .999}, {Number: .999}} {
			if got := r.After(attempt, d); got < 0 || got > r.Longest {
				t.Errorf("%s: after attempt %d with %+v: %v, the maximum is %v", text, attempt, d, got, r.Longest)
			}
		}
		for _, name := range (Policy{&settings.Group{}, NewAddressPolicy(s)}).DeadLetterTopics("g", "orders", false) {
			if name == "orders" || tidegate.ValidateTopic(name) != nil {
				t.Errorf("%s: dead letters go to %q", text, name)
			}
		}
	})
}
