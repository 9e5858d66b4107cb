package browse

import (
	"testing"

	"github.com/tidegate/tidegate/broker/status"
)

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
