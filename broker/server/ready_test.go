package server_test

import (
	"context"
	"io"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	enginefail "github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
)

// After a read of the store failed, the broker is not ready for a while, over gRPC and HTTP alike.
func TestNotReadyAfterFailedReads(t *testing.T) {
	for name, receive := range map[string]func(x *webEnv){
		"gRPC": func(x *webEnv) { _, _ = frames(x.ReceiveMessage(x.ctx(), receiveRequest("normal"))) },
		"HTTP": func(x *webEnv) { x.do("/v1/groups/g/topics/normal/receive", `{}`, nil) }, //nolint:bodyclose // do closes it
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &faulty{}
			x := startWeb(t, server.Options{}, f)
			ready := func(when string, want int) {
				t.Helper()
				resp, err := x.client.Do(x.request(t.Context(), "GET", "/readyz", nil))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				if resp.Body.Close(); resp.StatusCode != want {
					t.Errorf("%s, %s: %d %s, want %d", name, when, resp.StatusCode, body, want)
				}
			}
			f.poll = func(context.Context) error { return enginefail.Closed() }
			receive(x)
			ready("after the end of the engine, which Healthy reports", http.StatusOK)
			f.poll = func(context.Context) error { return enginefail.InvalidHandle("none") }
			receive(x)
			ready("after a request that was wrong", http.StatusOK)
			f.poll = func(context.Context) error { return enginefail.Store(syscall.EIO) }
			receive(x)
			ready("after a failed read", http.StatusServiceUnavailable)
			for range 29 { // and probes do not prolong it
				time.Sleep(time.Second)
				ready("within 30 s", http.StatusServiceUnavailable)
			}
			time.Sleep(2 * time.Second)
			ready("31 s later", http.StatusOK)
		})
	}
}
