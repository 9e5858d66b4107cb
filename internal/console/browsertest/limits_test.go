package browsertest

import (
	"net/http"
	"strings"
	"testing"
)

// answer sets the response to one path of the API.
func answer(path, text string) siteOptions {
	return siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		})
	}}
}

// Free disk has a minimum: it is near if the free space is little above it.
func TestFreeDiskIsNearFromAbove(t *testing.T) {
	const gib = `073741824`
	for _, c := range []struct {
		value, state, meter string
	}{
		{"60129542144", "not reached", "0.02"}, // 56 GiB
		{"1181116006", "near", "0.91"},         // 1.1 GiB
	} {
		s := start(t, answer("/v1/throttle", `{"throttles":[],"not_reached":[{"limit":"free disk","unit":"bytes","value":`+c.value+`,"mark":1`+gib+`,"resume":1342177280,"on":false}],"limits":{"pressure":{"min_free_disk_bytes":1`+gib+`}},"revision":"1"}`))
		b := open(t, s.url)
		b.load("#/limits")
		state := value[string](b, `document.querySelector('main td .badge').textContent`)
		meter := value[string](b, `document.querySelector('main meter').value.toFixed(2)`)
		title := value[string](b, `document.querySelector('main meter').title`)
		if state != c.state || meter != c.meter {
			t.Errorf("%s bytes free of at least 1 GiB are %q with a bar of %s, want %q and %s", c.value, state, meter, c.state, c.meter)
		}
		if strings.Contains(title, gib[1:]) || !strings.Contains(title, "GiB") {
			t.Errorf("the title of the bar is %q, want units", title)
		}
		if text := b.text(); !strings.Contains(text, "1073741824 (1\u202fGiB)") {
			t.Errorf("the limits of the broker have no unit:\n%s", text)
		}
		b.clean()
	}
}
