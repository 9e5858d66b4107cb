package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/wire"
)

// Faults around requests over HTTP are those of gRPC, under the same names.
func TestHTTPIntercept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m middleware
		x := startWeb(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return m(ctx, call, next)
		}})
		post := func(ctx context.Context, path, body, accept string) (*http.Response, error) {
			return x.client.Do(x.request(ctx, "POST", path, strings.NewReader(body), "Content-Type", server.TypeJSON, "Accept", accept))
		}
		var seen []server.Call
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			seen = append(seen, call)
			return next(ctx)
		}
		x.ok("/v1/topics/normal/messages", `{"messages":[{"id":"a","body":"eA=="},{"id":"b","body":"eA=="}]}`, nil, wire.HeaderClientID, "c")
		d := x.take("normal", `{"max":2,"push":true}`, 2)[0]
		x.ok("/v1/groups/g/change-invisible-duration", `{"handle":"`+d.Handle+`","invisible_duration":"0s"}`, nil)
		d = x.take("normal", `{}`, 1)[0]
		x.ok("/v1/groups/g/retry", `{"handle":"`+d.Handle+`","after":"0s"}`, nil)
		d = x.take("normal", `{"max":1,"wait":"1s"}`, 1)[0]
		x.ok("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, nil)
		x.failed("/v1/groups/g/dead-letter", `{"handle":"x"}`, 400, 40013)
		x.failed("/v1/topics/normal/recall", `{"recall_handle":"x"}`, 400, 40000)
		want := []string{"SendMessage", "ReceiveMessage", "ChangeInvisibleDuration", "ReceiveMessage", "ChangeInvisibleDuration",
			"ReceiveMessage", "AckMessage", "ForwardMessageToDeadLetterQueue", "RecallMessage"}
		if len(seen) != len(want) {
			t.Fatalf("seen %+v", seen)
		}
		for i, op := range want {
			if seen[i].Op != op {
				t.Errorf("call %d is %+v, want %s", i, seen[i], op)
			}
		}
		if c := seen[0]; c.ClientID != "c" || c.Topic != "normal" || c.Messages != 2 || !slices.Equal(c.MessageIDs, []string{"a", "b"}) {
			t.Errorf("call %+v", c)
		}
		if c := seen[1]; c.Group != "g" || c.Topic != "normal" || c.Messages != 2 || c.ClientID == "" {
			t.Errorf("call %+v", c)
		}

		m = func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Second, Message: "enough"}
		}
		x.failed("/v1/topics/normal/messages", `{"body":"eA=="}`, 429, 42900, "530 TOO_MANY_REQUESTS: enough")
		x.failed("/v1/groups/g/acknowledge", `{"handles":["x"]}`, 429, 42900)
		s := x.sendStream(t.Context(), "normal")
		s.write(`{"id":"s","body":"eA=="}` + "\n")
		if r := s.next(); r.Error == nil || r.Error.Status != 429 || r.ID != "s" || r.Line != 1 {
			t.Errorf("%+v", r)
		}
		// A rejection of next stays unchanged.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error { return next(ctx) }
		x.failed("/v1/groups/g/acknowledge", `{"handles":["x","y"]}`, 400, 40013)
		s.write("{\"id\":\"s\"}\n")
		if r := s.next(); r.Error == nil || r.Error.Code != 41302 {
			t.Errorf("%+v", r)
		}

		// A cut connection, before and in a stream.
		m = func(context.Context, server.Call, func(context.Context) error) error { return errors.New("cable cut") }
		if resp, err := post(t.Context(), "/v1/topics/normal/messages", `{"body":"eA=="}`, ""); err == nil {
			t.Errorf("a response through a cut cable: %s", resp.Status)
		}
		s.write(`{"body":"eA=="}` + "\n")
		if s.out.Scan() || s.out.Err() == nil {
			t.Errorf("a line through a cut cable: %q", s.out.Text())
		}

		// The message is stored, but the response is lost.
		stored := func() int64 {
			topic, err := x.b.Topic("normal")
			if err != nil {
				t.Fatal(err)
			}
			return topic.StoredMessages
		}
		before := stored()
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			next(ctx)
			return server.ErrNoAnswer
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if resp, err := post(ctx, "/v1/topics/normal/messages", `{"body":"eA=="}`, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", resp, err)
		}
		if n := stored(); n != before+1 {
			t.Errorf("%d messages stored, want one more than %d", n, before)
		}
		// Such messages stay in flight; and the server's end is not held up.
		go func() {
			if resp, err := post(t.Context(), "/v1/groups/h/topics/normal/receive", `{"max":32}`, server.TypeNDJSON); err == nil {
				t.Errorf("a response: %s", resp.Status)
			}
		}()
		synctest.Wait()
		x.s.Drain()
		synctest.Wait()
		g, err := x.b.Group("h")
		if err != nil || g.Topics[0].Inflight != before+1 {
			t.Errorf("%+v, %v", g, err)
		}
	})
}

// A panic of the engine becomes an error response, or the end of a stream.
func TestHTTPSurvivesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := testLog()
		x := startWeb(t, server.Options{Logger: logger}, &faulty{poll: func(context.Context) error { panic("ouch") }})
		x.failed("/v1/groups/g/topics/normal/receive", `{}`, 500, 50001, "ouch")
		if !strings.Contains(logged.String(), "ouch") {
			t.Errorf("log %s", logged)
		}
	})
}

func TestHTTPMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
		x.failed("/v1/topics/none/messages", `{"body":"eA=="}`, 404, 40402)
		resp := x.deliveryStream(t.Context(), "normal", `{"max":1}`)
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
		w := httptest.NewRecorder()
		x.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, want := range []string{
			`tidegate_http_answers_total{operation="sendMessages",status="200"} 1`,
			`tidegate_http_answers_total{operation="sendMessages",status="404"} 1`,
			`tidegate_http_answers_total{operation="receiveMessages",status="200"} 1`,
			`tidegate_http_answers_total{operation="acknowledge",status="200"} 0`,
			`tidegate_http_answers_total{operation="retry",status="200"} 0`,
			`tidegate_http_answers_total{operation="deleteTopic",status="204"} 0`,
			`tidegate_http_duration_seconds_count{operation="sendMessages"} 2`,
		} {
			if !strings.Contains(w.Body.String(), want+"\n") {
				t.Errorf("no %s", want)
			}
		}
		if strings.Contains(w.Body.String(), `tidegate_http_duration_seconds_count{operation="receiveMessages"}`) {
			t.Error("a stream has a duration: it lasts as long as the client wants")
		}
		if strings.Contains(w.Body.String(), `{operation="deleteTopic",status="200"}`) {
			t.Error("a status is expected of deleteTopic that it never has")
		}
	})
}

// Every HTTP response is counted with the status that the client got.
func TestHTTPResponsesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		wait := func(ctx context.Context) error { // as an engine that should wait
			<-ctx.Done()
			close(ended)
			return context.Cause(ctx)
		}
		c := someAccess()
		c.Anonymous = []server.Rule{{Actions: []server.Action{server.ActionReceive}, Topics: []string{"normal"}, Groups: []string{"g"}}}
		logger, logged := testLog()
		x := startWeb(t, server.Options{Access: c, Logger: logger}, &faulty{poll: wait})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := x.client.Do(x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{"wait":"10s"}`), "Content-Type", server.TypeJSON))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", resp, err)
		}
		<-ended
		synctest.Wait()
		for _, r := range []struct {
			method, path, key, origin string
			status                    int
		}{
			{"GET", "/v1/topics", "", "", 401},
			{"GET", "/v1/topics", "producer", "", 403},
			{"PUT", "/v1/topics/t", "admin", "https://evil.example", 403},
			{"GET", "/v1/nothing", "admin", "", 404},
			{"PATCH", "/v1/topics", "admin", "", 405},
		} {
			q := httptest.NewRequest(r.method, "https://h"+r.path, nil)
			if r.key != "" {
				q.SetBasicAuth(r.key, secretMark+r.key)
			}
			if r.origin != "" {
				q.Header.Set("Origin", r.origin)
			}
			w := httptest.NewRecorder()
			if x.s.Handler().ServeHTTP(w, q); w.Code != r.status {
				t.Errorf("%+v: %d %s", r, w.Code, w.Body)
			}
		}
		_, text := scrapedBy(t, x.s)
		for _, want := range []string{
			`{operation="receiveMessages",status="cut"} 1`,
			`{operation="listTopics",status="401"} 1`,
			`{operation="listTopics",status="403"} 1`,
			`{operation="putTopic",status="403"} 1`,
			`{operation="other",status="404"} 1`,
			`{operation="other",status="405"} 1`,
		} {
			if !strings.Contains(text, "tidegate_http_answers_total"+want+"\n") {
				t.Errorf("no %s", want)
			}
		}
		if strings.Contains(text, `tidegate_http_answers_total{operation="receiveMessages",status="500"}`) || strings.Contains(logged.String(), "HTTP request failed") {
			t.Errorf("a client that went away is a failure of the broker: %s", logged)
		}
	})
}
