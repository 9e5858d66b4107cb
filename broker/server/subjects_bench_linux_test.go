package server_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// BenchmarkSubjects prints the bytes and the CPU time of responses about a broker with 10 000
// topics, 1 000 groups and 10 000 subscriptions.
func BenchmarkSubjects(b *testing.B) {
	e := start(b, server.Options{})
	for i := range 10_000 {
		if _, err := e.b.PutTopic(b.Context(), fmt.Sprintf("topic-%05d", i), settings.Topic{Queues: 1}); err != nil {
			b.Fatal(err)
		}
		r := transport.ReceiveRequest{Group: fmt.Sprintf("group-%04d", i%1000), Topic: fmt.Sprintf("topic-%05d", i), Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}
		if _, err := e.b.Receive(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	h := e.s.Handler()
	b.Run("survey", func(b *testing.B) {
		before := cpu(b)
		for b.Loop() {
			e.s.Parts().Engine.Survey()
		}
		b.ReportMetric(float64(cpu(b)-before)/1e6/float64(b.N), "cpu-ms/op")
	})
	for _, path := range subjectPaths {
		b.Run(strings.ReplaceAll(path[1:], "/", "_"), func(b *testing.B) {
			var bytes int
			before := cpu(b)
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				if bytes = w.Body.Len(); w.Code != 200 {
					b.Fatalf("%d: %s", w.Code, w.Body)
				}
			}
			b.ReportMetric(float64(bytes)/1e3, "KB")
			b.ReportMetric(float64(cpu(b)-before)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}

var subjectPaths = []string{"/metrics", "/metrics?totals=only", "/v1/topics", "/v1/groups", "/v1/topics?limit=100", "/v1/groups?limit=100", "/v1/overview",
	"/v1/topics?view=summary&sort=-backlog", "/v1/groups?view=summary&sort=-age&limit=100"}

// cpu returns the CPU time of the process in nanoseconds.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
