package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
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
	resp, err := x.client.Do(x.request(ctx, "POST", "/v1/topics/"+topic+"/messages", r, append([]string{"Content-Type", server.TypeNDJSON}, header...)...))
	if err != nil {
		x.t.Fatal(err)
	}
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
	if _, err := io.WriteString(s.in, text); err != nil {
		s.t.Fatal(err)
	}
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
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
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
			if r.Line != want.line || code != want.code {
				t.Errorf("%+v, want line %d with code %d", r, want.line, want.code)
			}
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
		if appends > 100 {
			t.Errorf("%d appends for 500 lines", appends)
		}
	})
}

// Each line has its own throttle, and the stream continues.
func TestHTTPSendStreamThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		if _, err := x.b.PutTopic(t.Context(), "small", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}}); err != nil {
			t.Fatal(err)
		}
		s := x.sendStream(t.Context(), "small")
		s.write(strings.Repeat(`{"body":"eA=="}`+"\n", 3))
		s.next()
		s.next()
		if r := s.next(); r.Error == nil || r.Error.Status != 429 || r.Error.ReplyCode != 530 || !strings.HasPrefix(r.Error.Detail, "530 TOO_MANY_REQUESTS") {
			t.Errorf("%+v", r)
		}
		for _, d := range x.take("small", `{"max":2}`, 2) {
			x.ok("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, nil)
		}
		s.write(`{"body":"eA=="}` + "\n")
		if r := s.next(); r.Error != nil {
			t.Errorf("%+v", r.Error)
		}
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
		if d := x.take("normal", `{"max":32}`, 1)[0]; d.ID != "whole" {
			t.Errorf("%+v", d)
		}
		if logged.String() != "" {
			t.Errorf("a client that goes is no fault of ours: %s", logged)
		}
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
			synctest.Test(t, func(t *testing.T) {
				x := startWeb(t, server.Options{})
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
		synctest.Test(t, func(t *testing.T) {
			x := startWeb(t, server.Options{})
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
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestHTTPReceiveStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
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
				line, err := lines.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				if len(line) == 1 {
					continue
				}
				var d httpapi.Delivery
				decode(t, line, &d)
				x.ok("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, nil)
				break
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("it took %v", time.Since(began))
		}
		// It outlasts the server's timeouts, with signs of life.
		for range 10 {
			if line, err := lines.ReadString('\n'); line != "\n" || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
		}
		if time.Since(began) < 3*time.Minute {
			t.Errorf("10 signs of life within %v", time.Since(began))
		}
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
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		for i := range 50 {
			x.send(msg("normal", fmt.Sprint(i)))
		}
		read := func(body string) (n int, took time.Duration) {
			began := time.Now()
			text, err := io.ReadAll(x.deliveryStream(t.Context(), "normal", body).Body)
			if err != nil {
				t.Fatal(err)
			}
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
		for body, want := range map[string]string{`{"attempt_id":"a"}`: "attempt_id", `{"max_bytes":1}`: "max_bytes", `{"max":0}`: "max", `{"filter":{"type":"SQL92","expression":"("}}`: "expression"} {
			resp := x.deliveryStream(t.Context(), "normal", body)
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 400 || !strings.Contains(string(text), want) {
				t.Errorf("%s: %d %s", body, resp.StatusCode, text)
			}
		}
	})
}

// A change of a topic under a stream is its last line.
func TestHTTPReceiveStreamLastLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		x := startWeb(t, server.Options{}, &faulty{poll: func(context.Context) error {
			if gone.Load() {
				return &tidegate.Error{Code: tidegate.CodeTopicNotFound, Message: "it is gone"}
			}
			return nil
		}})
		resp := x.deliveryStream(t.Context(), "normal", `{}`)
		gone.Store(true)
		text, err := io.ReadAll(resp.Body)
		var last struct{ Error server.Problem }
		if err == nil {
			err = json.Unmarshal(text[strings.LastIndex(strings.TrimSpace(string(text)), "\n")+1:], &last)
		}
		if err != nil || last.Error.Code != 40402 {
			t.Errorf("%q, %v", text, err)
		}
	})
}

// Messages that a closed client did not get are released, and do not count as an attempt of a push
// consumer.
func TestHTTPReceiveGone(t *testing.T) {
	for _, accept := range []string{server.TypeJSON, server.TypeNDJSON} {
		t.Run(accept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cancel context.CancelFunc
				var gone <-chan struct{}
				x := startWeb(t, server.Options{}, &faulty{
					poll: func(ctx context.Context) error { gone = ctx.Done(); return nil },
					after: func(ds []*tidegate.Delivery) {
						if len(ds) > 0 && cancel != nil {
							cancel() // after the lease, before the response
							cancel = nil
							<-gone
						}
					},
				})
				var ctx context.Context
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					resp, err := x.client.Do(x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive",
						strings.NewReader(`{"wait":"20s","invisible_duration":"10m","push":true}`), "Content-Type", server.TypeJSON, "Accept", accept))
					if err == nil {
						_, err = io.ReadAll(resp.Body)
						resp.Body.Close()
					}
					ended <- err
				}()
				synctest.Wait()
				cancel = stop
				x.send(msg("normal", "m"))
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				synctest.Wait()
				if d := x.take("normal", `{"push":true}`, 1)[0]; d.Attempt != 1 {
					t.Errorf("attempt %d, want 1", d.Attempt)
				}
			})
		})
	}
}

// A waiting receive ends when its client disconnects, and returns empty when the server ends.
func TestHTTPReceiveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
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
		if n := parked(); n != 1 {
			t.Errorf("%d receives wait, want 1", n)
		}
		cancel()
		synctest.Wait()
		if n := parked(); n != 0 {
			t.Errorf("%d receives wait, want none", n)
		}
		time.AfterFunc(3*time.Second, x.s.Drain)
		began := time.Now()
		x.take("normal", `{"wait":"20s"}`, 0)
		if time.Since(began) != 3*time.Second {
			t.Errorf("response after %v", time.Since(began))
		}
	})
}

// Messages that a client does not read in time are released.
func TestHTTPReceiveStreamStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
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
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		if _, err := x.b.PutGroup(t.Context(), "g", settings.Group{FIFO: true}); err != nil {
			t.Fatal(err)
		}
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
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		for range 4 {
			x.ok("/v1/topics/normal/messages", `{"body_text":"0123456789"}`, nil)
		}
		x.failed("/v1/groups/g/topics/normal/receive", `{"max_bytes":-1}`, 400, 40000, "max_bytes", "-1")
		for _, c := range []struct{ bytes, want int }{{1, 1}, {20, 2}, {100, 1}} {
			for _, d := range x.take("normal", fmt.Sprintf(`{"max":32,"max_bytes":%d}`, c.bytes), c.want) {
				if d.Attempt != 1 {
					t.Errorf("attempt %d, want 1: an earlier receive has taken it", d.Attempt)
				}
			}
		}
	})
}
