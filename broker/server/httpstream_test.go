package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A sendStream is the client's side of a stream of sends.
type sendStream struct {
	t    testing.TB
	in   *io.PipeWriter
	out  *bufio.Scanner
	body io.Closer
}

func (x *webEnv) sendStream(ctx context.Context, topic string, header ...string) *sendStream {
	x.t.Helper()
	r, w := io.Pipe()
	resp := assert.Value(x.client.Do(x.request(ctx, "POST", "/v1/topics/"+topic+"/messages", r, append([]string{"Content-Type", server.TypeNDJSON}, header...)...)))(x.t)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != server.TypeNDJSON {
		x.t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	s := &sendStream{t: x.t, in: w, out: bufio.NewScanner(resp.Body), body: resp.Body}
	x.t.Cleanup(func() {
		w.Close()
		resp.Body.Close()
	})
	return s
}

func (s *sendStream) write(text string) {
	s.t.Helper()
	assert.Must(s.t, assert.Err(io.WriteString(s.in, text)))
}

// next returns the next line of the response.
func (s *sendStream) next() (r server.SendResult) {
	s.t.Helper()
	if !s.out.Scan() {
		s.t.Fatalf("the stream ended: %v", s.out.Err())
	}
	decode(s.t, s.out.Bytes(), &r)
	return r
}

// end checks that the response ends here, without an error.
func (s *sendStream) end() {
	s.t.Helper()
	if s.out.Scan() || s.out.Err() != nil {
		s.t.Errorf("the stream continues with %q, %v", s.out.Text(), s.out.Err())
	}
}

// The response to each line comes once the message is stored, while the client sends more lines.
func TestHTTPSendStream(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		s := x.sendStream(t.Context(), "normal")
		for i := range 3 {
			s.write(fmt.Sprintf(`{"id":"%d","body":"eA=="}`+"\n", i))
			if r := s.next(); r.Line != i+1 || r.ID != fmt.Sprint(i) || r.Error != nil || r.Offset == nil {
				t.Errorf("line %d: %+v", i, r)
			}
		}
		// A line that is wrong is rejected alone, and the numbers count every line.
		s.write("\n{\"body\":1}\r\n{\"id\":\"3\",\"tag\":\"a|b\",\"body\":\"eA==\"}\nnonsense\n{\"id\":\"4\",\"body\":\"eA==\"}\n")
		for _, want := range []struct{ line, code int }{{5, 40000}, {6, 40004}, {7, 40000}, {8, 0}} {
			r := s.next()
			code := 0
			if r.Error != nil {
				code = r.Error.Code
			}
			assert.That(t, r.Line == want.line && code == want.code, "%+v, want line %d with code %d", r, want.line, want.code)
		}
		// The stream may last, as long as there is a sign of life in time.
		for range 3 {
			time.Sleep(time.Minute)
			s.write("\n")
		}
		s.write(`{"id":"5","body":"eA=="}`) // the last line needs no end
		s.in.Close()
		if r := s.next(); r.ID != "5" || r.Line != 12 || r.Error != nil {
			t.Errorf("%+v", r)
		}
		s.end()
		if ds := x.take("normal", `{"max":32}`, 5); ds[0].Attempt != 1 {
			t.Errorf("%+v", ds)
		}
	})
}

// A stream of FIFO messages keeps their order, and lines that arrive together are stored together.
func TestHTTPSendStreamInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		appends := 0
		x := startWeb(t, server.Options{}, &faulty{append: func(context.Context, []engine.Incoming) error { appends++; return nil }})
		s := x.sendStream(t.Context(), "fifo")
		var text strings.Builder
		for i := range 500 {
			fmt.Fprintf(&text, `{"id":"%d","body":"eA==","message_group":"g"}`+"\n", i)
		}
		go s.write(text.String())
		for i := range 500 {
			if r := s.next(); r.ID != fmt.Sprint(i) || *r.Offset != int64(i) {
				t.Fatalf("%d: %+v", i, r)
			}
		}
		assert.That(t, appends <= 100, "%d appends for 500 lines", appends)
	})
}

// Half a line of a client that has gone is not a message.
func TestHTTPSendStreamCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := testLog()
		x := startWeb(t, server.Options{Logger: logger})
		ctx, cancel := context.WithCancel(t.Context())
		s := x.sendStream(ctx, "normal")
		s.write(`{"id":"whole","body":"eA=="}` + "\n" + `{"id":"half","body":"eA=="}`)
		s.next()
		cancel()
		synctest.Wait()
		assert.Equal(t, "x.take(\"normal\", `{\"max\":32}`, 1)[0].ID", x.take("normal", `{"max":32}`, 1)[0].ID, "whole")
		assert.That(t, logged.String() == "", "a client that goes is no fault of ours: %s", logged)
	})
}

func TestHTTPSendStreamEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(x *webEnv)
		status int
		after  time.Duration
	}{
		"silent": {func(*webEnv) {}, 408, 2 * time.Minute},
		"server": {func(x *webEnv) { x.s.Drain() }, 503, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
				s := x.sendStream(t.Context(), "normal")
				s.write(`{"body":"eA=="}` + "\n")
				s.next()
				began := time.Now()
				c.end(x)
				if r := s.next(); r.Error == nil || r.Error.Status != c.status || r.Line != 0 || time.Since(began) != c.after {
					t.Errorf("%+v after %v", r, time.Since(began))
				}
				s.end()
			})
		})
	}
	t.Run("unknown topic", func(t *testing.T) { // is each line's
		withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
			s := x.sendStream(t.Context(), "none")
			s.write(`{"body":"eA=="}` + "\n")
			if r := s.next(); r.Error == nil || r.Error.Code != 40402 || r.Line != 1 {
				t.Errorf("%+v", r)
			}
		})
	})
}

// A deliveryStream is the client's side of a stream of deliveries.
func (x *webEnv) deliveryStream(ctx context.Context, topic, body string, header ...string) *http.Response {
	x.t.Helper()
	resp, err := x.client.Do(x.request(ctx, "POST", "/v1/groups/g/topics/"+topic+"/receive", strings.NewReader(body),
		append([]string{"Content-Type", server.TypeJSON, "Accept", server.TypeNDJSON}, header...)...))
	assert.Must(x.t, err)
	x.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestHTTPReceiveStream(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		resp := x.deliveryStream(t.Context(), "normal", `{}`)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != server.TypeNDJSON {
			t.Fatalf("%s %v", resp.Status, resp.Header)
		}
		lines := bufio.NewReader(resp.Body)
		began := time.Now()
		for i := range 70 {
			x.send(msg("normal", fmt.Sprint(i)))
		}
		for range 70 {
			for {
				line := assert.Value(lines.ReadBytes('\n'))(t)
				if len(line) == 1 {
					continue
				}
				var d httpapi.Delivery
				decode(t, line, &d)
				x.ok("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, nil)
				break
			}
		}
		assert.Equal(t, "it took", time.Since(began), 0)
		// It outlasts the server's timeouts, with signs of life.
		for range 10 {
			if line, err := lines.ReadString('\n'); line != "\n" || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
		}
		assert.That(t, time.Since(began) >= 3*time.Minute, "10 signs of life within %v", time.Since(began))
		x.send(msg("normal", "late"))
		if line, err := lines.ReadString('\n'); !strings.Contains(line, `"late"`) || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		x.s.Drain()
		if rest, err := io.ReadAll(lines); err != nil || len(strings.TrimSpace(string(rest))) > 0 {
			t.Errorf("at the server's end: %q, %v", rest, err)
		}
	})
}

// Bounds of a stream: how many, and how long without one.
func TestHTTPReceiveStreamBounds(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		for i := range 50 {
			x.send(msg("normal", fmt.Sprint(i)))
		}
		read := func(body string) (n int, took time.Duration) {
			began := time.Now()
			text := assert.Value(io.ReadAll(x.deliveryStream(t.Context(), "normal", body).Body))(t)
			return strings.Count(string(text), `"handle"`), time.Since(began)
		}
		if n, took := read(`{"max":40}`); n != 40 || took != 0 {
			t.Errorf("%d in %v, want 40 at once", n, took)
		}
		if n, took := read(`{"wait":"25s","invisible_duration":"1h"}`); n != 10 || took != 25*time.Second {
			t.Errorf("%d in %v, want 10 in 25s", n, took)
		}
		// The 40 messages are redelivered after their invisible duration of 30 s.
		if n, took := read(`{"wait":"0s","invisible_duration":"1h"}`); n != 0 || took != 0 {
			t.Errorf("%d in %v, want none at once", n, took)
		}
		if n, took := read(`{"wait":"6s","invisible_duration":"1h"}`); n != 40 || took != 11*time.Second {
			t.Errorf("%d in %v, want 40 in 5s and another 6s", n, took)
		}
		for body, want := range map[string]string{`{"attempt_id":"a"}`: "attempt_id", `{"max_bytes":1}`: "max_bytes", `{"max":0}`: "max", `{"wait":"-1s"}`: "-1s", `{"filter":{"type":"SQL92","expression":"("}}`: "expression"} {
			resp := x.deliveryStream(t.Context(), "normal", body)
			text, _ := io.ReadAll(resp.Body)
			assert.That(t, resp.StatusCode == 400 && strings.Contains(string(text), want), "%s: %d %s", body, resp.StatusCode, text)
		}
	})
}

// A waiting receive ends when its client disconnects, and returns empty when the server ends.
func TestHTTPReceiveWaits(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		parked := func() int64 {
			for _, s := range x.b.Engine().Stats().Groups {
				return s.Waiting
			}
			return 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if resp, err := x.client.Do(x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive",
				strings.NewReader(`{"wait":"20s"}`), "Content-Type", server.TypeJSON)); err == nil {
				resp.Body.Close()
			}
		}()
		synctest.Wait()
		assert.Equal(t, "receives wait", parked(), 1)
		cancel()
		synctest.Wait()
		assert.Equal(t, "receives wait", parked(), 0)
		time.AfterFunc(3*time.Second, x.s.Drain)
		began := time.Now()
		x.take("normal", `{"wait":"20s"}`, 0)
		assert.Equal(t, "response after", time.Since(began), 3*time.Second)
	})
}

// Messages that a client does not read in time are released.
func TestHTTPReceiveStreamStalls(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		x.deliveryStream(t.Context(), "normal", `{"invisible_duration":"1h","push":true}`)
		synctest.Wait() // the stream waits for the message, or the receive below may be faster
		x.send(msg("normal", "m", body(make([]byte, 1<<20))))
		began := time.Now()
		for range 4 {
			if ds := x.takeSome("normal", `{"wait":"20s","push":true}`); len(ds) > 0 {
				if time.Since(began) != server.AnswerTime || ds[0].Attempt != 1 {
					t.Errorf("attempt %d after %v, want 1 after %v", ds[0].Attempt, time.Since(began), server.AnswerTime)
				}
				return
			}
		}
		t.Errorf("not released after %v", time.Since(began))
	})
}

// A receive whose response was lost is repeated with its attempt ID.
func TestHTTPReceiveAgain(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		assert.Must(t, assert.Err(x.b.PutGroup(t.Context(), "g", settings.Group{FIFO: true})))
		x.ok("/v1/topics/fifo/messages", `{"body":"eA==","message_group":"a"}`, nil)
		first := x.take("fifo", `{"attempt_id":"1"}`, 1)[0]
		time.Sleep(time.Second)
		again := x.take("fifo", `{"attempt_id":"1"}`, 1)[0]
		if again.ID != first.ID || again.Handle == first.Handle || again.Attempt != 1 || again.InvisibleFor != httpapi.Duration(29*time.Second) {
			t.Errorf("first %+v, again %+v", first, again)
		}
		x.take("fifo", `{"attempt_id":"2"}`, 0)
		x.failed("/v1/groups/g/acknowledge", `{"handles":["`+first.Handle+`"]}`, 400, 40013, "")
	})
}

// A receive takes bodies up to max_bytes, the first with any size. The others stay untouched.
func TestHTTPReceiveMaxBytes(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		for range 4 {
			x.ok("/v1/topics/normal/messages", `{"body_text":"0123456789"}`, nil)
		}
		x.failed("/v1/groups/g/topics/normal/receive", `{"max_bytes":-1}`, 400, 40000, "max_bytes", "-1")
		for _, c := range []struct{ bytes, want int }{{1, 1}, {20, 2}, {100, 1}} {
			for _, d := range x.take("normal", fmt.Sprintf(`{"max":32,"max_bytes":%d}`, c.bytes), c.want) {
				assert.Equal(t, "attempt", d.Attempt, 1)
			}
		}
	})
}

// A reader is a client's end of a connection: it gets each flush as one part, and may leave.
type reader struct {
	*httptest.ResponseRecorder
	got func()
}

func (r *reader) Flush() {
	r.ResponseRecorder.Flush()
	r.got()
}

// A client that closes its connection when it has read the response got its messages: each curl
// does this. net/http ends the context of the request at that moment.
func TestHTTPReceiveThenClose(t *testing.T) {
	for name, accept := range map[string]string{"once": server.TypeJSON, "stream": server.TypeNDJSON} {
		t.Run(name, func(t *testing.T) {
			withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
				x.send(msg("normal", "1"))
				ctx, leave := context.WithCancel(t.Context())
				r := x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{}`), "Content-Type", server.TypeJSON, "Accept", accept)
				w := &reader{ResponseRecorder: httptest.NewRecorder()}
				w.got = func() {
					if strings.Contains(w.Body.String(), "handle") {
						leave()
					}
				}
				func() {
					defer func() { _ = recover() }() // http.ErrAbortHandler ends a stream
					x.s.Handler().ServeHTTP(w, r)
				}()
				assert.MustThat(t, ctx.Err() != nil, "%d %s: no message was written", w.Code, w.Body)
				time.Sleep(time.Second)
				if ds := x.takeSome("normal", `{}`); len(ds) != 0 {
					t.Errorf("a second receive brings %+v, which the first client has", ds)
				}
			})
		})
	}
}

// A client that is gone before the response is written did not get its messages: the next receive
// brings them at once, as their first delivery.
func TestHTTPReceiveGoneBeforeResponse(t *testing.T) {
	for name, accept := range map[string]string{"once": server.TypeJSON, "stream": server.TypeNDJSON} {
		subtest(t, name, func(t *testing.T) {
			f := &faulty{}
			x := startWeb(t, server.Options{}, f)
			x.send(msg("normal", "1"))
			ctx, leave := context.WithCancel(t.Context())
			f.after = func(ds []*tidegate.Delivery) {
				if len(ds) > 0 {
					leave()
				}
			}
			r := x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{"push":true}`), "Content-Type", server.TypeJSON, "Accept", accept)
			w := &reader{httptest.NewRecorder(), func() {}}
			func() {
				defer func() {
					if v := recover(); v != nil && v != http.ErrAbortHandler {
						panic(v)
					}
				}()
				x.s.Handler().ServeHTTP(w, r)
			}()
			assert.MustThat(t, !strings.Contains(w.Body.String(), "handle"), "written to a client that is gone: %s", w.Body)
			f.after = nil
			assert.Equal(t, "attempt", x.take("normal", `{"push":true}`, 1)[0].Attempt, 1)
		})
	}
}

// A receive that waits for less than it requested returns the longest wait.
func TestHTTPReceiveReturnsItsLongestWait(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		for wait, longest := range map[string]string{"40s": "20s", "20s": "", "1s": ""} {
			var got struct {
				LongestWait string `json:"longest_wait"`
			}
			began := time.Now()
			x.ok("/v1/groups/g/topics/normal/receive", `{"wait":"`+wait+`"}`, &got)
			want, _ := time.ParseDuration(wait)
			if want = min(want, 20*time.Second); time.Since(began) != want || got.LongestWait != longest {
				t.Errorf("wait %s: %q after %v, want %q after %v", wait, got.LongestWait, time.Since(began), longest, want)
			}
		}
	})
}

// rawConn connects to the server as nothing but a connection.
func (x *webEnv) rawConn() net.Conn {
	x.t.Helper()
	c := assert.Value(x.client.Transport.(*http.Transport).DialContext(x.t.Context(), "", ""))(x.t)
	x.t.Cleanup(func() { c.Close() })
	return c
}

// A client that waits for our go-ahead, as curl does above 1 MiB, gets a stream like any other one.
func TestHTTPSendStreamAfterExpect(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []string // of the body
		lines  int      // of the response
	}{
		"lines":   {[]string{`{"id":"1","body":"eA=="}` + "\n", `{"id":"2","body":"eA=="}` + "\n"}, 2},
		"nothing": {nil, 0},
		"alive":   {[]string{"\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
				conn := x.rawConn()
				fmt.Fprintf(conn, "POST /v1/topics/normal/messages HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
				in := bufio.NewReader(conn)
				if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
					t.Fatalf("%q, %v", line, err)
				}
				if line, err := in.ReadString('\n'); err != nil || line != "\r\n" {
					t.Fatalf("%q, %v", line, err)
				}
				go func() {
					for _, text := range c.chunks {
						fmt.Fprintf(conn, "%x\r\n%s\r\n", len(text), text)
						time.Sleep(time.Minute) // the stream lasts
					}
					io.WriteString(conn, "0\r\n\r\n")
				}()
				resp, err := http.ReadResponse(in, nil)
				assert.Must(t, err)
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != server.TypeNDJSON || resp.Header.Get("X-Content-Type-Options") != "nosniff" ||
					err != nil || strings.Count(string(text), "\n") != c.lines {
					t.Errorf("%s %v %q, %v", resp.Status, resp.Header, text, err)
				}
				synctest.Wait()
				_, metrics := scrapedBy(t, x.s)
				if want := `tidegate_http_answers_total{operation="sendMessages",status="200"} 1`; !strings.Contains(metrics, want+"\n") {
					t.Errorf("no %s", want)
				}
				if strings.Contains(metrics, `tidegate_http_duration_seconds_count{operation="sendMessages"}`) {
					t.Error("a stream has a duration: it lasts as long as the client wants")
				}
				assert.That(t, !strings.Contains(metrics, `"cut"`), "a complete response is counted as cut off")
			})
		})
	}
}

// A body that does not arrive in time can be sent again: its content is not at fault.
func TestHTTPSlowBody(t *testing.T) {
	for name, path := range map[string]string{
		"send": "POST /v1/topics/normal/messages", "administration": "PUT /v1/topics/other",
	} {
		t.Run(name, func(t *testing.T) {
			withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
				conn, began := x.rawConn(), time.Now()
				fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{", path)
				resp := assert.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
				defer resp.Body.Close()
				text := assert.Value(io.ReadAll(resp.Body))(t)
				var p server.Problem
				decode(t, text, &p)
				x.problem(path, resp.StatusCode, p, 408, 40800, "did not arrive within 30s")
				assert.Equal(t, "response after", time.Since(began), 30*time.Second)
			})
		})
	}
}

// A slowDeadline is a connection on which a read deadline that has passed takes
// until release is closed to be set.
type slowDeadline struct {
	*httptest.ResponseRecorder
	release chan struct{}
}

func (w *slowDeadline) SetReadDeadline(t time.Time) error {
	if !t.After(time.Now()) {
		<-w.release
	}
	return nil
}

// Nothing uses the connection once the handler has returned: over HTTP/2
// net/http has taken it away by then, and the process would end.
func TestHTTPSendStreamEndsAloneOnItsConnection(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		body, lines := io.Pipe()
		defer body.Close()
		w := &slowDeadline{httptest.NewRecorder(), make(chan struct{})}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/topics/normal/messages", body)
		r.Header.Set("Content-Type", server.TypeNDJSON)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			e.s.Handler().ServeHTTP(w, r)
		}()
		synctest.Wait() // it waits for a line
		closed := make(chan error, 1)
		go func() { closed <- e.s.Close() }()
		synctest.Wait() // the server's end moves the deadline
		assert.Must(t, assert.Err(io.WriteString(lines, "\n")))
		synctest.Wait() // the stream has seen by itself that it ends
		select {
		case <-returned:
			t.Error("the handler returned while its connection was in use")
		default:
		}
		close(w.release)
		<-returned
		assert.NoError(t, <-closed)
	})
}

// redrive is a redrive that takes a while.
type redrive struct {
	takes time.Duration
	begun chan struct{}
}

func (e redrive) serve(r *http.Request) (any, error) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, err
	}
	e.begun <- struct{}{}
	select {
	case <-time.After(e.takes):
		return status.DeadLetterRedrive{Redriven: 7, Next: "0-7"}, nil
	case <-r.Context().Done():
		return status.DeadLetterRedrive{Redriven: 3}, context.Cause(r.Context())
	}
}

// A request may run for longer than its client may take to send it, or to read the response.
func TestHTTPWorksAsLongAsItTakes(t *testing.T) {
	for name, configure := range map[string]func(*http.Protocols){
		"HTTP/1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		for _, takes := range []time.Duration{40 * time.Second, 100 * time.Second} {
			t.Run(name+" "+takes.String(), func(t *testing.T) {
				withServer(t, server.Options{}, func(t *testing.T, e *env) {
					slow := redrive{takes, make(chan struct{}, 3)}
					e.s.WrapHTTP(func(h http.Handler) http.Handler {
						mux := http.NewServeMux()
						mux.Handle("/", checkHTTP(t, h))
						mux.Handle("POST /v1/groups/{group}/dead-letters/redrive", checkHTTP(t, e.s.Doing(slow.serve)))
						return mux
					})
					lis, protocols := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}, new(http.Protocols)
					configure(protocols)
					srv := &http.Server{Handler: e.s.Handler(), ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, Protocols: protocols}
					go srv.Serve(lis)
					defer srv.Close()
					transport := &http.Transport{
						DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.dial(ctx) }, Protocols: protocols,
					}
					defer transport.CloseIdleConnections()
					ask := func(ctx context.Context, body string) (string, error) {
						r, err := http.NewRequestWithContext(ctx, "POST", "http://broker.test/v1/groups/g/dead-letters/redrive", strings.NewReader(body))
						assert.Must(t, err)
						r.Header.Set("Content-Type", server.TypeJSON)
						resp, err := transport.RoundTrip(r)
						if err != nil {
							return "", err
						}
						defer resp.Body.Close()
						text, err := io.ReadAll(resp.Body)
						return string(text), err
					}
					for _, body := range []string{`{"limit":100000}`, ""} { // on one connection
						if text, err := ask(t.Context(), body); err != nil || !strings.Contains(text, `"next": "0-7"`) {
							t.Errorf("%q: %q, %v", body, text, err)
						}
						<-slow.begun
					}
					// It ends when the client goes.
					ctx, cancel := context.WithCancel(t.Context())
					began := time.Now()
					go func() {
						<-slow.begun
						time.Sleep(35 * time.Second)
						cancel()
					}()
					assert.That(t, assert.Err(ask(ctx, "{}")) != nil, "a response to a client that is gone")
					synctest.Wait()
					if _, text := scrapedBy(t, e.s); time.Since(began) != 35*time.Second || !strings.Contains(text, `{operation="redriveDeadLetters",status="cut"} 1`) {
						t.Errorf("it went on for %v", time.Since(began))
					}
				})
			})
		}
	}
}

// A client that does not read has a minute from when the response is there.
func TestHTTPResponseIsReadInTime(t *testing.T) {
	for request, prefix := range map[string]string{
		"GET /v1/topics HTTP/1.1\r\nHost: broker.test\r\n\r\n":                                                                                   "HTTP/1.1 200 OK\r\n",
		"GET /v1/topics/missing HTTP/1.1\r\nHost: broker.test\r\n\r\n":                                                                           "HTTP/1.1 404 Not Found\r\n",
		"POST /v1/groups/g/topics/normal/receive HTTP/1.1\r\nHost: broker.test\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}": "HTTP/1.1 200 OK\r\n",
	} {
		for after, want := range map[time.Duration]string{59 * time.Second: prefix, 61 * time.Second: ""} {
			withServer(t, server.Options{}, func(t *testing.T, e *env) {
				lis := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
				server := &http.Server{Handler: e.s.Handler()}
				served := make(chan struct{})
				go func() {
					defer close(served)
					server.Serve(lis)
				}()
				c := assert.Value(lis.dial(t.Context()))(t)
				assert.Must(t, assert.Err(io.WriteString(c, request)))
				time.Sleep(after)
				_ = c.SetReadDeadline(time.Now().Add(time.Second)) // fails if the server has closed it
				got, _ := io.ReadAll(c)
				if text := string(got[:min(len(got), len(prefix))]); text != want {
					t.Errorf("%q after %v: the response begins with %q, want %q", request, after, text, want)
				}
				c.Close()
				server.Close()
				<-served
			})
		}
	}
}
