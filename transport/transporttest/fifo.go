package transporttest

import (
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var fifoCases = []testCase{
	{name: "FIFOSettings", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		s, err := e.Transport.ConsumerSettings(e.Context(), e.group, e.topic)
		if err != nil || !s.FIFO {
			e.Errorf("got %+v, %v; want FIFO", s, err)
		}
		e.wantPolicy(s, e.ladder()[:1])
	}},
	{name: "FIFONeedsAGroup", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		results := e.Transport.Send(e.Context(), []*tidegate.Message{e.message("x")})
		if !e.lacks(!e.server.LacksTopicTypes, "LacksTopicTypes", "a message without a message group is accepted") {
			e.wantCode(results[0].Err, tidegate.CodeMessagePropertyConflict)
			return
		}
		if results[0].Err != nil {
			e.Error(results[0].Err)
		}
		e.mustAck(e.one())
	}},
	{name: "FIFOOrder", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		const groups, each = 3, 8
		for i := range each {
			for g := range groups {
				e.send(e.ordered(g, i))
			}
		}
		next := map[string]int{}
		r := e.fifoRequest()
		r.Max = 5
		for range groups * each {
			ds := e.receive(r)
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				if want := fmt.Sprint(next[d.MessageGroup]); string(d.Body) != want {
					e.Fatalf("%s: delivered %s, want %s", d.MessageGroup, d.Body, want)
				}
				next[d.MessageGroup]++
				e.mustAck(d)
			}
		}
		for g, n := range next {
			if n != each {
				e.Errorf("%s: %d of %d messages were delivered", g, n, each)
			}
		}
		if len(next) != groups {
			e.Errorf("messages of %d groups were delivered, want %d", len(next), groups)
		}
	}},
	{name: "FIFOFailedGroupWaitsOthersFlow", needs: needGroupsFlow, run: func(e *env) {
		e.setup(settings.TopicFIFO)
		const each = 3
		for i := range each {
			e.send(e.ordered(0, i), e.ordered(1, i))
		}
		r := e.fifoRequest()
		var failed *tidegate.Delivery
		got := map[string][]string{}
		for range each + 1 { // everything of group1, and the first of group0, which fails
			d := e.oneOf(r)
			got[d.MessageGroup] = append(got[d.MessageGroup], string(d.Body))
			if d.MessageGroup == "group0" {
				failed = d
				if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: 3 * e.server.Unit}); err != nil {
					e.Fatal(err)
				}
				continue
			}
			e.mustAck(d)
		}
		if failed == nil || fmt.Sprint(got["group0"], got["group1"]) != "[0] [0 1 2]" {
			e.Fatalf("delivered %v", got)
		}
		e.none(r)
		e.sleep(3 * e.server.Unit)
		for i := range each {
			d := e.oneOf(r)
			wantAttempt := 1
			if i == 0 {
				wantAttempt = 2
			}
			if string(d.Body) != fmt.Sprint(i) || d.Attempt != wantAttempt {
				e.Errorf("delivered %s, want %d, attempt %d", describe([]*tidegate.Delivery{d}), i, wantAttempt)
			}
			e.mustAck(d)
		}
	}},
	{name: "FIFOInFlightGroupWaits", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		e.send(e.ordered(0, 0), e.ordered(0, 1))
		r := e.fifoRequest()
		start := time.Now()
		first := e.oneOf(r)
		e.none(r)
		expires := 2 * e.server.Unit
		if !e.lacks(e.server.TimeoutsTakeTheSchedule, "TimeoutsTakeTheSchedule", "the redelivery waits for the invisible duration only") {
			expires += e.server.Unit
		}
		r.Wait = 2 * e.server.Unit
		e.sleep(expires - e.server.Unit - time.Since(start))
		if d := e.again(r, start, expires, "the first message was redelivered"); d.ID != first.ID || d.Attempt != 2 {
			e.Errorf("after the invisible time delivered %s, want the first again", describe([]*tidegate.Delivery{d}))
		}
	}},
	{name: "FIFOAttemptID", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		msgs := []*tidegate.Message{e.ordered(0, 0), e.ordered(1, 0), e.ordered(0, 1)}
		flows := !e.lacks(e.server.GroupsFlow, "GroupsFlow", "all messages are of one group; a repeated receive may read another queue, and take new messages")
		if !flows {
			msgs = []*tidegate.Message{msgs[0], msgs[2], e.ordered(0, 2)}
		}
		e.send(msgs...)
		r := e.fifoRequest()
		r.Max = 2
		r.AttemptID = "attempt-1"
		first := e.receive(r)
		again := e.receive(r)
		if len(first) == 0 || len(first) != 2 && flows && e.fullReceives() || len(again) < len(first) || len(again) > len(first) && flows ||
			!slices.Equal(ids(first), ids(again[:len(first)])) {
			e.Fatalf("first %s, repeated %s", describe(first), describe(again))
		}
		for _, d := range again {
			if d.Attempt != 1 {
				e.Errorf("a repeated response has attempt %d, want 1", d.Attempt)
			}
			e.mustAck(d)
		}
		r.AttemptID = "attempt-2"
		next := e.receive(r)
		for _, d := range next {
			for _, f := range again {
				if d.ID == f.ID {
					e.Errorf("%q was redelivered after its acknowledgement", d.ID)
				}
			}
		}
		if len(next) == 0 {
			e.Error("no message was delivered for another attempt ID")
		}
	}},
	{name: "FIFODeadLetterLetsTheNextGo", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		e.send(e.ordered(0, 0), e.ordered(0, 1))
		r := e.fifoRequest()
		if _, err := e.Transport.Settle(e.Context(), e.oneOf(r), transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"}); err != nil {
			e.Fatal(err)
		}
		if d := e.oneOf(r); string(d.Body) != "1" || d.Attempt != 1 {
			e.Errorf("delivered %s, want the next", describe([]*tidegate.Delivery{d}))
		}
	}},
}

func (e *env) ordered(g, i int) *tidegate.Message {
	m := e.message(fmt.Sprint(i))
	m.MessageGroup = fmt.Sprint("group", g)
	return m
}

// fifoRequest is a receive of a push consumer, because only push consumers have an order.
func (e *env) fifoRequest() transport.ReceiveRequest {
	r := e.request()
	r.Push = true
	return r
}

func ids(ds []*tidegate.Delivery) []string {
	var s []string
	for _, d := range ds {
		s = append(s, d.ID)
	}
	return s
}
