package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// BenchmarkSubjects prints the bytes and the CPU time of responses about a broker with 10 000
// topics, 1 000 groups and 10 000 subscriptions: idle, and with 11 000 clients and one message in
// flight in each subscription.
func BenchmarkSubjects(b *testing.B) {
	e := start(b, server.Options{})
	e.s.WrapHTTP(func(h http.Handler) http.Handler { return h }) // without the checks of tests
	receive := func(client string, i int) {
		b.Helper()
		r := httptest.NewRequest("POST", fmt.Sprintf("/v1/groups/group-%04d/topics/topic-%05d/receive", i%1000, i), strings.NewReader(`{"invisible_duration": "1h"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Mq-Client-Id", client)
		w := e.serve(r)
		assert.MustThat(b, w.Code == 200, "%d: %s", w.Code, w.Body)
	}
	const topics = 10_000
	for i := range topics {
		assert.Must(b, assert.Err(e.b.PutTopic(b.Context(), fmt.Sprintf("topic-%05d", i), settings.Topic{Queues: 1})))
		r := transport.ReceiveRequest{Group: fmt.Sprintf("group-%04d", i%1000), Topic: fmt.Sprintf("topic-%05d", i), Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}
		assert.Must(b, assert.Err(e.b.Receive(b.Context(), r)))
	}
	b.Run("idle", e.benchmarkSubjects)
	for i := range topics {
		msg := &tidegate.Message{ID: fmt.Sprintf("%032X", i), Topic: fmt.Sprintf("topic-%05d", i), Body: []byte("x")}
		assert.Must(b, e.b.Send(b.Context(), []*tidegate.Message{msg})[0].Err)
		receive(fmt.Sprintf("worker-%04d.example.com@12345@0@3f8k2n9x1q", i%1000), i)
	}
	for i := range topics {
		receive(fmt.Sprintf("idle-%05d.example.com@12345@0@3f8k2n9x1q", i), 0)
	}
	b.Run("in flight", e.benchmarkSubjects)
}

func (e *env) benchmarkSubjects(b *testing.B) {
	h := e.s.Handler()
	measure := func(name string, run func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				run(b)
			}
			b.ReportMetric(float64(cpu(b)-before)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
	measure("survey", func(*testing.B) { e.s.Survey() })
	for _, path := range subjectPaths {
		measure(strings.ReplaceAll(path[1:], "/", "_"), func(b *testing.B) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			assert.MustThat(b, w.Code == 200, "%d: %s", w.Code, w.Body)
			b.ReportMetric(float64(w.Body.Len())/1e3, "KB")
		})
	}
}

var subjectPaths = []string{"/metrics", "/metrics?totals=only", "/v1/topics", "/v1/groups", "/v1/topics?limit=100", "/v1/groups?limit=100", "/v1/overview",
	"/v1/topics?view=summary&sort=-backlog", "/v1/groups?view=summary&sort=-age&limit=100"}

// cpu returns the CPU time of the process in nanoseconds.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	assert.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
