package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// Millions of empty messages are found before they are decoded.
func TestCrowdedJSON(t *testing.T) {
	list := func(n int, of string) string { return "[" + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + "]" }
	for text, want := range map[string]int{
		`{"messages":` + list(3, "{}") + `}`:           -1,
		`{"messages":` + list(4, "{}") + `}`:           12,
		`{"m":[{},{"keys":` + list(4, `""`) + `}]}`:    17,
		`{"a":1,"b":2,"c":3}`:                          -1,
		`{"a":1,"b":2,"c":3,"d":4}`:                    0,
		`{"a":",,,,\",,,,\\","b":"[,,,,"}`:             -1,
		`{"a":"\\",` + `"b":` + list(4, "1") + `}`:     14,
		`{"a":"no end \",,,,,`:                         -1,
		`{"a":"no end \`:                               -1,
		`]]],,,,`:                                      -1,
		`,,,,`:                                         -1,
		strings.Repeat("[", maxNesting+2) + `1,2,3,4,`: -1,
	} {
		if got := crowded([]byte(text), 3); got != want {
			t.Errorf("%.60s: %d, want %d", text, got, want)
		}
	}
	raw := []byte(`{"messages":` + list(5_000_000, "{}") + `}`)
	var err error
	if n := allocated.Bytes(func() {
		err = decodeJSON(raw, new(struct {
			Messages []jsonMessage `json:"messages"`
		}))
	}); n > 1<<20 {
		t.Errorf("5 000 000 messages cost %d bytes", n)
	}
	if refusal.CodeOf(err) != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "16384") || !strings.Contains(err.Error(), "byte 12") {
		t.Errorf("5 000 000 messages: %v", err)
	}
}

// A decoder also finds faults other than lists or objects with too many members.
func FuzzCrowded(f *testing.F) {
	for _, s := range []string{`[1,2,3,4]`, `["\"",[]]`, `[[1,2],[3,4,5]]`, `[["\\",",,,,"],"[,,,"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		const most = 2
		got := crowded(raw, most)
		var v any
		if json.Unmarshal(raw, &v) != nil || bytes.IndexByte(raw, '{') >= 0 {
			return // the keys of an object may repeat
		}
		if want := overfull(v, most); (got >= 0) != want {
			t.Errorf("%q: %d, want %v", raw, got, want)
		}
	})
}

func overfull(v any, most int) bool {
	list, _ := v.([]any)
	for _, x := range list {
		if overfull(x, most) {
			return true
		}
	}
	return len(list) > most
}
