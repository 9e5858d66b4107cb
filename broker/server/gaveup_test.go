package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A send that its client cancels while the disk is waited for is no fault of the broker:
// nothing is logged as an error. A failure of the disk at that time is.
func TestCancelledSendIsNoError(t *testing.T) {
	for _, wire := range []string{"gRPC", "HTTP"} {
		for _, disk := range []bool{false, true} {
			if disk && wire == "HTTP" {
				continue // it looks at nothing but the client's end
			}
			synctest.Test(t, func(t *testing.T) {
				log, lines := testLog()
				f := &faulty{append: func(ctx context.Context, _ []engine.Incoming) error {
					<-ctx.Done()
					cause := context.Cause(ctx)
					if disk {
						cause = http.ErrHandlerTimeout // any other one
					}
					return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: cause, Message: "the broker could not write"}
				}}
				x := startWeb(t, server.Options{Logger: log}, f)
				ctx, cancel := context.WithCancel(as(t.Context(), "client"))
				time.AfterFunc(time.Second, cancel) // a deadline would end at both ends at once
				if wire == "gRPC" {
					_, err := x.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}})
					if status.Code(err) != codes.Canceled {
						t.Errorf("%s: %v", wire, err)
					}
				} else if resp, err := x.client.Do(x.request(ctx, "POST", "/v1/topics/normal/messages", strings.NewReader(`{"body":"eA=="}`), "Content-Type", server.TypeJSON)); err == nil {
					resp.Body.Close()
					t.Errorf("%s: status %d for a client that gave up", wire, resp.StatusCode)
				}
				synctest.Wait()
				if got := strings.Contains(lines.String(), "level=ERROR"); got != disk {
					t.Errorf("%s, disk fails %v: logged %q", wire, disk, lines.String())
				}
			})
		}
	}
}

// A throttled request over HTTP has a Retry-After also without consumers, when no wait can be
// estimated.
func TestHTTPThrottledWithoutAnEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		if _, err := x.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := x.b.PutGroup(t.Context(), "g", settings.Group{}); err != nil {
			t.Fatal(err)
		}
		const path = "/v1/topics/full/messages"
		for range 3 {
			var p server.Problem
			resp := x.do(path, `{"body":"eA=="}`, &p)
			resp.Body.Close()
			if resp.StatusCode == 200 {
				continue
			}
			if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "10" || p.RetryAfter != settings.Duration(10*time.Second) {
				t.Errorf("%d, Retry-After %q, %+v; want 429 and 10", resp.StatusCode, resp.Header.Get("Retry-After"), p)
			}
			return
		}
		t.Error("the topic is never full")
	})
}
