package server_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// scrapedBy is scraped with the credentials of the key monitor.
func scrapedBy(t testing.TB, s *server.Server) (map[string]float64, string) {
	t.Helper()
	r := httptest.NewRequest("GET", "https://h/metrics", nil)
	r.SetBasicAuth("monitor", secretMark+"monitor")
	w := httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != 200 {
		t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
	}
	out := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		var v float64
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			fmt.Sscan(line[i+1:], &v)
			out[line[:i]] = v
		}
	}
	return out, w.Body.String()
}

// Rejections are logged with key, peer, operation and reason, a few of each kind.
func TestRejectionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const logged = 5 // of one reason in 10 s
		log, text := testLog()
		e := start(t, server.Options{Access: someAccess(), Logger: log})
		route := func(ctx context.Context) {
			if _, err := e.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			route(e.ctx())
		}
		route(signed(t.Context(), "nothing"))
		time.Sleep(10 * time.Second)
		route(e.ctx())
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != logged+2 {
			t.Fatalf("%d lines:\n%s", len(lines), text)
		}
		for i, words := range map[int]string{
			0:          "operation=QueryRoute key=anonymous peer=bufconn reason=no_credentials not_logged=0",
			logged:     "operation=QueryRoute key=nothing reason=forbidden not_logged=0",
			logged + 1: "key=anonymous not_logged=95",
		} {
			for w := range strings.FieldsSeq(words) {
				if !strings.Contains(lines[i], " "+w) {
					t.Errorf("line %d does not contain %s: %s", i+1, w, lines[i])
				}
			}
		}
		if n, _ := scrapedBy(t, e.s); n[`tidegate_access_refusals_total{reason="no_credentials"}`] != 101 {
			t.Errorf("counted: %v", n)
		}
	})
}

// With any requests of clients, no secret is in a log, a response, an error or a metric, also if
// they send it in the wrong place.
func TestNoSecretIsDisclosed(t *testing.T) {
	log, text := testLog()
	e := start(t, server.Options{Access: someAccess(), Logger: log})
	var said strings.Builder
	at := time.Now().UTC().Format("20060102T150405Z")
	for _, authorization := range []string{
		signature("sesame-root", "root", at), "sesame-root", "Basic sesame-root", "Bearer sesame-root",
		"MQv2-HMAC-SHA1 Credential=sesame-root", "MQv2-HMAC-SHA1 Credential=root, SignedHeaders=sesame-root, Signature=sesame-root",
		signature("root", "sesame-root", "sesame-root"), signature("nothing", "sesame-nothing", at),
	} {
		for _, date := range []string{at, "sesame-root"} {
			for _, name := range []string{"QueryRoute", "SendMessage", "ReceiveMessage", "Telemetry"} {
				good := authorization == signature("nothing", "sesame-nothing", at) && date == at
				if good && name == "Telemetry" {
					continue // it waits for settings
				}
				st, err := e.call(as(t.Context(), "client", wire.HeaderDateTime, date, wire.HeaderAuthorization, authorization), name)
				if st.GetCode() == rmqpb.Code_OK && err == nil && !good {
					t.Errorf("%s, %s: %s is allowed", authorization, date, name)
				}
				fmt.Fprintln(&said, st, err)
			}
			r := httptest.NewRequest("GET", "/v1/topics", nil)
			r.Header.Set("Authorization", authorization)
			r.Header.Set("X-Mq-Date-Time", date)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			fmt.Fprintln(&said, w.Code, w.Header(), w.Body)
		}
	}
	for _, k := range []string{"sesame-root", "root", "sesame-"} {
		r := httptest.NewRequest("GET", "https://h/v1/topics", nil)
		r.SetBasicAuth(k, "sesame-oh")
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		fmt.Fprintln(&said, w.Code, w.Header(), w.Body)
	}
	_, metrics := scrapedBy(t, e.s)
	policy, err := access.New(someAccess())
	fmt.Fprintf(&said, "%s%v %+v %#v %v", metrics, e.s.Parts().Options.Access, e.s.Parts().Options, policy, err)
	_, err = server.New(e.b, server.Options{Access: server.AccessConfig{Keys: append(someAccess().Keys, someAccess().Keys...)}})
	fmt.Fprintln(&said, err)
	for what, s := range map[string]string{"the log": text.String(), "an answer": said.String()} {
		if s == "" || strings.Contains(s, secretMark) {
			t.Errorf("%s has a secret:\n%s", what, s)
		}
	}
}

// A Telemetry stream that was rejected is counted as that.
func TestRejectedTelemetryIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: someAccess()})
		for _, c := range []struct {
			ctx   context.Context
			topic string
		}{{e.ctx(), "normal"}, {signed(t.Context(), "producer"), "fifo"}, {signed(t.Context(), "producer"), "normal"}} {
			st, err := e.Telemetry(c.ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = st.Send(command(producer(c.topic))) // the rejection may have come before
			if _, err := st.Recv(); err != nil {
				t.Fatal(err)
			}
			_ = st.CloseSend()
			_, _ = st.Recv()
			synctest.Wait()
		}
		samples, _ := scrapedBy(t, e.s)
		for _, code := range []string{"UNAUTHORIZED", "FORBIDDEN", "OK"} {
			if n := samples[`tidegate_rpc_answers_total{code="`+code+`",rpc="Telemetry"}`]; n != 1 {
				t.Errorf("%v streams with %s, want 1", n, code)
			}
		}
	})
}
