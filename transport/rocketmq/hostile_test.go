package rocketmq

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A server that sends messages without a handle, or more than the request asked for, does not fill
// the log. The number of skipped lines is in the log.
func TestBrokenMessagesDoNotFillTheLog(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(*rmqpb.Message)
		number int
		line   string
	}{
		"no handle": {func(m *rmqpb.Message) { m.SystemProperties.ReceiptHandle = nil }, 32, "message not received"},
		"too many":  {nil, 33, "more messages than the receive requested"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				var log bytes.Buffer
				c := newClient(t, n, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
					time.Sleep(10 * time.Millisecond)
					st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}})
					for range tt.number {
						st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(tt.broken)}})
					}
					return nil
				}
				r := request1
				r.Max = 32
				for begin := time.Now(); time.Since(begin) < 4*time.Second; {
					if _, err := c.Receive(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
				got := log.String()
				if lines := strings.Count(got, "\n"); lines < 4*maxLines-1 || lines > 5*maxLines || !strings.Contains(got, tt.line) || !strings.Contains(got, "skipped_lines=") {
					t.Errorf("%d lines in 4 s, want about %d a second: %.500s", lines, maxLines, got)
				}
			})
		})
	}
}

// Servers that a route names and that are never used cost neither goroutines nor time at Close.
func TestUnusedServersCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers = 5000
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.route = func() *rmqpb.QueryRouteResponse {
			res := &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(testAddr, "a", 1)}
			for i := range servers {
				res.MessageQueues = append(res.MessageQueues, queues(fmt.Sprintf("10.0.%d.%d:8081", i/250, i%250+1), fmt.Sprint("b", i), 1)...)
			}
			return res
		}
		c := newClient(t, n, nil)
		before := runtime.NumGoroutine()
		if _, err := c.Queues(t.Context(), "g", "orders"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c.known(fmt.Sprintf("10.0.%d.%d:8081", servers/250-1, 250)) == nil {
			t.Fatal("the client does not know the last server of the route")
		}
		if more := runtime.NumGoroutine() - before; more > 100 {
			t.Errorf("%d goroutines for %d servers without a request", more, servers)
		}
	})
}
