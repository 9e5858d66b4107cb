package consume

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// Clients keep handles while the broker restarts with another version, so the meaning of a handle
// must not change.
func TestTexts(t *testing.T) {
	due := time.Unix(0, 1_700_000_000_000_000_001)
	for _, c := range []struct{ want, text string }{
		{"AQAAAAIAAAADAAQAAAAAAAAABQAAAAY", Handle{Group: 2, Place: store.Place{Topic: 3, Queue: 4, Offset: 5}, Serial: 6}.String()},
		{
			"Af____________________________8",
			Handle{Group: math.MaxUint32, Place: store.Place{Topic: math.MaxUint32, Queue: math.MaxUint16, Offset: -1}, Serial: math.MaxUint32}.String(),
		},
		{"AReXnP42KgABAAAAAwAAAAAAAAAH", RecallHandle(store.Delayed{Due: due, Topic: 3, Number: 7})},
		{"AQAAAAMAAAAAAAAACA", TransactionID(store.HalfID{Topic: 3, Number: 8})},
	} {
		if c.text != c.want {
			t.Errorf("it is %q, want %q", c.text, c.want)
		}
	}
	if r, err := ParseHandle("AQAAAAIAAAADAAQAAAAAAAAABQAAAAY"); err != nil || r != (Handle{Group: 2, Place: store.Place{Topic: 3, Queue: 4, Offset: 5}, Serial: 6}) {
		t.Errorf("the receipt handle is read as %+v, %v", r, err)
	}
	if d, err := ParseRecallHandle("AReXnP42KgABAAAAAwAAAAAAAAAH"); err != nil || !d.Due.Equal(due) || d.Topic != 3 || d.Number != 7 {
		t.Errorf("the recall handle is read as %+v, %v", d, err)
	}
	if id, err := ParseTransactionID("AQAAAAMAAAAAAAAACA"); err != nil || id != (store.HalfID{Topic: 3, Number: 8}) {
		t.Errorf("the transaction ID is read as %+v, %v", id, err)
	}
}

func TestForeignHandles(t *testing.T) {
	parsers := map[string]func(string) error{
		"receipt":     func(s string) error { _, err := ParseHandle(s); return err },
		"recall":      func(s string) error { _, err := ParseRecallHandle(s); return err },
		"transaction": func(s string) error { _, err := ParseTransactionID(s); return err },
	}
	for text, want := range map[string]string{
		"":                                 "it has 0 characters",
		"AQAAAAMAAAAAAAAACAA":              "it has 19 characters",
		"AgAAAAEAAAAAAAAAAg":               "", // another version
		"AQAAAAEAAAAAAAAAA_":               "", // bits after the end
		"AQAAAAEAAAA\r\r\r\r\r\rg":         "", // the decoder skips line breaks
		"AQAAAAIAAAAB\rAn__________wAAAAA": "", // the same in a receipt handle
		"AReXnP42KgAB+AAAAwAAAAAAAAAH":     "", // the other base64
	} {
		for kind, parse := range parsers {
			err := parse(text)
			if !errors.Is(err, errForeign) {
				t.Errorf("%q as a %s: %v", text, kind, err)
			} else if want != "" && !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%q as a %s: %v; want %q at the end", text, kind, err, want)
			}
		}
	}
}

// Each text is valid as one kind of handle at most, and is encoded as the same text again.
func FuzzParse(f *testing.F) {
	f.Add(Handle{Group: 2, Place: store.Place{Topic: 1}, Serial: 1}.String())
	f.Add(Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 9, Offset: -1}}.String())
	f.Add(RecallHandle(store.Delayed{Due: time.Unix(0, -1), Topic: 1, Number: 1}))
	f.Add(TransactionID(store.HalfID{Topic: 1, Number: 2}))
	f.Add("AQAAAAEAAAA\r\r\r\r\r\rg")
	f.Add("AQAAAAIAAAAB\rAn__________wAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		kinds := 0
		same := func(err error, again func() string) {
			if err != nil {
				return
			}
			kinds++
			if got := again(); got != text {
				t.Errorf("%q is read, and written as %q", text, got)
			}
		}
		r, err := ParseHandle(text)
		same(err, r.String)
		d, err := ParseRecallHandle(text)
		same(err, func() string { return RecallHandle(d) })
		id, err := ParseTransactionID(text)
		same(err, func() string { return TransactionID(id) })
		if kinds > 1 {
			t.Errorf("%q is read as %d kinds", text, kinds)
		}
	})
}
