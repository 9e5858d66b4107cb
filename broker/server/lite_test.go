package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// liteSettings are the settings of a consumer of lite topics of the topic "parent", in the group g.
func liteSettings() *rmqpb.Settings {
	in := consumer(rmqpb.ClientType_LITE_PUSH_CONSUMER)
	in.GetSubscription().Subscriptions = []*rmqpb.SubscriptionEntry{{Topic: res("parent")}}
	return in
}

// parent creates the topic "parent" with lite topics.
func (e *env) parent(lite settings.LiteParent) {
	e.t.Helper()
	assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), "parent", settings.Topic{Type: settings.TopicLite, Lite: lite})))
}

// sendLite stores a message for each "lite topic:id".
func (e *env) sendLite(ms ...string) {
	e.t.Helper()
	for _, m := range ms {
		lite, id, _ := strings.Cut(m, ":")
		e.send(msg("parent", id, sys(func(p *rmqpb.SystemProperties) { p.LiteTopic = &lite })))
	}
}

// sync changes the lite topics of a client of the group g, and returns the status.
func (e *env) sync(client string, action rmqpb.LiteSubscriptionAction, from *rmqpb.OffsetOption, topics ...string) *rmqpb.Status {
	e.t.Helper()
	return assert.Value(e.SyncLiteSubscription(as(e.t.Context(), client), &rmqpb.SyncLiteSubscriptionRequest{
		Topic: res("parent"), Group: res("g"), Action: action, LiteTopicSet: topics, OffsetOption: from,
	}))(e.t).GetStatus()
}

// liteMessages receives as a client, without a filter as RocketMQ's clients, acknowledges the
// messages and returns them as "lite topic:id", in order.
func (e *env) liteMessages(client string) (got []string) {
	e.t.Helper()
	for {
		st, ms := e.receive(as(e.t.Context(), client), receiveRequest("parent", polling(0), func(r *rmqpb.ReceiveMessageRequest) { r.FilterExpression = nil }))
		if st.GetCode() == rmqpb.Code_MESSAGE_NOT_FOUND {
			slices.Sort(got)
			return got
		}
		refused(e.t, st, protocol.CodeOK)
		for _, m := range ms {
			p := m.GetSystemProperties()
			assert.That(e.t, m.GetTopic().GetName() == "parent" && p.GetMessageType() == rmqpb.MessageType_LITE && p.GetMessageGroup() == "", "the message is %v", m)
			got = append(got, p.GetLiteTopic()+":"+p.GetMessageId())
		}
		e.ack(ms...)
	}
}

func (e *env) wantLite(client string, want ...string) {
	e.t.Helper()
	if got := e.liteMessages(client); !slices.Equal(got, want) {
		e.t.Errorf("%s received %v, want %v", client, got, want)
	}
}

const (
	addLite    = rmqpb.LiteSubscriptionAction_PARTIAL_ADD
	removeLite = rmqpb.LiteSubscriptionAction_PARTIAL_REMOVE
	setLite    = rmqpb.LiteSubscriptionAction_COMPLETE_ADD
	endLite    = rmqpb.LiteSubscriptionAction_COMPLETE_REMOVE
)

// A client of the type LITE_PUSH_CONSUMER receives messages of its lite topics and of no others. Its
// settings have the limits, also before its group exists.
func TestLitePushConsumer(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.parent(settings.LiteParent{MaxTopics: 4})
		_, got := e.telemetry(as(t.Context(), "one"), liteSettings())
		sub := got.GetSubscription()
		if !sub.GetFifo() || sub.GetLiteSubscriptionQuota() != 2000 || sub.GetMaxLiteTopicSize() != 64 {
			t.Errorf("the settings are %v; want FIFO, a quota of 2000 and names of 64 bytes", sub)
		}
		_, err := e.b.Group("g")
		assert.That(t, err != nil, "settings have created the group")
		refused(t, e.sync("one", setLite, nil), protocol.CodeOK)
		g := assert.Value(e.b.Group("g"))(t)
		assert.That(t, g.FIFO && g.Lite.Topic == "parent", "the group is %+v", g.Group)
		r := assert.Value(e.Heartbeat(as(t.Context(), "one"), &rmqpb.HeartbeatRequest{Group: res("g"), ClientType: rmqpb.ClientType_LITE_PUSH_CONSUMER}))(t)
		refused(t, r.GetStatus(), protocol.CodeOK)

		e.sendLite("a:1", "b:2", "c:3", "a:4")
		e.wantLite("one")
		refused(t, e.sync("one", addLite, nil, "a", "b"), protocol.CodeOK)
		e.wantLite("one", "a:1", "a:4", "b:2")
		refused(t, e.sync("one", removeLite, nil, "a", "never"), protocol.CodeOK)
		e.sendLite("a:5", "b:6")
		e.wantLite("one", "b:6")
		refused(t, e.sync("one", setLite, nil, "c"), protocol.CodeOK)
		e.wantLite("one", "c:3")
		refused(t, e.sync("one", endLite, nil, "c"), protocol.CodeOK)
		e.sendLite("c:7")
		e.wantLite("one")

		refused(t, e.sync("one", addLite, nil, strings.Repeat("x", 65)), protocol.CodeIllegalLiteTopic, "65", "64")
		refused(t, e.sync("one", addLite, nil, strings.Repeat("x", 64)), protocol.CodeOK)
		refused(t, e.sync("one", addLite, nil, "fifth"), protocol.CodeLiteTopicQuotaExceeded, "4")
		refused(t, e.sync("one", 77, nil), tidegate.CodeBadRequest, "77", "PARTIAL_ADD")

		// Another kind of client has no lite topics.
		e.telemetry(as(t.Context(), "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		st, _ := e.receive(as(t.Context(), "push"), receiveRequest("parent", polling(0)))
		refused(t, st, tidegate.CodeBadRequest, "lite topics")
	})
}

// A message that a client of RocketMQ suspends comes again after the time with the same attempt, and
// the next one of its lite topic waits. From a client of tidegate the same request extends the
// delivery, whose end is a failure.
func TestSuspendedLiteMessage(t *testing.T) {
	for name, c := range map[string]struct {
		headers []string
		after   time.Duration // then the message comes again
		attempt int32
	}{
		"rocketmq": {nil, 10 * time.Second, 1},
		"tidegate": {[]string{wire.HeaderFeatures, wire.FeaturePacked}, 13 * time.Second, 2}, // and the interval of a FIFO group
	} {
		subtest(t, name, func(t *testing.T) {
			e := start(t, server.Options{MinLongPolling: 1})
			e.parent(settings.LiteParent{})
			e.telemetry(as(t.Context(), "one", c.headers...), liteSettings())
			refused(t, e.sync("one", addLite, nil, "a"), protocol.CodeOK)
			e.sendLite("a:1", "a:2")
			first := e.one(as(t.Context(), "one"), receiveRequest("parent", polling(0), func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
			r := assert.Value(e.ChangeInvisibleDuration(as(t.Context(), "one"), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("parent"), MessageId: "1", ReceiptHandle: first.GetSystemProperties().GetReceiptHandle(),
				InvisibleDuration: durationpb.New(10 * time.Second), LiteTopic: new("a"), Suspend: new(true),
			}))(t)
			refused(t, r.GetStatus(), protocol.CodeOK)
			time.Sleep(c.after - time.Millisecond)
			st, _ := e.receive(as(t.Context(), "one"), receiveRequest("parent", polling(0)))
			refused(t, st, protocol.CodeMessageNotFound)
			time.Sleep(time.Millisecond)
			p := e.one(as(t.Context(), "one"), receiveRequest("parent", polling(0), func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })).GetSystemProperties()
			assert.That(t, p.GetMessageId() == "1" && p.GetDeliveryAttempt() == c.attempt, "then came %s, attempt %d; want 1, attempt %d", p.GetMessageId(), p.GetDeliveryAttempt(), c.attempt)
		})
	}
}

// A client whose settings the server does not have, as after its restart, receives from its lite
// topics.
func TestLiteConsumerWithoutSettings(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.parent(settings.LiteParent{})
		e.sendLite("a:1", "b:2")
		refused(t, e.sync("one", setLite, nil, "a"), protocol.CodeOK)
		e.wantLite("one", "a:1")
	})
}

// The offset option moves the group in the lite topics that the client gains.
func TestLiteOffsetOptions(t *testing.T) {
	policy := func(p rmqpb.OffsetOption_Policy) *rmqpb.OffsetOption {
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{Policy: p}}
	}
	offset := func(n int64) *rmqpb.OffsetOption {
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: n}}
	}
	tail := func(n int64) *rmqpb.OffsetOption {
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_TailN{TailN: n}}
	}
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.parent(settings.LiteParent{})
		began := time.Now()
		for i := range 5 {
			e.sendLite(fmt.Sprint("a:", i))
			time.Sleep(time.Second)
		}
		at := func(after time.Duration) *rmqpb.OffsetOption {
			return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Timestamp{Timestamp: began.Add(after).UnixMilli()}}
		}
		all := []string{"a:0", "a:1", "a:2", "a:3", "a:4"}
		refused(t, e.sync("one", setLite, nil), protocol.CodeOK)
		for _, c := range []struct {
			from *rmqpb.OffsetOption
			want []string
		}{
			{nil, all}, {policy(rmqpb.OffsetOption_LAST), nil}, {policy(rmqpb.OffsetOption_MIN), all}, {policy(rmqpb.OffsetOption_MAX), nil},
			{offset(0), all}, {offset(3), all[3:]}, {tail(0), nil}, {tail(2), all[3:]}, {at(1500 * time.Millisecond), all[2:]},
		} {
			refused(t, e.sync("one", addLite, c.from, "a"), protocol.CodeOK)
			got := e.liteMessages("one")
			assert.That(t, slices.Equal(got, c.want), "with %v the client received %v, want %v", c.from, got, c.want)
			refused(t, e.sync("one", removeLite, c.from, "a"), protocol.CodeOK)
		}
		refused(t, e.sync("one", addLite, policy(77), "a"), tidegate.CodeBadRequest, "77", "MIN")
		refused(t, e.sync("one", addLite, offset(-1), "a"), tidegate.CodeBadRequest, "-1")
		refused(t, e.sync("one", addLite, tail(-2), "a"), tidegate.CodeBadRequest, "-2")
		refused(t, e.sync("one", addLite, at(-1e6*time.Hour), "a"), tidegate.CodeBadRequest, "1970")
	})
}

// unsubscribed reads a command that has to be the end of a lite topic.
func unsubscribed(t *testing.T, st stream) string {
	t.Helper()
	cmd := assert.Value(st.Recv())(t)
	assert.MustThat(t, cmd.GetNotifyUnsubscribeLiteCommand() != nil && cmd.GetStatus().GetCode() == rmqpb.Code_OK, "command %v; want the end of a lite topic", cmd)
	return cmd.GetNotifyUnsubscribeLiteCommand().GetLiteTopic()
}

// The Telemetry stream of a client reports the lite topics that another client of an exclusive group
// takes, and those that are deleted, also a later stream of the client.
func TestUnsubscribeCommand(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.parent(settings.LiteParent{})
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: "parent", Exclusive: true, MaxTopics: 3}})))
		first, got := e.telemetry(as(t.Context(), "one"), liteSettings())
		assert.Equal(t, "quota of the group", got.GetSubscription().GetLiteSubscriptionQuota(), 3)
		other, _ := e.telemetry(as(t.Context(), "two"), liteSettings())
		refused(t, e.sync("one", addLite, nil, "a", "b", "c"), protocol.CodeOK)
		refused(t, e.sync("one", addLite, nil, "d"), protocol.CodeLiteSubscriptionQuotaExceeded, "4", "3")
		synctest.Wait() // the stream serves the client
		refused(t, e.sync("two", addLite, nil, "a"), protocol.CodeOK)
		assert.Equal(t, "taken from the first client", unsubscribed(t, first), "a")
		e.sendLite("a:1", "b:2")
		e.wantLite("one", "b:2")
		e.wantLite("two", "a:1")

		second, _ := e.telemetry(as(t.Context(), "one"), liteSettings())
		synctest.Wait()
		assert.Must(t, e.b.DeleteLiteTopic(t.Context(), "parent", "b"))
		assert.Equal(t, "deleted", unsubscribed(t, second), "b")
		refused(t, e.sync("one", addLite, nil, "a"), protocol.CodeOK)
		assert.Equal(t, "taken back", unsubscribed(t, other), "a")

		// A client that terminates has no lite topics; one that is silent loses them later.
		r := assert.Value(e.NotifyClientTermination(as(t.Context(), "one"), &rmqpb.NotifyClientTerminationRequest{Group: res("g")}))(t)
		refused(t, r.GetStatus(), protocol.CodeOK)
		page := e.liteTopics("")
		for _, lt := range page.LiteTopics {
			assert.That(t, len(lt.Groups) == 1 && len(lt.Groups[0].Consumers) == 0, "after the termination: %+v", lt)
		}
	})
}

// liteTopics returns a page of GET lite-topics.
func (e *env) liteTopics(query string) (page status.LiteTopicPage) {
	e.t.Helper()
	e.requestJSON("GET", "/v1/topics/parent/lite-topics"+query, 200, &page)
	return page
}

// change makes a request with a JSON body, if it is not empty.
func (e *env) change(method, path string, want int, body string) *httptest.ResponseRecorder {
	e.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", server.TypeJSON)
	}
	w := e.serve(r)
	assert.MustThat(e.t, w.Code == want, "%s %s %s: %d %s, want %d", method, path, body, w.Code, w.Body, want)
	return w
}

// Over HTTP a consumer sets its lite topics, adds and removes some, receives from them, and ends.
func TestHTTPLiteConsumer(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		x.parent(settings.LiteParent{})
		const at = "/v1/groups/g/topics/parent/lite-consumers/c"
		change := func(method, body string, want int, words ...string) {
			t.Helper()
			w := x.change(method, at, want, body)
			for _, word := range words {
				assert.That(t, strings.Contains(w.Body.String(), word), "%s %s: %s lacks %q", method, body, w.Body, word)
			}
		}
		take := func(want ...string) {
			t.Helper()
			var got []string
			for {
				ds := x.takeSome("parent", `{"lite_consumer":"c","max":32,"push":true}`)
				if len(ds) == 0 {
					break
				}
				var handles []string
				for _, d := range ds {
					got, handles = append(got, d.LiteTopic+":"+d.ID), append(handles, d.Handle)
				}
				x.ok("/v1/groups/g/acknowledge", string(assert.Value(json.Marshal(map[string]any{"handles": handles}))(t)), nil)
			}
			slices.Sort(got)
			assert.That(t, slices.Equal(got, want), "received %v, want %v", got, want)
		}
		x.ok("/v1/topics/parent/messages", `{"messages":[{"id":"1","body_text":"x","lite_topic":"a"},{"id":"2","body_text":"x","lite_topic":"b"}]}`, nil)
		x.failed("/v1/topics/parent/messages", `{"body_text":"x"}`, 400, 40014, "LITE")
		change("PUT", `{"lite_topics":["a"]}`, 204)
		take("a:1")
		change("PATCH", `{"add":["b"],"start":{"from":"newest"}}`, 204)
		take()
		change("PATCH", `{"remove":["b"]}`, 204)
		change("PATCH", `{"add":["b"],"start":{"offset":0}}`, 204)
		take("b:2")
		change("PUT", `{"lite_topics":[]}`, 204)
		change("PUT", `{"lite_topics":["a"],"start":{"last":1}}`, 204)
		take("a:1")

		change("PUT", `{}`, 400, "lite_topics")
		change("PUT", `{"add":["a"]}`, 400, "PATCH")
		change("PATCH", `{"add":["a"],"remove":["b"]}`, 400, "add or remove")
		change("PATCH", `{"add":["a"],"start":{}}`, 400, "0 keys")
		change("PATCH", `{"add":["a"],"start":{"from":"middle"}}`, 400, "middle", "oldest")
		change("PATCH", `{"add":["a"],"start":{"last":1,"offset":1}}`, 400, "2 keys")
		change("PUT", `{"lite_topics":[" "]}`, 400, "40020")
		x.failed("/v1/groups/g/topics/parent/receive", `{}`, 400, 40000, "lite topics")

		page := x.liteTopics("")
		assert.MustThat(t, page.Total == 2 && len(page.LiteTopics) == 2 && !page.More && page.LiteTopics[0].Name == "a", "the page is %+v", page)
		assert.That(t, slices.Equal(page.LiteTopics[0].Groups[0].Consumers, []string{"c"}), "the lite topic is %+v", page.LiteTopics[0])
		change("DELETE", "", 204)
		if page = x.liteTopics("?limit=1"); !page.More || len(page.LiteTopics) != 1 || len(page.LiteTopics[0].Groups[0].Consumers) != 0 {
			t.Errorf("after the end of the consumer: %+v", page)
		}
		if page = x.liteTopics("?after=a"); len(page.LiteTopics) != 1 || page.LiteTopics[0].Name != "b" {
			t.Errorf("after a: %+v", page)
		}
		x.requestJSON("DELETE", "/v1/topics/parent/lite-topics/a", 204, nil)
		x.requestJSON("DELETE", "/v1/topics/parent/lite-topics/a", 404, nil)
		assert.Equal(t, "lite topics", x.liteTopics("").Total, 1)
		x.requestJSON("GET", "/v1/topics/normal/lite-topics", 400, nil)
	})
}

// A stream reports the lite topics that a consumer loses. An access key precedes the ID of a
// consumer, so that keys with the same ID have consumers of their own.
func TestHTTPEndedLiteTopics(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		x.parent(settings.LiteParent{})
		const at = "/v1/groups/g/topics/parent/lite-consumers/c"
		x.requestJSON("GET", "/v1/groups/g/topics/nowhere/lite-consumers/c/ended", 404, nil)
		x.change("PUT", at, 204, `{"lite_topics":["a","b-c"]}`)
		open := func() *bufio.Scanner {
			t.Helper()
			resp := assert.Value(x.client.Do(x.request(t.Context(), "GET", at+"/ended", nil)))(t)
			t.Cleanup(func() { resp.Body.Close() })
			assert.MustThat(t, resp.StatusCode == 200 && resp.Header.Get("Content-Type") == server.TypeNDJSON, "the stream is %v", resp)
			return bufio.NewScanner(resp.Body)
		}
		next := func(lines *bufio.Scanner) string {
			t.Helper()
			for lines.Scan() {
				if lines.Text() != "" {
					return lines.Text()
				}
			}
			return ""
		}
		lines := open()
		time.Sleep(time.Minute) // the stream lives on
		x.requestJSON("DELETE", "/v1/topics/parent/lite-topics/b-c", 204, nil)
		assert.Equal(t, "the line", next(lines), `{"lite_topic":"b-c"}`)
		later := open()
		assert.That(t, strings.Contains(next(lines), "another call serves the consumer"), "the earlier stream ends with %q", lines.Text())
		assert.Must(t, x.b.DeleteLiteTopic(t.Context(), "parent", "a"))
		assert.Equal(t, "the line", next(later), `{"lite_topic":"a"}`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go x.s.Shutdown(ctx)
		assert.Equal(t, "after the end of the server", next(later), "")
	})
}
