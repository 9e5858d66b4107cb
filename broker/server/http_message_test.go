package server

import (
	"errors"
	"net/http"
	"testing"

	"github.com/tidegate/tidegate"
)

// However a query is, it is a message or a rejection that names the parameter.
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
		if _, err := messageOfQuery(values); err != nil {
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || values[e.Subject] == nil {
				t.Errorf("%q: %v", query, err)
			}
		}
	})
}
