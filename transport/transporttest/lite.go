package transporttest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// liteCases are the promises of a [transport.LiteSubscriber].
var liteCases = []testCase{
	{name: "LiteSubscribedOnly", needs: needLite, run: optional(liteSubscribedOnly)},
	{name: "LiteOrder", needs: needLite, run: optional(liteOrder)},
	{name: "LiteChangeDuringReceive", needs: needLite, run: optional(liteChangeDuringReceive)},
	{name: "LiteUnsubscribe", needs: needLite, run: optional(liteUnsubscribe)},
	{name: "LiteSet", needs: needLite, run: optional(liteWholeSet)},
	{name: "LiteSettlements", needs: needLite, run: optional(liteSettlements)},
	{name: "LiteDeadLetter", needs: needLite, run: optional(liteDeadLetter)},
	{name: "LiteStart", needs: needLite, run: optional(liteStart)},
	{name: "LiteNames", needs: needLite, run: optional(liteNames)},
	{name: "LiteNeedsItsTopic", needs: needLiteTopic, run: optional(liteNeedsItsTopic)},
	{name: "LiteServeEnds", needs: needLite, run: optional(liteServeEnds)},
}

// setupLite creates a parent and a group of lite topics. The receives of the case are those of a
// consumer that has the lite topics.
func (e *env) setupLite(l transport.LiteSubscriber, liteTopics ...string) {
	e.Helper()
	e.createTopic(e.topic, settings.TopicLite)
	if e.CreateLiteGroup == nil {
		e.Fatal("the fixture has no CreateLiteGroup, and its Server has LiteTopics; set the function")
	}
	s := transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps(e.ladder()[:1])}
	if err := e.CreateLiteGroup(e.Context(), e.group, e.topic, s); err != nil {
		e.Fatalf("create lite group %q: %v", e.group, err)
	}
	e.liteConsumer = "consumer-1"
	e.syncLite(l, transport.LiteSet, transport.LiteStart{}, liteTopics...)
}

func (e *env) syncLite(l transport.LiteSubscriber, a transport.LiteAction, start transport.LiteStart, liteTopics ...string) {
	e.Helper()
	if err := l.SyncLite(e.Context(), e.liteSync(a, start, liteTopics...)); err != nil {
		e.Fatalf("SyncLite, action %d of %q: %v", a, liteTopics, err)
	}
}

func (e *env) liteSync(a transport.LiteAction, start transport.LiteStart, liteTopics ...string) transport.LiteSync {
	return transport.LiteSync{
		LiteConsumer: transport.LiteConsumer{Group: e.group, Topic: e.topic, ID: e.liteConsumer}, Action: a, Topics: liteTopics, Start: start,
	}
}

// sendLite sends messages whose bodies are the name of their lite topic and one of the numbers, for
// example "a0".
func (e *env) sendLite(liteTopic string, numbers ...int) {
	e.Helper()
	for _, n := range numbers {
		m := e.message(fmt.Sprint(liteTopic, n))
		m.LiteTopic = liteTopic
		e.send(m)
	}
}

// wantLite receives and acknowledges messages until nothing comes within a unit, and compares their
// bodies, those of each lite topic in order.
func (e *env) wantLite(what string, want ...string) {
	e.Helper()
	var got []string
	for _, d := range e.drain(e.request()) {
		got = append(got, string(d.Body))
		if d.Topic != e.topic || d.LiteTopic == "" || !strings.HasPrefix(string(d.Body), d.LiteTopic) || d.MessageGroup != "" {
			e.Errorf("%s: delivered %q of the topic %q, lite topic %q and message group %q", what, d.Body, d.Topic, d.LiteTopic, d.MessageGroup)
		}
	}
	slices.SortStableFunc(got, func(a, b string) int { return cmp.Compare(a[0], b[0]) })
	if !slices.Equal(got, want) {
		e.Fatalf("%s: delivered %q, want %q", what, got, want)
	}
}

// A consumer gets the messages of its lite topics, and no others. Another consumer of the group has
// lite topics of its own.
func liteSubscribedOnly(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a", "b")
	first := e.liteConsumer
	e.liteConsumer = "consumer-2"
	e.syncLite(l, transport.LiteAdd, transport.LiteStart{}, "c")
	e.sendLite("a", 0, 1)
	e.sendLite("b", 0)
	e.sendLite("c", 0)
	e.sendLite("d", 0)
	e.wantLite("the consumer of c", "c0")
	e.liteConsumer = first
	e.wantLite("the consumer of a and b", "a0", "a1", "b0")
}

// One message of a lite topic is in flight at a time. A failed one comes first again.
func liteOrder(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a", "b")
	e.sendLite("a", 0, 1, 2)
	e.sendLite("b", 0)
	byTopic := map[string]*tidegate.Delivery{}
	for range 2 {
		d := e.one()
		byTopic[d.LiteTopic] = d
	}
	if byTopic["a"] == nil || byTopic["b"] == nil || string(byTopic["a"].Body) != "a0" || string(byTopic["b"].Body) != "b0" {
		e.Fatalf("delivered %v, want a0 and b0: the lite topics do not wait for each other", byTopic)
	}
	e.none(e.request())
	e.mustAck(byTopic["b"])
	start := time.Now()
	if _, err := e.Transport.Settle(e.Context(), byTopic["a"], transport.Verdict{Kind: transport.Retry, Delay: e.server.Unit}); err != nil {
		e.Fatal(err)
	}
	e.none(e.request())
	again := e.retried(e.request(), start, e.server.Unit)
	if string(again.Body) != "a0" || again.Attempt != 2 || again.LiteTopic != "a" {
		e.Fatalf("after the retry delivered %s of lite topic %q, want attempt 2 of a0", describe([]*tidegate.Delivery{again}), again.LiteTopic)
	}
	e.mustAck(again)
	e.wantLite("after the retry", "a1", "a2")
}

// A receive that waits gets the messages of a lite topic that the consumer adds meanwhile.
func liteChangeDuringReceive(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	wait := later(func() {
		e.sleep(e.server.Unit / 4)
		if err := l.SyncLite(e.Context(), e.liteSync(transport.LiteAdd, transport.LiteStart{}, "b")); err != nil {
			e.Errorf("SyncLite: %v", err)
		}
		e.sleep(e.server.Unit / 4)
		m := e.message("b0")
		m.LiteTopic = "b"
		if err := e.Transport.Send(e.Context(), []*tidegate.Message{m})[0].Err; err != nil {
			e.Errorf("Send: %v", err)
		}
	})
	defer wait()
	start := time.Now()
	if d := e.one(); d.LiteTopic != "b" {
		e.Errorf("delivered %q of the lite topic %q, want b0", d.Body, d.LiteTopic)
	}
	e.after(start, e.server.Unit/2, "the message arrived")
}

// The group keeps its position in a lite topic that its consumer removes.
func liteUnsubscribe(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a", "b")
	e.sendLite("a", 0)
	e.wantLite("before", "a0")
	e.syncLite(l, transport.LiteRemove, transport.LiteStart{}, "a", "never-there")
	e.sendLite("a", 1)
	e.sendLite("b", 0)
	e.wantLite("without a", "b0")
	e.syncLite(l, transport.LiteAdd, transport.LiteStart{}, "a")
	e.wantLite("with a again", "a1")
}

// LiteSet replaces the set. The repetition of a set changes nothing.
func liteWholeSet(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a", "b")
	e.syncLite(l, transport.LiteSet, transport.LiteStart{}, "b", "c")
	for _, name := range []string{"a", "b", "c"} {
		e.sendLite(name, 0)
	}
	e.wantLite("with b and c", "b0", "c0")
	e.syncLite(l, transport.LiteSet, transport.LiteStart{}, "b", "c")
	e.sendLite("c", 1)
	e.wantLite("after a repetition", "c1")
	e.syncLite(l, transport.LiteSet, transport.LiteStart{})
	e.sendLite("b", 1)
	e.wantLite("without lite topics")
}

// The settlements of deliveries work as those of other topics.
func liteSettlements(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	e.sendLite("a", 0, 1)
	first := e.one()
	e.sleep(e.server.Unit)
	handle, err := e.Transport.Extend(e.Context(), first, 4*e.server.Unit, false)
	if err != nil || handle == "" {
		e.Fatalf("Extend: %q, %v", handle, err)
	}
	e.sleep(e.server.Unit + e.server.Unit/2) // past the first lease
	e.none(e.request())
	first.Handle = handle
	if e.server.Capabilities.Suspend {
		if _, err := e.Transport.Settle(e.Context(), first, transport.Verdict{Kind: transport.Release}); err != nil {
			e.Fatalf("Release: %v", err)
		}
		if first = e.one(); string(first.Body) != "a0" || first.Attempt != 1 {
			e.Fatalf("after the release delivered %s, want attempt 1 of a0", describe([]*tidegate.Delivery{first}))
		}
	}
	e.mustAck(first)
	start := time.Now()
	expires := 2 * e.server.Unit
	if !e.lacks(e.server.TimeoutsTakeTheSchedule, "TimeoutsTakeTheSchedule", "the redelivery waits for the invisible duration only") {
		expires += e.server.Unit
	}
	second := e.one()
	r := e.request()
	r.Wait = expires
	again := e.again(r, start, expires, "the message whose lease ended was redelivered")
	if second.Attempt != 1 || again.ID != second.ID || again.Attempt != 2 || again.LiteTopic != "a" {
		e.Fatalf("delivered %s and then %s of the lite topic %q, want a1 twice", describe([]*tidegate.Delivery{second}), describe([]*tidegate.Delivery{again}), again.LiteTopic)
	}
	e.mustAck(again)
	e.none(e.request())
}

// A dead letter keeps its lite topic, and lets the next message go.
func liteDeadLetter(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	msg := e.message("hopeless")
	msg.LiteTopic, msg.Tag, msg.Properties = "a", "tag", map[string]string{"p": "v"}
	e.send(msg)
	e.sendLite("a", 1)
	d := e.one()
	_, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such session"})
	if e.lacks(!e.server.LacksLiteDeadLetters, "LacksLiteDeadLetters", "a message of a lite topic cannot become a dead letter") {
		e.wantCode(err, tidegate.CodeNotImplemented)
		e.mustAck(d)
		e.wantLite("after the acknowledgement", "a1")
		return
	}
	if err != nil {
		e.Fatal(err)
	}
	e.wantLite("after the dead letter", "a1")
	if letter := e.deadLetter(msg, d, "no such session"); letter.LiteTopic != "a" {
		e.Errorf("the dead letter has the lite topic %q, want %q", letter.LiteTopic, "a")
	}
}

// A start is where the group begins in a lite topic.
func liteStart(e *env, l transport.LiteSubscriber) {
	e.setupLite(l)
	for _, name := range []string{"a", "b"} {
		e.sendLite(name, 0, 1)
	}
	e.syncLite(l, transport.LiteAdd, transport.LiteStart{Newest: true}, "a")
	e.sendLite("a", 2)
	e.wantLite("from the newest message", "a2")
	e.syncLite(l, transport.LiteAdd, transport.LiteStart{Oldest: true}, "b")
	e.wantLite("from the oldest message", "b0", "b1")
	e.sendLite("a", 3)
	e.syncLite(l, transport.LiteSet, transport.LiteStart{}, "a", "b")
	e.wantLite("after a repetition of the set", "a3")
}

// Illegal names are rejected, and change nothing.
func liteNames(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	for _, name := range []string{"", " ", strings.Repeat("x", 65)} {
		e.wantCode(l.SyncLite(e.Context(), e.liteSync(transport.LiteAdd, transport.LiteStart{}, "b", name)), protocol.CodeIllegalLiteTopic)
		if name == "" {
			continue // a message without a lite topic
		}
		m := e.message("x")
		m.LiteTopic = name
		e.wantCode(e.Transport.Send(e.Context(), []*tidegate.Message{m})[0].Err, protocol.CodeIllegalLiteTopic)
	}
	longest := strings.Repeat("l", 64)
	e.syncLite(l, transport.LiteAdd, transport.LiteStart{}, longest)
	e.sendLite("a", 0)
	e.sendLite("b", 0)
	e.sendLite(longest, 0)
	e.wantLite("after the errors", "a0", longest+"0")
}

// Only topics of type LITE take messages with a lite topic, and they take no others.
func liteNeedsItsTopic(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	e.wantCode(e.Transport.Send(e.Context(), []*tidegate.Message{e.message("x")})[0].Err, protocol.CodeMessagePropertyConflict)
	m := e.message("x")
	m.Topic, m.LiteTopic = e.name("normal"), "a"
	e.createTopic(m.Topic, settings.TopicNormal)
	e.wantCode(e.Transport.Send(e.Context(), []*tidegate.Message{m})[0].Err, protocol.CodeMessagePropertyConflict)
	e.none(e.request())
}

// ServeLite blocks until its ctx ends, and then returns nil. Nothing ends the lite topics meanwhile.
func liteServeEnds(e *env, l transport.LiteSubscriber) {
	e.setupLite(l, "a")
	ctx, cancel := context.WithCancelCause(e.Context())
	start := time.Now()
	var ended []string
	var err error
	wait := later(func() {
		err = l.ServeLite(ctx, e.liteSync(transport.LiteSet, transport.LiteStart{}).LiteConsumer, func(name string) { ended = append(ended, name) })
	})
	e.sendLite("a", 0)
	e.wantLite("meanwhile", "a0")
	e.sleep(e.server.Unit - time.Since(start))
	start = time.Now()
	cancel(errEnough)
	wait()
	e.after(start, 0, "ServeLite returned")
	if err != nil || len(ended) > 0 {
		e.Errorf("ServeLite returned %v, and ended %q; want nil and nothing", err, ended)
	}
}
