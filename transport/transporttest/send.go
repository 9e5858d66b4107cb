package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

var sendCases = []testCase{
	{name: "SendOne", run: func(e *env) {
		e.setup(settings.TopicNormal)
		msg := e.message("hello")
		r := e.send(msg)[0]
		if r.MessageID != msg.ID || r.Topic != e.topic || r.Attempts != 0 {
			e.Errorf("receipt %+v, want ID %q, topic %q, and the attempts left to the producer", r, msg.ID, e.topic)
		}
		d := e.one()
		if d.ID != msg.ID || string(d.Body) != "hello" || d.Attempt != 1 {
			e.Errorf("delivered %+v", d)
		}
		unknown := e.lacksPosition(r.Queue, r.Offset) || e.lacksPosition(d.Queue, d.Offset)
		if !unknown && (r.Queue >= 0 && r.Queue != d.Queue || r.Offset != d.Offset) {
			e.Errorf("receipt has queue %d, offset %d; delivery has %d, %d", r.Queue, r.Offset, d.Queue, d.Offset)
		}
		e.mustAck(d)
		e.none(e.request())
	}},
	{name: "SendMany", run: func(e *env) {
		e.setup(settings.TopicNormal)
		want := map[string]string{}
		var msgs []*tidegate.Message
		for i := range 50 {
			m := e.message(fmt.Sprint("body ", i))
			m.Tag, m.Keys = fmt.Sprint("tag", i), []string{fmt.Sprint("key", i)}
			m.Properties = map[string]string{"i": fmt.Sprint(i)}
			msgs = append(msgs, m)
			want[m.ID] = fmt.Sprint(m.Tag, m.Keys, m.Properties, string(m.Body))
		}
		for i, r := range e.send(msgs...) {
			if r.MessageID != msgs[i].ID {
				e.Errorf("receipt %d is of %q, want %q", i, r.MessageID, msgs[i].ID)
			}
		}
		r := e.request()
		r.Max = 32
		for _, d := range e.drain(r) {
			if got := fmt.Sprint(d.Tag, d.Keys, d.Properties, string(d.Body)); got != want[d.ID] {
				e.Errorf("message %q: got %s, want %s (or it came twice)", d.ID, got, want[d.ID])
			}
			delete(want, d.ID)
		}
		if len(want) != 0 {
			e.Errorf("%d messages were not delivered", len(want))
		}
	}},
	{name: "SendPartFails", run: func(e *env) {
		e.setup(settings.TopicNormal)
		bad, code := e.message("bad"), tidegate.Code(protocol.CodeMessagePropertyConflict)
		bad.MessageGroup = "a group on a topic without order"
		if e.lacks(!e.server.LacksTopicTypes, "LacksTopicTypes", "an invalid tag is the fault, instead of a message group") {
			bad.MessageGroup, bad.Tag, code = "", "a|b", protocol.CodeIllegalMessageTag
		}
		msgs := []*tidegate.Message{e.message("first"), bad, e.message("last")}
		results := e.Transport.Send(e.Context(), msgs)
		if len(results) != 3 {
			e.Fatalf("%d results for 3 messages", len(results))
		}
		for i, wantErr := range []bool{false, true, false} {
			if (results[i].Err != nil) != wantErr {
				e.Errorf("result %d: error %v", i, results[i].Err)
			}
		}
		e.wantCode(results[1].Err, code)
		var got []string
		for _, d := range e.drain(e.request()) {
			got = append(got, string(d.Body))
		}
		slices.Sort(got)
		if !slices.Equal(got, []string{"first", "last"}) {
			e.Errorf("delivered %q", got)
		}
	}},
	{name: "SendRefused", run: func(e *env) {
		e.setup(settings.TopicNormal)
		const noBody, noTopic = "no body", "no such topic"
		for _, c := range []struct {
			name   string
			change func(*tidegate.Message)
			code   tidegate.Code
		}{
			{noTopic, func(m *tidegate.Message) { m.Topic = e.name("nowhere") }, tidegate.CodeTopicNotFound},
			{"bad topic", func(m *tidegate.Message) { m.Topic = "a b" }, protocol.CodeIllegalTopic},
			{noBody, func(m *tidegate.Message) { m.Body = nil }, protocol.CodeMessageBodyEmpty},
			{"big body", func(m *tidegate.Message) { m.Body = make([]byte, tidegate.MaxBodySize+1) }, tidegate.CodeMessageBodyTooLarge},
			{"bad tag", func(m *tidegate.Message) { m.Tag = "a|b" }, protocol.CodeIllegalMessageTag},
			{"blank key", func(m *tidegate.Message) { m.Keys = []string{" "} }, protocol.CodeIllegalMessageKey},
			{"long group", func(m *tidegate.Message) { m.MessageGroup = strings.Repeat("g", 64) }, protocol.CodeIllegalMessageGroup},
			{"reserved property", func(m *tidegate.Message) { m.Properties = map[string]string{"UNIQ_KEY": "x"} },
				protocol.CodeIllegalMessagePropertyKey},
			{"many properties", func(m *tidegate.Message) {
				m.Properties = map[string]string{}
				for i := range protocol.MaxProperties + 1 {
					m.Properties[fmt.Sprint("p", i)] = "x"
				}
			}, protocol.CodeMessagePropertiesTooLarge},
			{"big properties", func(m *tidegate.Message) {
				m.Properties = map[string]string{"p": strings.Repeat("x", protocol.MaxPropertiesSize+1)}
			}, protocol.CodeMessagePropertiesTooLarge},
		} {
			if c.name == noBody && e.lacks(e.server.RefusesEmptyBodies, "RefusesEmptyBodies", "no message without a body is sent") {
				continue
			}
			if c.name == noTopic && e.createsTopics() {
				continue
			}
			msg := e.message("x")
			c.change(msg)
			results := e.Transport.Send(e.Context(), []*tidegate.Message{msg})
			if len(results) != 1 || results[0].Err == nil {
				e.Errorf("%s: got %+v, want an error", c.name, results)
				continue
			}
			if te, ok := errors.AsType[*tidegate.Error](results[0].Err); !ok || te.Code != c.code || te.MaybeStored || te.NotConnected {
				e.Errorf("%s: got %v, want %d %s with a connection and nothing stored", c.name, results[0].Err, int(c.code), c.code)
			}
		}
		e.none(e.request())
	}},
	{name: "RoundTrip", run: func(e *env) {
		e.setup(settings.TopicFIFO)
		body := make([]byte, 256)
		for i := range body {
			body[i] = byte(i)
		}
		msg := &tidegate.Message{
			ID: "caller's own ID", Topic: e.topic, Tag: "tag-ü", Keys: []string{"k1", "k2"}, MessageGroup: "gröup",
			Properties:   map[string]string{"user": "日本", "quote\"": "x=y&z;\\"},
			TraceContext: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Body: body,
		}
		// A field that is added to Message is tested as well.
		for f, v := range reflect.ValueOf(*msg).Fields() {
			if v.IsZero() && !slices.Contains([]string{"DeliverAt", "Priority", "LiteTopic"}, f.Name) { // which exclude a message group
				e.Fatalf("the case leaves Message.%s out", f.Name)
			}
		}
		before := time.Now().Truncate(time.Millisecond)
		e.send(msg)
		after := time.Now()
		d := e.one()
		got := d.Message
		if !maps.Equal(got.Properties, msg.Properties) || !reflect.DeepEqual(withoutProperties(got), withoutProperties(*msg)) {
			e.Errorf("delivered %+v\nsent      %+v", got, *msg)
		}
		if d.ConsumerGroup != e.group || d.Attempt != 1 || d.Handle == "" || !e.lacksPosition(d.Queue, d.Offset) && (d.Queue < 0 || d.Offset < 0) {
			e.Errorf("delivery %+v", d)
		}
		stored := d.StoredAt
		if stored.IsZero() && e.lacks(!e.server.LacksStoreTimes, "LacksStoreTimes", "a delivery may have no time of storage") {
			stored = before
		}
		if d.BornAt.Before(before) || d.BornAt.After(after) || stored.Before(before) || stored.After(after) {
			e.Errorf("born %v, stored %v; sent between %v and %v", d.BornAt, d.StoredAt, before, after)
		}
		if d.BornHost == "" {
			e.Error("the delivery does not have the producer's host")
		}
	}},
	{name: "Priorities", needs: needPriorities, run: func(e *env) {
		e.setup(settings.TopicPriority)
		var sent [2][]string // IDs by priority
		for _, priority := range []int{0, 1, 0, 1, 1, 0} {
			m := e.message("x")
			m.Priority = priority
			e.send(m)
			sent[priority] = append(sent[priority], m.ID)
		}
		for _, want := range slices.Concat(sent[1], sent[0]) {
			d := e.one()
			if d.ID != want || d.Priority == 1 != slices.Contains(sent[1], d.ID) {
				e.Errorf("received %s with the priority %d, want %s", d.ID, d.Priority, want)
			}
			e.mustAck(d)
		}
		e.none(e.request())
	}},
	{name: "PriorityNeedsItsTopic", needs: needRankedTopic, run: func(e *env) {
		e.setup(settings.TopicNormal)
		m := e.message("x")
		m.Priority = 1
		e.wantCode(e.Transport.Send(e.Context(), []*tidegate.Message{m})[0].Err, protocol.CodeMessagePropertyConflict)
		e.none(e.request())
	}},
	{name: "BodyOfEverySize", run: func(e *env) {
		e.setup(settings.TopicNormal)
		for _, size := range []int{1, 4095, 4097, 1 << 20, tidegate.MaxBodySize} {
			for _, fill := range []string{"easy to compress ", "\x00\xff\x1f\x8b"} {
				msg := e.message("x")
				msg.Body = bytes.Repeat([]byte(fill), size/len(fill)+1)[:size]
				e.send(msg)
				d := e.one()
				if !bytes.Equal(d.Body, msg.Body) {
					e.Errorf("%d bytes of %q came back as %d others", size, fill, len(d.Body))
				}
				e.mustAck(d)
			}
		}
	}},
	{name: "NothingIsShared", run: func(e *env) {
		e.setup(settings.TopicNormal)
		msg := e.message("original")
		msg.Keys, msg.Properties = []string{"key"}, map[string]string{"p": "original"}
		want := msg.Clone()
		want.Body = bytes.Clone(msg.Body)
		e.send(msg)
		spoil := func(m *tidegate.Message) {
			copy(m.Body, "SPOILED!")
			m.Keys[0], m.Properties["p"], m.Tag = "SPOILED", "SPOILED", "SPOILED"
		}
		if !reflect.DeepEqual(msg, want) {
			e.Errorf("Send changed the message to %+v", msg)
		}
		spoil(msg)
		d := e.one()
		for range 2 {
			if !reflect.DeepEqual(&d.Message, want) {
				e.Fatalf("delivered %+v, sent %+v", d.Message, *want)
			}
			again := *d
			spoil(&d.Message)
			failed := time.Now()
			if _, err := e.Transport.Settle(e.Context(), &again, transport.Verdict{Kind: transport.Retry}); err != nil {
				e.Fatal(err)
			}
			d = e.retried(e.request(), failed, 0)
		}
	}},
	{name: "ProducerSettings", run: func(e *env) {
		e.setup(settings.TopicNormal)
		s, err := e.Transport.ProducerSettings(e.Context(), e.topic)
		if err != nil || s.MaxAttempts < 0 || s.MaxBodySize < 0 {
			e.Errorf("got %+v, %v", s, err)
		}
		if s.Backoff != nil && s.Backoff.Delay(0) < 0 {
			e.Errorf("the pushed backoff begins with %v", s.Backoff.Delay(0))
		}
		if s.MaxAttempts == 0 || s.MaxBodySize == 0 {
			e.Errorf("got %+v, want attempts and a largest body", s)
		}
		if s.Backoff == nil && !e.lacks(e.server.PushesThrottleBackoff, "PushesThrottleBackoff", "no backoff is the producer's own") {
			e.Error("the server pushes no backoff")
		}
	}},
}

// lacksPosition reports whether a queue or an offset is unknown, on a server without positions.
func (e *env) lacksPosition(queue int, offset int64) bool {
	e.Helper()
	return (queue == -1 || offset == -1) && e.lacks(!e.server.LacksPositions, "LacksPositions", "a queue or an offset may be -1")
}

// createsTopics reports whether the server creates missing topics.
func (e *env) createsTopics() bool {
	e.Helper()
	return e.lacks(!e.server.LacksMissingTopics, "LacksMissingTopics", "a missing topic is created by its first use")
}

func withoutProperties(m tidegate.Message) tidegate.Message {
	m.Properties = nil
	return m
}

func (e *env) wantCode(err error, code tidegate.Code) {
	e.Helper()
	if te, ok := errors.AsType[*tidegate.Error](err); !ok || te.Code != code {
		e.Errorf("got %v, want an error with %d %s", err, int(code), code)
	}
}

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
			e.wantCode(results[0].Err, protocol.CodeMessagePropertyConflict)
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
