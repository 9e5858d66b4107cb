package engine

import (
	"encoding/json"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// All stored settings of a topic or group are rejected, or can be used.
func FuzzStoredSettings(f *testing.F) {
	f.Add([]byte(`{"id":1,"type":"FIFO","queues":3,"duplicate_window":"1s"}`))
	f.Add([]byte(`{"id":1,"max_attempts":3,"retry":["1s","2s"],"fifo":true}`))
	f.Add([]byte(`{"queues":-1}`))
	f.Fuzz(func(t *testing.T, v []byte) {
		if st, err := decodeRecord("t", v); err == nil {
			tp := newTopic(TopicConfig{ID: st.ID, Name: "t"}, st.Topic)
			if tp.Pick("g") == nil || tp.Settings().IDWindow() < 0 {
				t.Fatalf("the settings are %+v", *tp.Settings())
			}
		}
		if st, err := decodeGroupRecord("g", v); err == nil {
			c := newGroup("g", st.ID, st.Group).Settings()
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
		r := newAddressPolicy(s).Redelivery
		if r == nil {
			return
		}
		for _, d := range []consume.Draw{{}, {Negative: true, Number: .999}, {Number: .999}} {
			if got := r.After(attempt, d); got < 0 || got > r.Longest {
				t.Errorf("%s: after attempt %d with %+v: %v, the maximum is %v", text, attempt, d, got, r.Longest)
			}
		}
		for _, name := range (Policy{&settings.Group{}, newAddressPolicy(s)}).DeadLetterTopics("g", "orders", false) {
			if name == "orders" || tidegate.ValidateTopic(name) != nil {
				t.Errorf("%s: dead letters go to %q", text, name)
			}
		}
	})
}

// Any text is rejected or is the position of offsets that are not negative; the position has the
// same text again.
func FuzzCursor(f *testing.F) {
	s := &scan{query: &status.MessageQuery{}, readers: []*reader{{from: 7}, {from: 1 << 40}}}
	f.Add(s.cursor(), byte(forward))
	f.Add("AQ", byte(backward))
	f.Fuzz(func(t *testing.T, text string, direction byte) {
		at, err := parse(text, direction)
		if err != nil {
			return
		}
		s := &scan{query: &status.MessageQuery{}}
		for _, n := range at {
			if n < 0 {
				t.Fatalf("%q has the offset %d", text, n)
			}
			s.readers = append(s.readers, &reader{from: n})
		}
		again, err := parse(s.cursor(), forward)
		if err != nil || len(again) != len(at) {
			t.Fatalf("%v becomes %v, %v", at, again, err)
		}
	})
}
