package server_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/server"
)

// An operation without calls has no durations, which are 18 series each: they were 7 of 10 series
// of an idle broker. Its responses are counted from 0 on.
func TestSeriesOfAnIdleBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		byName := map[string]int{}
		for line := range strings.Lines(w.Body.String()) {
			if !strings.HasPrefix(line, "#") {
				name, _, _ := strings.Cut(line, "{")
				name, _, _ = strings.Cut(name, " ")
				byName[name]++
			}
		}
		for _, name := range []string{"tidegate_http_duration_seconds_bucket", "tidegate_rpc_duration_seconds_bucket"} {
			if n := byName[name]; n != 0 {
				t.Errorf("%d series %s before the first request", n, name)
			}
		}
		if byName["tidegate_http_answers_total"] < 30 || byName["tidegate_rpc_answers_total"] != 17 {
			t.Errorf("%d and %d counters of responses; want one for each operation", byName["tidegate_http_answers_total"], byName["tidegate_rpc_answers_total"])
		}
	})
}
