package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/rawclient"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	rpcPath     = "/apache.rocketmq.v2.MessagingService/"
	leastMemory = 64 << 20 // for bodies of 4 MiB
)

// raw connects a client that speaks frame by frame and reads so much of each response.
func (e *env) raw(window uint32) *rawclient.Conn {
	e.t.Helper()
	c, err := e.lis.Dial()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { c.Close() })
	r, err := rawclient.New(c, window)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// open begins an RPC with these bytes.
func (e *env) open(c *rawclient.Conn, op string, data []byte, end bool) {
	e.t.Helper()
	id, err := c.Open(rpcPath+op, wire.HeaderClientID, "raw")
	if err != nil {
		e.t.Fatal(err)
	}
	if err := c.Write(id, data, end); err != nil && !errors.Is(err, rawclient.ErrEnded) {
		e.t.Fatal(err)
	}
}

// A filling is holds of many connections, which do not yield.
type filling []*transit.Hold

// Release empties all of them.
func (f filling) Release() {
	for _, h := range f {
		h.Release()
	}
}

// fillUp uses up a budget except for the given bytes.
func fillUp(b *transit.Budget, left int64) (f filling) {
	for free := b.Limit() - b.Held(); free > left && free > 1; free = b.Limit() - b.Held() {
		h := b.Hold(new(int), nil)
		_ = h.Resize(max(min(free/2, free-left), 1), false)
		f = append(f, &h)
	}
	return f
}

// settled waits until nothing is held for requests and responses.
func (e *env) settled() {
	e.t.Helper()
	synctest.Wait()
	if held := e.s.Parts().Bodies.Held(); held != 0 {
		e.t.Errorf("%d bytes are held by no request", held)
	}
	if held := e.s.Parts().Parked.Held(); held != 0 {
		e.t.Errorf("%d bytes are held by no receive", held)
	}
}

// Half-sent requests hold the budget, never more, until their time limit; then their connection
// ends. Others are served meanwhile.
func TestHalfSentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxTransitBytes: leastMemory})
		c := e.raw(1 << 16)
		half := rawclient.Message(8<<20, make([]byte, 6<<20))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { e.open(c, "SendMessage", half, false) })
		}
		wg.Wait()
		synctest.Wait()
		held := e.s.Parts().Bodies.Held()
		if held > e.s.Parts().Bodies.Largest() || held < e.s.Parts().Bodies.Largest()/2 {
			t.Errorf("they hold %d bytes of %d", held, e.s.Parts().Bodies.Largest())
		}
		if open := c.Streams(); open == 0 || open > 3 || e.s.Parts().Bodies.Refused() < 17 {
			t.Errorf("%d of 20 wait for more, and %d were refused", open, e.s.Parts().Bodies.Refused())
		}
		e.send(msg("normal", "other"))
		if _, ms := e.receive(e.ctx(), receiveRequest("normal")); len(ms) != 1 {
			t.Errorf("others receive %d messages", len(ms))
		}
		time.Sleep(transit.Pace(8 << 20))
		synctest.Wait()
		select {
		case <-c.Closed():
		default:
			t.Errorf("the connection is open after %v", transit.Pace(8<<20))
		}
		if e.s.Parts().Slow == 0 {
			t.Error("it was not counted")
		}
		e.settled()
	})
}

// A small request has a time limit too.
func TestHalfSentSmallRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		c := e.raw(1 << 16)
		e.open(c, "AckMessage", []byte{0, 0}, false)
		time.Sleep(transit.Pace(requests.StreamWindow) - time.Nanosecond)
		synctest.Wait()
		if held := e.s.Parts().Bodies.Held(); held == 0 {
			t.Error("it holds nothing")
		}
		time.Sleep(time.Nanosecond)
		<-c.Closed()
		e.settled()
	})
}

// A request whose length is too large is rejected before its first byte.
func TestLargeRequestIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		for op, size := range map[string]int{"SendMessage": 32<<20 + 1, "AckMessage": 2 << 20, "QueryRoute": 64<<10 + 1, "Telemetry": 64<<10 + 1} {
			c := e.raw(1 << 16)
			e.open(c, op, rawclient.Message(size, nil), false)
			synctest.Wait()
			if n := c.Streams(); n != 0 {
				t.Errorf("%s: the server waits for %d bytes", op, size)
			}
		}
		e.settled()
	})
}

// A response that is not read holds memory, and gives the messages and the memory back when its
// time is over.
func TestUnreadReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxTransitBytes: leastMemory})
		const size = 3 << 20
		for i := range 2 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, size))))
		}
		c := e.raw(0)
		raw, err := proto.Marshal(receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(time.Hour) }))
		if err != nil {
			t.Fatal(err)
		}
		e.open(c, "ReceiveMessage", rawclient.Message(len(raw), raw), true)
		synctest.Wait()
		held := e.s.Parts().Bodies.Held()
		if held < 2*size || held > 3*size {
			t.Errorf("two messages of %d bytes hold %d", size, held)
		}
		time.Sleep(transit.Pace(held))
		<-c.Closed()
		e.settled()
		if _, ms := e.receive(e.ctx(), receiveRequest("normal")); len(ms) != 2 || ms[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
			t.Errorf("afterwards %d messages are received, the first with attempt %d", len(ms), ms[0].GetSystemProperties().GetDeliveryAttempt())
		}
		e.settled()
	})
}

// A receive gets as many messages as there is memory for, and is rejected where there is none; the
// messages stay.
func TestReceiveIsBoundedByMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxTransitBytes: leastMemory})
		const size = 1 << 20
		for i := range 8 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, size))))
		}
		first := fillUp(e.s.Parts().Bodies, 8*size) // of which one connection gets half
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		if len(ms) < 2 || len(ms) > 4 {
			t.Errorf("with memory for at most 4 messages it got %d", len(ms))
		}
		second := fillUp(e.s.Parts().Bodies, size/2)
		st, none := e.receive(e.ctx(), receiveRequest("normal"))
		if refused(t, st, tidegate.CodeTooManyRequests, "memory for requests and responses"); len(none) != 0 {
			t.Errorf("it got %d messages", len(none))
		}
		first.Release()
		second.Release()
		for n := len(ms); n < 8; n += len(ms) {
			if _, ms = e.receive(e.ctx(), receiveRequest("normal")); len(ms) == 0 || ms[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
				t.Fatalf("%d of 8 messages are received, and then %v", n, ms)
			}
		}
	})
}

// Receives that wait have a budget of their own, and a connection has half of it.
func TestWaitingReceivesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxParkedBytes: 2 << 20})
		ctx, cancel := context.WithCancel(e.ctx())
		defer cancel()
		codes := make(chan *rmqpb.Status, 100)
		for range cap(codes) {
			go func() {
				if fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal"))); err == nil {
					codes <- fs[0].GetStatus()
				}
			}()
		}
		synctest.Wait()
		n := len(codes)
		if n < 50 || n > 60 {
			t.Errorf("%d of %d receives were refused", n, cap(codes))
		}
		for range n {
			refused(t, <-codes, tidegate.CodeTooManyRequests, "memory for waiting receives")
		}
		e.send(msg("normal", "m")) // sends have another budget
		cancel()
		e.settled()
	})
}

// Over HTTP a body that finds no memory gets 429 and Retry-After, and its memory is released.
func TestHTTPBodiesAreBounded(t *testing.T) {
	e := start(t, server.Options{MaxTransitBytes: leastMemory})
	ask := func(kind string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/topics/normal/messages", strings.NewReader(`{"body":"`+strings.Repeat("A", 3<<20)+`"}`))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, kind := range []string{"application/json", "application/octet-stream"} {
		others := fillUp(e.s.Parts().Bodies, 8<<20)
		before := e.s.Parts().Bodies.Held()
		resp := ask(kind)
		if resp.Code != http.StatusTooManyRequests || resp.Header().Get("Retry-After") == "" || !strings.Contains(resp.Body.String(), "memory for requests") {
			t.Errorf("%s: %d, %v: %s", kind, resp.Code, resp.Header(), resp.Body)
		}
		if held := e.s.Parts().Bodies.Held(); held != before {
			t.Errorf("%s: the refused request holds %d bytes", kind, held-before)
		}
		others.Release()
	}
	if resp := ask("application/json"); resp.Code != http.StatusOK || e.s.Parts().Bodies.Held() != 0 {
		t.Errorf("with memory: %d, and %d bytes are held", resp.Code, e.s.Parts().Bodies.Held())
	}
}

// A key without the permission to send to any topic is rejected before the body of its request
// arrives.
func TestObserverSendsNoBody(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	answer, raw := &rmqpb.SendMessageResponse{}, make([]byte, 16<<20)
	n := allocated.Bytes(func() {
		if err := e.invokeRaw(signed(t.Context(), "consumer"), "SendMessage", raw, answer); err != nil {
			t.Fatal(err)
		}
	})
	refused(t, answer.GetStatus(), tidegate.CodeForbidden, "consumer is not permitted to send to any topic")
	if n > 8<<20 {
		t.Errorf("it cost %d bytes", n)
	}
}
