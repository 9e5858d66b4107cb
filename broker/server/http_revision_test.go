package server

import (
	"net/http/httptest"
	"testing"

	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// The header If-Match as in RFC 9110, 13.1.1. The revision is "a"; code 0 means that the change may
// happen.
func TestIfMatch(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		now    string
		code   int
	}{
		"none":             {nil, "a", 0},
		"the same":         {[]string{`"a"`}, "a", 0},
		"another":          {[]string{`"b"`}, "a", 42800},
		"a list":           {[]string{`"b", "a"`}, "a", 0},
		"two headers":      {[]string{`"b"`, `"a"`}, "a", 0},
		"weak":             {[]string{`W/"a"`}, "a", 42800}, // never equal in a strong comparison
		"any":              {[]string{"*"}, "a", 0},
		"any, nothing":     {[]string{"*"}, "", 42800},
		"nothing":          {[]string{`"a"`}, "", 42800},
		"empty, nothing":   {[]string{`""`}, "", 42800},
		"none, nothing":    {nil, "", 0},
		"without quotes":   {[]string{"a"}, "a", 40000},
		"a quote in a tag": {[]string{`"a""`}, "a", 40000},
		"one quote":        {[]string{`"`}, "a", 40000},
		"empty":            {[]string{""}, "a", 40000},
		"any in a list":    {[]string{`"a", *`}, "a", 40000},
	} {
		r := httptest.NewRequest("PUT", "/v1/topics/orders", nil)
		r.Header["If-Match"] = c.header
		may, err := ifMatch(r, "topic", "orders")
		if err == nil && may != nil {
			err = may(c.now)
		}
		code := 0
		if err != nil {
			code = int(refusal.CodeOf(err))
		}
		if code != c.code {
			t.Errorf("%s: %v, want code %d", name, err, c.code)
		}
	}
}
