package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

type middleware = func(ctx context.Context, call server.Call, next func(context.Context) error) error

func TestIntercept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m middleware
		e := start(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return m(ctx, call, next)
		}})
		send := func(ctx context.Context, id string) (*rmqpb.SendMessageResponse, error) {
			return e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", id), msg("normal", id+"'")}})
		}
		stored := func() int64 {
			topic := assert.Value(e.b.Topic("normal"))(t)
			return topic.StoredMessages
		}

		var seen []server.Call
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			seen = append(seen, call)
			time.Sleep(time.Second)
			return next(ctx)
		}
		began := time.Now()
		if r, err := send(e.ctx(), "a"); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 2 {
			t.Fatal(r, err)
		}
		assert.Equal(t, "delayed by", time.Since(began), time.Second)
		if c := seen[0]; c.Op != "SendMessage" || c.ClientID != "client" || c.Topic != "normal" || c.Messages != 2 || !slices.Equal(c.MessageIDs, []string{"a", "a'"}) {
			t.Errorf("call %+v", c)
		}

		m = func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Second, Message: "enough"}
		}
		r, err := send(e.ctx(), "refused")
		assert.Must(t, err)
		refused(t, r.GetStatus(), tidegate.CodeTooManyRequests, "530 TOO_MANY_REQUESTS: enough")
		assert.Equal(t, "messages stored after a refusal", stored(), 2)

		// The message is stored, but the response is lost.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			assert.NoError(t, next(ctx))
			return server.ErrNoAnswer
		}
		ctx, cancel := context.WithTimeout(e.ctx(), 3*time.Second)
		defer cancel()
		began = time.Now()
		if _, err := send(ctx, "lost"); status.Code(err) != codes.DeadlineExceeded || time.Since(began) != 3*time.Second {
			t.Errorf("no response: %v after %v", err, time.Since(began))
		}
		assert.Equal(t, "messages stored after a lost response", stored(), 4)

		m = func(context.Context, server.Call, func(context.Context) error) error { return errors.New("cable cut") }
		assert.Equal(t, "killed", status.Code(assert.Err(send(e.ctx(), "x"))), codes.Unavailable)
		m = func(context.Context, server.Call, func(context.Context) error) error { panic("ouch") }
		r, err = send(e.ctx(), "x")
		assert.Must(t, err)
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "ouch")
		m = func(context.Context, server.Call, func(context.Context) error) error { return nil }
		r, err = send(e.ctx(), "x")
		assert.Must(t, err)
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "next")

		// next reports the response that follows, and it stays unchanged.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			err := next(ctx)
			assert.That(t, errors.Is(err, tidegate.ErrInvalidHandle), "next returned %v; want an invalid handle", err)
			return err
		}
		ack, err := e.AckMessage(e.ctx(), &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: "x"}}})
		if err != nil || len(ack.GetEntries()) != 1 {
			t.Fatal(ack, err)
		}
		refused(t, ack.GetStatus(), tidegate.CodeInvalidReceiptHandle)

		// A duplicate of a request.
		m = func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			next(ctx)
			return next(ctx)
		}
		if r, err := send(e.ctx(), "twice"); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Fatal(r, err)
		}
		assert.Equal(t, "messages stored after a duplicate", stored(), 8)
	})
}

// Messages whose response was lost stay in flight until their invisible time ends.
func TestInterceptReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m middleware
		e := start(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return m(ctx, call, next)
		}})
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error { return next(ctx) }
		e.send(msg("normal", "1"))

		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op != "ReceiveMessage" || call.Group != "g" || call.Topic != "normal" || call.Messages != 32 {
				t.Errorf("call %+v", call)
			}
			assert.NoError(t, next(ctx))
			return server.ErrNoAnswer
		}
		ctx, cancel := context.WithTimeout(e.ctx(), 10*time.Second)
		defer cancel()
		fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal", polling(5*time.Second), invisible(25*time.Second))))
		if status.Code(err) != codes.DeadlineExceeded || len(fs) != 0 {
			t.Errorf("%d frames, %v; want none before the deadline", len(fs), err)
		}
		m = func(ctx context.Context, call server.Call, next func(context.Context) error) error { return next(ctx) }
		began := time.Now()
		got := e.one(e.ctx(), receiveRequest("normal"))
		if d := time.Since(began); d != 15*time.Second || got.GetSystemProperties().GetDeliveryAttempt() != 2 {
			t.Errorf("attempt %d after %v; want 2 after 15s", got.GetSystemProperties().GetDeliveryAttempt(), d)
		}
		m = func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeForbidden, Message: "not you"}
		}
		st, ms := e.receive(e.ctx(), receiveRequest("normal"))
		refused(t, st, tidegate.CodeForbidden, "not you")
		assert.Equal(t, "messages", len(ms), 0)
	})
}

// A request without a response does not delay the end of the server.
func TestNoResponseAtShutdown(t *testing.T) {
	withServer(t, server.Options{Intercept: func(context.Context, server.Call, func(context.Context) error) error { return server.ErrNoAnswer }}, func(t *testing.T, e *env) {
		go e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("normal")})
		synctest.Wait()
		began := time.Now()
		if err := e.s.Shutdown(t.Context()); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// If the rules change during a delayed receive, the receive does not wait: it returns empty, and
// the broker checks the next one by the new rules.
func TestNewRulesWhileAReceiveIsHeldUp(t *testing.T) {
	for name, rules := range map[string]server.AccessConfig{"without the key": {Keys: someAccess().Keys[:1]}, "as before": someAccess()} {
		synctest.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			e := start(t, server.Options{Access: someAccess(), Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op == "ReceiveMessage" {
					<-goOn
				}
				return next(ctx)
			}})
			type answer struct {
				st *rmqpb.Status
				ms []*rmqpb.Message
			}
			got := make(chan answer, 1)
			go func() {
				st, ms := e.receive(signed(t.Context(), "consumer"), receiveRequest("normal"))
				got <- answer{st, ms}
			}()
			synctest.Wait()
			assert.Must(t, e.s.SetAccess(rules))
			close(goOn)
			synctest.Wait()
			r := assert.Value(e.SendMessage(signed(t.Context(), "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}}))(t)
			refused(named{t, name}, r.GetStatus(), protocol.CodeOK)
			a := <-got
			if refused(named{t, name}, a.st, protocol.CodeMessageNotFound); len(a.ms) != 0 {
				t.Errorf("%s: %d messages are delivered", name, len(a.ms))
			}
		})
	}
}

// A request that ends with a gRPC status is logged with it.
func TestGRPCErrorText(t *testing.T) {
	err := error(&refusal.Cut{Status: status.Error(codes.Unavailable, "the broker is closed")})
	if want := "rpc error: code = Unavailable desc = the broker is closed"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

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
		assert.MustThat(t, len(seen) == len(want), "seen %+v", seen)
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
			topic := assert.Value(x.b.Topic("normal"))(t)
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
		assert.That(t, err == nil && g.Topics[0].Inflight == before+1, "%+v, %v", g, err)
	})
}

func TestHTTPMetrics(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
		x.failed("/v1/topics/none/messages", `{"body":"eA=="}`, 404, 40402)
		resp := x.deliveryStream(t.Context(), "normal", `{"max":1}`)
		assert.NoError(t, assert.Err(io.ReadAll(resp.Body)))
		w := x.serve(httptest.NewRequest("GET", "/metrics", nil))
		for _, want := range []string{
			`tidegate_http_answers_total{operation="sendMessages",status="200"} 1`,
			`tidegate_http_answers_total{operation="sendMessages",status="404"} 1`,
			`tidegate_http_answers_total{operation="receiveMessages",status="200"} 1`,
			`tidegate_http_answers_total{operation="acknowledge",status="200"} 0`,
			`tidegate_http_answers_total{operation="retry",status="200"} 0`,
			`tidegate_http_answers_total{operation="deleteTopic",status="204"} 0`,
			`tidegate_http_duration_seconds_count{operation="sendMessages"} 2`,
		} {
			assert.That(t, strings.Contains(w.Body.String(), want+"\n"), "no %s", want)
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
		c.Anonymous = []server.Rule{{Actions: []server.Action{"receive"}, Topics: []string{"normal"}, Groups: []string{"g"}}}
		logger, logged := testLog()
		x := startWeb(t, server.Options{Access: c, Logger: logger}, &faulty{poll: wait})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := x.client.Do(x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{"wait":"10s"}`), "Content-Type", server.TypeJSON))
		assert.That(t, errors.Is(err, context.DeadlineExceeded), "%v, %v", resp, err)
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
			w := x.serve(q)
			assert.That(t, w.Code == r.status, "%+v: %d %s", r, w.Code, w.Body)
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
			assert.That(t, strings.Contains(text, "tidegate_http_answers_total"+want+"\n"), "no %s", want)
		}
		if strings.Contains(text, `tidegate_http_answers_total{operation="receiveMessages",status="500"}`) || strings.Contains(logged.String(), "HTTP request failed") {
			t.Errorf("a client that went away is a failure of the broker: %s", logged)
		}
	})
}

// A buggy server panics.
type buggy struct{ engine.Server }

func (buggy) ConsumerSettingsChanged(string) { panic("a bug") }

// A broker that rejects everything logs why, once, and not each request that it rejects.
func TestBrokenBrokerLogsOneError(t *testing.T) {
	log, text := testLog()
	e := startWith(t, broker.Options{Logger: log}, server.Options{Logger: log})
	e.b.Engine().Attach(buggy{})
	func() {
		defer func() { _ = recover() }() // as a server does
		_, _ = e.b.PutGroup(t.Context(), "g", settings.Group{})
	}()
	assert.MustThat(t, e.b.Healthy() != nil, "the broker is healthy")
	for range 5 {
		resp, err := e.SendMessage(as(t.Context(), "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
			Topic: &rmqpb.Resource{Name: "normal"}, SystemProperties: &rmqpb.SystemProperties{MessageId: "m"}, Body: []byte("x"),
		}}})
		assert.MustThat(t, err == nil && resp.GetStatus().GetCode() == rmqpb.Code_INTERNAL_SERVER_ERROR, "%v, %v", resp, err)
	}
	if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged:\n%s", n, text)
	}
}

// After a read of the store failed, the broker is not ready for a while, over gRPC and HTTP alike.
func TestNotReadyAfterFailedReads(t *testing.T) {
	for name, receive := range map[string]func(x *webEnv){
		"gRPC": func(x *webEnv) { _, _ = frames(x.ReceiveMessage(x.ctx(), receiveRequest("normal"))) },
		"HTTP": func(x *webEnv) { x.do("/v1/groups/g/topics/normal/receive", `{}`, nil) },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &faulty{}
			x := startWeb(t, server.Options{}, f)
			ready := func(when string, want int) {
				t.Helper()
				resp := assert.Value(x.client.Do(x.request(t.Context(), "GET", "/readyz", nil)))(t)
				body, _ := io.ReadAll(resp.Body)
				if resp.Body.Close(); resp.StatusCode != want {
					t.Errorf("%s, %s: %d %s, want %d", name, when, resp.StatusCode, body, want)
				}
			}
			f.poll = func(context.Context) error { return refusal.Closed() }
			receive(x)
			ready("after the end of the engine, which Healthy reports", http.StatusOK)
			f.poll = func(context.Context) error { return refusal.InvalidHandle("none") }
			receive(x)
			ready("after a request that was wrong", http.StatusOK)
			f.poll = func(context.Context) error { return refusal.Store(syscall.EIO) }
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
