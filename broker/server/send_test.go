package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

type transportResult = transport.SendResult

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func zipped(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(body)
	w.Close()
	return b.Bytes()
}

type edit = func(*rmqpb.Message)

func sys(f func(*rmqpb.SystemProperties)) edit {
	return func(m *rmqpb.Message) { f(m.SystemProperties) }
}

func body(b []byte) edit { return func(m *rmqpb.Message) { m.Body = b } }

// Everything that a sender can get wrong has a code, and a text that names the
// field, the value and the limit.
func TestSendRejections(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		many := func(n int) map[string]string {
			m := map[string]string{}
			for i := range n {
				m[fmt.Sprintf("k%d", i)] = "v"
			}
			return m
		}
		props := func(p map[string]string) edit { return func(m *rmqpb.Message) { m.UserProperties = p } }
		topic := func(name string) edit { return func(m *rmqpb.Message) { m.Topic = &rmqpb.Resource{Name: name} } }
		id := func(id string) edit { return sys(func(p *rmqpb.SystemProperties) { p.MessageId = id }) }
		tag := func(s string) edit { return sys(func(p *rmqpb.SystemProperties) { p.Tag = &s }) }
		group := func(s string) edit { return sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = &s }) }
		kind := func(k rmqpb.MessageType) edit { return sys(func(p *rmqpb.SystemProperties) { p.MessageType = k }) }
		at := func(ts *timestamppb.Timestamp) edit {
			return sys(func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = ts })
		}
		digest := func(k rmqpb.DigestType, sum string) edit {
			return sys(func(p *rmqpb.SystemProperties) { p.BodyDigest = &rmqpb.Digest{Type: k, Checksum: sum} })
		}
		gz := sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = rmqpb.Encoding_GZIP })
		for _, c := range []struct {
			name  string
			edit  []edit
			code  tidegate.Code
			words []string
		}{
			{"no topic", []edit{func(m *rmqpb.Message) { m.Topic = nil }}, protocol.CodeIllegalTopic, []string{"topic", "127"}},
			{"topic too long", []edit{topic(strings.Repeat("t", 128))}, protocol.CodeIllegalTopic, []string{"topic", "128", "127"}},
			{"topic's characters", []edit{topic("a b")}, protocol.CodeIllegalTopic, []string{"topic", `"a b"`, "letters"}},
			{"system topic", []edit{topic("TBW102")}, protocol.CodeIllegalTopic, []string{"topic", "TBW102"}},
			{"unknown topic", []edit{topic("nowhere")}, tidegate.CodeTopicNotFound, []string{"nowhere"}},
			{"empty body", []edit{body(nil)}, protocol.CodeMessageBodyEmpty, []string{"body", "empty"}},
			{"body too large", []edit{body(make([]byte, 4<<20+1))}, tidegate.CodeMessageBodyTooLarge, []string{"body", "4194305", "4194304"}},
			{"properties too many", []edit{props(many(129))}, protocol.CodeMessagePropertiesTooLarge, []string{"properties", "129", "128"}},
			{"properties too large", []edit{props(map[string]string{"k": strings.Repeat("v", 16<<10)})}, protocol.CodeMessagePropertiesTooLarge, []string{"16385", "16384"}},
			{"tag and keys count too", []edit{props(map[string]string{"k": strings.Repeat("v", 16<<10-2)}), tag("tt")}, protocol.CodeMessagePropertiesTooLarge, []string{"16385"}},
			{"reserved property", []edit{props(map[string]string{"UNIQ_KEY": "x"})}, protocol.CodeIllegalMessagePropertyKey, []string{"property", "UNIQ_KEY"}},
			{"dead letter property", []edit{props(map[string]string{"DLQ_ORIGIN_TOPIC": "x"})}, protocol.CodeIllegalMessagePropertyKey, []string{"DLQ_ORIGIN_TOPIC"}},
			{"property with control character", []edit{props(map[string]string{"a\nb": "x"})}, protocol.CodeIllegalMessagePropertyKey, []string{`a\nb`}},
			{"blank tag", []edit{tag(" ")}, protocol.CodeIllegalMessageTag, []string{"tag", `" "`}},
			{"tag with bar", []edit{tag("a|b")}, protocol.CodeIllegalMessageTag, []string{"tag", "a|b"}},
			{"blank key", []edit{sys(func(p *rmqpb.SystemProperties) { p.Keys = []string{"ok", "\t"} })}, protocol.CodeIllegalMessageKey, []string{"key", `\t`}},
			{"no message ID", []edit{id("")}, protocol.CodeIllegalMessageID, []string{"message_id", "empty"}},
			{"blank message ID", []edit{id("  ")}, protocol.CodeIllegalMessageID, []string{"message_id", "blank"}},
			{"message ID with a control character", []edit{id("a\x1b]0;x\a")}, protocol.CodeIllegalMessageID, []string{"message ID", `a\x1b]0;x\a`}},
			{"message ID too long", []edit{id(strings.Repeat("x", 256))}, protocol.CodeIllegalMessageID, []string{"256", "255"}},
			{"no system properties", []edit{func(m *rmqpb.Message) { m.SystemProperties = nil }}, protocol.CodeIllegalMessageID, []string{"message_id"}},
			{"group too long", []edit{topic("fifo"), group(strings.Repeat("g", 64))}, protocol.CodeIllegalMessageGroup, []string{"group", "64", "63"}},
			{"blank group", []edit{topic("fifo"), group(" ")}, protocol.CodeIllegalMessageGroup, []string{"group", `" "`}},
			{"group to a NORMAL topic", []edit{group("g")}, protocol.CodeMessagePropertyConflict, []string{"normal", "NORMAL", `"g"`}},
			{"no group to a FIFO topic", []edit{topic("fifo")}, protocol.CodeMessagePropertyConflict, []string{"fifo", "FIFO"}},
			{"delay", []edit{at(timestamppb.New(time.Now().Add(time.Hour)))}, protocol.CodeMessagePropertyConflict, []string{"delivery time", "NORMAL"}},
			{"delay too long", []edit{at(timestamppb.New(time.Now().Add(25 * time.Hour)))}, protocol.CodeIllegalDeliveryTime, []string{"delivery_timestamp", "25h0m0s", "24h0m0s"}},
			{"delay that is no time", []edit{at(&timestamppb.Timestamp{Nanos: -1})}, protocol.CodeIllegalDeliveryTime, []string{"delivery_timestamp"}},
			{"birth that is no time", []edit{sys(func(p *rmqpb.SystemProperties) { p.BornTimestamp = &timestamppb.Timestamp{Seconds: 1 << 60} })}, tidegate.CodeBadRequest, []string{"born_timestamp", "1970"}},
			{"recovery too long", []edit{sys(func(p *rmqpb.SystemProperties) {
				p.OrphanedTransactionRecoveryDuration = durationpb.New(2 * time.Hour)
			})}, tidegate.CodeBadRequest, []string{"orphaned_transaction_recovery_duration", "2h0m0s", "1h0m0s"}},
			{"transaction", []edit{kind(rmqpb.MessageType_TRANSACTION)}, protocol.CodeMessagePropertyConflict, []string{"half message", "TRANSACTION", "NORMAL"}},
			{"transaction to nowhere", []edit{kind(rmqpb.MessageType_TRANSACTION), topic("nowhere")}, tidegate.CodeTopicNotFound, []string{"nowhere"}},
			{"unknown type", []edit{kind(77)}, protocol.CodeMessagePropertyConflict, []string{"message_type", "77"}},
			{"priority", []edit{sys(func(p *rmqpb.SystemProperties) { p.Priority = proto.Int32(1) })}, protocol.CodeMessagePropertyConflict, []string{"PRIORITY"}},
			{"lite topic", []edit{sys(func(p *rmqpb.SystemProperties) { p.LiteTopic = new("l") })}, protocol.CodeMessagePropertyConflict, []string{"LITE"}},
			{"empty lite topic", []edit{sys(func(p *rmqpb.SystemProperties) { p.LiteTopic = new("") })}, protocol.CodeIllegalLiteTopic, []string{"lite topic", "blank"}},
			{"unknown encoding", []edit{sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = 9 })}, protocol.CodeMessageCorrupted, []string{"body_encoding", "9"}},
			{"not gzip", []edit{gz}, protocol.CodeMessageCorrupted, []string{"GZIP", "5 bytes"}},
			{"gzip cut off", []edit{gz, body(zipped([]byte("hello"))[:20])}, protocol.CodeMessageCorrupted, []string{"GZIP", "truncated"}},
			{"gzip bomb", []edit{gz, body(zipped(make([]byte, 4<<20+1)))}, tidegate.CodeMessageBodyTooLarge, []string{"body", "4194304"}},
			{"gzip of nothing", []edit{gz, body(zipped(nil))}, protocol.CodeMessageBodyEmpty, nil},
			{"wrong MD5", []edit{digest(rmqpb.DigestType_MD5, "00")}, protocol.CodeMessageCorrupted, []string{"body_digest", "MD5", `"00"`, "5D41402ABC4B2A76B9719D911017C592"}},
			{"wrong CRC32", []edit{digest(rmqpb.DigestType_CRC32, "1")}, protocol.CodeMessageCorrupted, []string{"CRC32", "3610A686"}},
			{"unknown digest", []edit{digest(8, "1")}, protocol.CodeMessageCorrupted, []string{"body_digest", "8"}},
			{"trace context too long", []edit{sys(func(p *rmqpb.SystemProperties) { p.TraceContext = new(strings.Repeat("t", 4097)) })}, protocol.CodeMessagePropertiesTooLarge, []string{"trace_context", "4097", "4096"}},
		} {
			r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "id", c.edit...)}})
			if err != nil {
				t.Errorf("%s: gRPC status %v; want OK and a status in the response", c.name, err)
				continue
			}
			if len(r.GetEntries()) != 0 {
				t.Errorf("%s: %d entries; want none", c.name, len(r.GetEntries()))
			}
			refused(named{t, c.name}, r.GetStatus(), c.code, c.words...)
		}
		if got, _ := e.b.Topic("normal"); got.StoredMessages != 0 {
			t.Errorf("%d messages were stored; want none", got.StoredMessages)
		}
	})
}

func TestSendRejectsRequests(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for _, c := range []struct {
			name  string
			ctx   context.Context
			ms    []*rmqpb.Message
			code  tidegate.Code
			words []string
		}{
			{"no message", e.ctx(), nil, protocol.CodeMessageCorrupted, []string{"no message"}},
			{"two topics", e.ctx(), []*rmqpb.Message{msg("normal", "1"), msg("fifo", "2")}, protocol.CodeMessageCorrupted, []string{"message 2 of 2", "fifo", "normal"}},
			{"second is bad", e.ctx(), []*rmqpb.Message{msg("normal", "1"), msg("normal", "")}, protocol.CodeIllegalMessageID, []string{"message 2 of 2", "message_id"}},
			{"no client ID", t.Context(), []*rmqpb.Message{msg("normal", "1")}, protocol.CodeClientIDRequired, []string{"x-mq-client-id"}},
			{"blank client ID", as(t.Context(), " "), []*rmqpb.Message{msg("normal", "1")}, protocol.CodeClientIDRequired, []string{"x-mq-client-id"}},
			{"client ID too long", as(t.Context(), strings.Repeat("c", 256)), []*rmqpb.Message{msg("normal", "1")}, protocol.CodeClientIDRequired, []string{"256", "255"}},
		} {
			r, err := e.SendMessage(c.ctx, &rmqpb.SendMessageRequest{Messages: c.ms})
			assert.MustThat(t, err == nil, "%s: %v", c.name, err)
			if len(r.GetEntries()) != 0 {
				t.Errorf("%s: entries %v; want none", c.name, r.GetEntries())
			}
			refused(named{t, c.name}, r.GetStatus(), c.code, c.words...)
		}
	})
}

// Values on the limits are accepted.
func TestSendAccepts(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for name, m := range map[string]*rmqpb.Message{
			"largest body":             msg("normal", "x", body(make([]byte, 4<<20))),
			"longest group":            msg("fifo", "x", sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = new(strings.Repeat("g", 63)) })),
			"empty tag":                msg("normal", "x", sys(func(p *rmqpb.SystemProperties) { p.Tag = new("") })),
			"type that is not its own": msg("normal", "x", sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_FIFO })),
			"CRC32 padded":             msg("normal", "x", body([]byte("aP")), sys(crc("%08X", "aP"))),
			"CRC32 unpadded, lower":    msg("normal", "x", body([]byte("aP")), sys(crc("%x", "aP"))),
			"CRC32 decimal":            msg("normal", "x", body([]byte("aP")), sys(crc("%d", "aP"))),
			"SHA1":                     msg("normal", "x", sys(sum(rmqpb.DigestType_SHA1, "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"))),
			"MD5":                      msg("normal", "x", sys(sum(rmqpb.DigestType_MD5, "5d41402abc4b2a76b9719d911017c592"))),
			"digest of nothing":        msg("normal", "x", sys(sum(rmqpb.DigestType_MD5, ""))),
		} {
			r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
			assert.That(t, err == nil && r.GetStatus().GetCode() == rmqpb.Code_OK, "%s: %v, %v", name, r, err)
		}
	})
}

func sum(k rmqpb.DigestType, checksum string) func(*rmqpb.SystemProperties) {
	return func(p *rmqpb.SystemProperties) { p.BodyDigest = &rmqpb.Digest{Type: k, Checksum: checksum} }
}

// crc gives the text's CRC32 in a form.
func crc(form, text string) func(*rmqpb.SystemProperties) {
	return sum(rmqpb.DigestType_CRC32, fmt.Sprintf(form, crc32.ChecksumIEEE([]byte(text))))
}

// Messages of one request keep their own ID, tag and properties, and each has
// an entry.
func TestSendBatch(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		var ms []*rmqpb.Message
		for i := range 5 {
			ms = append(ms, msg("normal", fmt.Sprint("id", i), body([]byte{byte(i)}), func(m *rmqpb.Message) {
				m.UserProperties = map[string]string{"i": fmt.Sprint(i)}
				m.SystemProperties.Tag = new(fmt.Sprint("tag", i))
			}))
		}
		var header metadata.MD
		r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms}, grpc.Header(&header)))(t)
		if got := header.Get(wire.HeaderFeatures); len(got) != 1 || got[0] != "batch, pushback, suspend, deadletter, retry, repeat, packed, stream, brief, watch, heartbeats, queues, reconsume, snooze, topics" {
			t.Errorf("%s: %q", wire.HeaderFeatures, got)
		}
		assert.MustEqual(t, "entries", len(r.GetEntries()), 5)
		for i, entry := range r.GetEntries() {
			if entry.GetStatus().GetCode() != rmqpb.Code_OK || entry.GetMessageId() != fmt.Sprint("id", i) || entry.GetTransactionId() != entry.GetMessageId() {
				t.Errorf("entry %d: %v", i, entry)
			}
		}
		_, got := e.receive(e.ctx(), receiveRequest("normal"))
		assert.MustEqual(t, "messages", len(got), 5)
		for _, m := range got {
			i := fmt.Sprint(m.GetBody()[0])
			p := m.GetSystemProperties()
			assert.That(t, p.GetMessageId() == "id"+i && p.GetTag() == "tag"+i && m.GetUserProperties()["i"] == i, "message %s: %v", i, m)
		}
	})
}

// The response to a throttled send has status 42900, no entries, and the time of the next attempt.
// RocketMQ: sending retry and throttling: "reply-code:530" RocketMQ: sending retry and throttling:
// "reply-text:TOO_MANY_REQUESTS"
func TestSendThrottled(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 10}})))
		for i := range 10 {
			e.send(msg("full", fmt.Sprint(i)))
		}
		try := func(n int) (*rmqpb.SendMessageResponse, metadata.MD) {
			var ms []*rmqpb.Message
			for i := range n {
				ms = append(ms, msg("full", fmt.Sprint("more", i)))
			}
			var trailer metadata.MD
			r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms}, grpc.Trailer(&trailer)))(t)
			return r, trailer
		}
		for _, n := range []int{1, 3} {
			r, trailer := try(n)
			refused(t, r.GetStatus(), tidegate.CodeTooManyRequests, "topic backlog messages", "full", "10", "8")
			if !strings.HasPrefix(r.GetStatus().GetMessage(), "530 TOO_MANY_REQUESTS") {
				t.Errorf("text %q does not begin with 530 TOO_MANY_REQUESTS", r.GetStatus().GetMessage())
			}
			if len(r.GetEntries()) != 0 {
				t.Errorf("%d messages: entries %v; want none", n, r.GetEntries())
			}
			assert.Equal(t, "push-back although nothing drains", len(trailer.Get(wire.TrailerPushBack)), 0)
		}
		// One is consumed: now there is a rate to go by.
		m := e.one(e.ctx(), receiveRequest("full", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
		e.ack(m)
		r, trailer := try(1)
		refused(t, r.GetStatus(), tidegate.CodeTooManyRequests)
		if got := trailer.Get(wire.TrailerPushBack); len(got) != 1 || got[0] == "0" {
			t.Errorf("push-back %q; want a time", got)
		}
	})
}

// A panic or an unknown failure inside becomes an error response, not the end of the broker.
func TestSendSurvivesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := testLog()
		f := &faulty{}
		e := start(t, server.Options{Logger: logger}, f)
		try := func() *rmqpb.SendMessageResponse {
			r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}}))(t)
			return r
		}
		f.append = func(context.Context, []engine.Incoming) error { panic("ouch") }
		refused(t, try().GetStatus(), tidegate.CodeInternalServerError, "ouch")
		if s := logged.String(); !strings.Contains(s, "ouch") || !strings.Contains(s, "send_test.go") {
			t.Errorf("the log has no panic with its stack: %s", s)
		}
		f.append = func(context.Context, []engine.Incoming) error { return errors.New("odd") }
		refused(t, try().GetStatus(), tidegate.CodeInternalServerError, "odd")
		if s := logged.String(); !strings.Contains(s, "error=odd") {
			t.Errorf("the log does not name the error: %s", s)
		}
		f.append = func(context.Context, []engine.Incoming) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 1500*time.Microsecond + 1}
		}
		var trailer metadata.MD
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}}, grpc.Trailer(&trailer))
		if err != nil || r.GetStatus().GetMessage() != "530 TOO_MANY_REQUESTS" || trailer.Get(wire.TrailerPushBack)[0] != "2" {
			t.Errorf("%v, %v, trailer %v; want 530 TOO_MANY_REQUESTS, and 2 ms", r, err, trailer)
		}
		f.append = nil
		assert.Equal(t, "afterwards", try().GetStatus().GetCode(), rmqpb.Code_OK)
	})
}

// manyMessages are enough that their memory is used again.
const manyMessages = 20

// largeBody returns the body of a message by its ID. It is so long that gRPC uses the memory of the
// request again.
func largeBody(id string) []byte { return bytes.Repeat([]byte(id), 50) }

// largeSend returns messages with a name before their numbers as IDs.
func largeSend(name string) (ms []*rmqpb.Message) {
	for i := range manyMessages {
		id := fmt.Sprint(name, i)
		ms = append(ms, msg("normal", id, body(largeBody(id)), sys(func(p *rmqpb.SystemProperties) { p.BornHost = id })))
	}
	return ms
}

// checkIncoming checks that the engine has the messages of largeSend.
func checkIncoming(t *testing.T, name string, msgs []engine.Incoming) {
	t.Helper()
	for i, m := range msgs {
		want := fmt.Sprint(name, i)
		if m.Message == nil || m.ID != want || !bytes.Equal(m.Body, largeBody(want)) || m.BornHost != want || m.Client != "client" {
			t.Errorf("the engine has %+v of %+v, want the message %s", m.Message, m, want)
		}
	}
}

// The messages of a request stay as they are until the engine has responded, while other requests
// come and go, and the response has the IDs of the request.
func TestSendsShareNoMemory(t *testing.T) {
	assert.MustThat(t, wire.Reusable(manyMessages), "the memory of %d messages is not used again", manyMessages)
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		e := start(t, server.Options{}, &faulty{append: func(_ context.Context, msgs []engine.Incoming) error {
			name := msgs[0].ID[:1]
			if name == "a" {
				<-held
			}
			checkIncoming(t, name, msgs)
			return nil
		}})
		send := func(name string) {
			for i, entry := range e.send(largeSend(name)...).GetEntries() {
				if want := fmt.Sprint(name, i); entry.GetMessageId() != want || entry.GetTransactionId() != want {
					t.Errorf("the entry of %s is %v", want, entry)
				}
			}
		}
		var first sync.WaitGroup
		first.Go(func() { send("a") })
		synctest.Wait()
		for _, name := range []string{"b", "c", "d", "e", "f"} {
			send(name)
		}
		close(held)
		first.Wait()
		send("g")
	})
}

// After a panic, a part of the engine may still use the messages.
func TestSendKeepsItsMemoryAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []engine.Incoming
		e := start(t, server.Options{}, &faulty{append: func(_ context.Context, msgs []engine.Incoming) error {
			if kept == nil {
				kept = msgs
				panic("ouch")
			}
			return nil
		}})
		r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: largeSend("a")}))(t)
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "ouch")
		for range 5 {
			e.send(largeSend("b")...)
		}
		checkIncoming(t, "a", kept)
	})
}

// The messages of a request that announces it have different topics, and each topic has its own
// result and its own time to wait.
func TestSendToSeveralTopics(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}})))
		e.send(msg("full", "1"))
		e.send(msg("full", "2"))
		// One is consumed, and another one takes its place.
		// Now there is a rate for the time to wait.
		e.ack(e.one(e.ctx(), receiveRequest("full", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })))
		e.send(msg("full", "3"))

		var trailer metadata.MD
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, wire.FeatureTopics)
		r, err := e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{
			msg("normal", "a"), msg("full", "b"), msg("full", "c"), msg("missing", "d"), msg("normal", "e"), msg("normal", "f", body(nil)),
		}}, grpc.Trailer(&trailer))
		assert.Must(t, err)
		refused(t, r.GetStatus(), protocol.CodeMultipleResults)
		want := []tidegate.Code{protocol.CodeOK, tidegate.CodeTooManyRequests, tidegate.CodeTooManyRequests, tidegate.CodeTopicNotFound, protocol.CodeOK, protocol.CodeMessageBodyEmpty}
		var got []tidegate.Code
		ids := ""
		for _, entry := range r.GetEntries() {
			got = append(got, tidegate.Code(entry.GetStatus().GetCode()))
			ids += entry.GetMessageId()
		}
		assert.Equal(t, "the entries have the IDs", ids, "abcdef")
		assert.That(t, slices.Equal(got, want), "codes %v; want %v", got, want)
		waits := strings.Split(strings.Join(trailer.Get(wire.TrailerPushBacks), ""), ",")
		if len(waits) != 4 || waits[0] != "0" || waits[1] == "0" || waits[2] != "0" || waits[3] != "0" {
			t.Errorf("waits %q; want one for the second of the four runs", waits)
		}
		assert.Equal(t, "the request has a time to wait for all topics", len(trailer.Get(wire.TrailerPushBack)), 0)
	})
}

// Middleware is called with one topic, so a server with one gets no request of several.
func TestMiddlewareGetsOneTopic(t *testing.T) {
	withServer(t, server.Options{Intercept: func(ctx context.Context, _ server.Call, next func(context.Context) error) error { return next(ctx) }}, func(t *testing.T, e *env) {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, wire.FeatureTopics)
		r := assert.Value(e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "a"), msg("fifo", "b")}}, grpc.Header(&header)))(t)
		refused(t, r.GetStatus(), protocol.CodeMessageCorrupted, "same topic")
		if got := header.Get(wire.HeaderFeatures); len(got) != 1 || strings.Contains(got[0], "topics") {
			t.Errorf("the server announces %q", got)
		}
	})
}

// Every message of a client is rejected with a code, or stored and delivered with the same content.
func FuzzMessage(f *testing.F) {
	good := msg("normal", "id", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"a": "b"} })
	for _, m := range []*rmqpb.Message{
		{}, good,
		msg("normal", "id", body(zipped([]byte("x"))), sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = rmqpb.Encoding_GZIP })),
		msg("fifo", "id", sys(func(p *rmqpb.SystemProperties) {
			p.MessageGroup, p.BornTimestamp = new("g"), timestamppb.Now()
		})),
		msg("normal", "id", sys(sum(rmqpb.DigestType_CRC32, "0"))),
	} {
		b := assert.Value(proto.Marshal(m))(f)
		f.Add(b)
	}
	e := start(f, server.Options{MinLongPolling: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m rmqpb.Message
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		out, born, err := requests.Message(&m, 1<<20, time.Now())
		if err != nil {
			assert.MustThat(t, refusal.CodeOf(err) != tidegate.CodeInternalServerError, "refused without a code of its own: %v", err)
			return
		}
		in := []engine.Incoming{{Message: &out, BornAt: born}}
		if err := e.b.Engine().Append(t.Context(), in)[0].Err; err != nil {
			assert.MustThat(t, refusal.CodeOf(err) != tidegate.CodeInternalServerError, "the engine refused it: %v", err)
			return
		}
		e := *e
		e.t = t
		got := e.one(e.ctx(), receiveRequest(out.Topic, polling(0)))
		if got.GetSystemProperties().GetMessageId() != out.ID || string(got.GetBody()) != string(out.Body) {
			t.Errorf("sent %v, received %v", &m, got)
		}
		e.ack(got)
	})
}

// Clients of RocketMQ look for these words in the status texts of its proxy.
func TestTextsThatClientsLookFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 10 * time.Second, MaxInvisibleDuration: 12 * time.Hour}, server.Options{})
		const small, large = "the invisibleTime is too small. min is 10000", "the invisibleTime is too large. max is 43200000"
		for d, text := range map[time.Duration]string{9999 * time.Millisecond: small, 12*time.Hour + time.Millisecond: large} {
			if st, _ := e.receive(e.ctx(), receiveRequest("normal", invisible(d))); st.GetCode() != 40011 || !strings.HasPrefix(st.GetMessage(), text) {
				t.Errorf("receive for %v: %v; want 40011 and %q", d, st, text)
			}
		}
		e.send(msg("normal", "1"), msg("normal", "2"))
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		change := func(d time.Duration) *rmqpb.Status {
			r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: ms[0].GetSystemProperties().GetReceiptHandle(), InvisibleDuration: durationpb.New(d),
			})
			assert.Must(t, err)
			return r.GetStatus()
		}
		for d, text := range map[time.Duration]string{-1: "the invisibleTime is too small. min is 0", 12*time.Hour + time.Millisecond: large} {
			if st := change(d); st.GetCode() != 40011 || !strings.HasPrefix(st.GetMessage(), text) {
				t.Errorf("change to %v: %v; want 40011 and %q", d, st, text)
			}
		}

		ackAll := func() *rmqpb.AckMessageResponse {
			r := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal")}
			for _, m := range ms {
				r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
			}
			a := assert.Value(e.AckMessage(e.ctx(), r))(t)
			return a
		}
		e.ack(ms[0])
		assert.Equal(t, "one of two entries failed", ackAll().GetStatus().GetCode(), rmqpb.Code_MULTIPLE_RESULTS)
		a := ackAll()
		for _, entry := range a.GetEntries() {
			refused(t, entry.GetStatus(), tidegate.CodeInvalidReceiptHandle)
			assert.That(t, !strings.Contains(entry.GetStatus().GetMessage(), "INVALID_RECEIPT_HANDLE"), "entry %v", entry)
		}
		if st := a.GetStatus(); st.GetCode() != 40013 || !strings.HasPrefix(st.GetMessage(), "INVALID_RECEIPT_HANDLE: ") {
			t.Errorf("all entries failed: %v; want 40013 and a text that begins with INVALID_RECEIPT_HANDLE", st)
		}
	})
}

func TestRoutes(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		at := &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "10.0.0.7", Port: 9000}}}
		for name, kind := range map[string]settings.TopicType{"delay": settings.TopicDelay, "transaction": settings.TopicTransaction} {
			assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), name, settings.Topic{Type: kind, Queues: 2})))
		}
		for topic, kind := range map[string]rmqpb.MessageType{
			"normal": rmqpb.MessageType_NORMAL, "fifo": rmqpb.MessageType_FIFO, "delay": rmqpb.MessageType_DELAY, "transaction": rmqpb.MessageType_TRANSACTION,
		} {
			r, err := e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: &rmqpb.Resource{ResourceNamespace: "ns", Name: topic}, Endpoints: at})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetMessageQueues()) != 2 {
				t.Fatal(r, err)
			}
			for i, q := range r.GetMessageQueues() {
				want := &rmqpb.MessageQueue{
					Topic: &rmqpb.Resource{ResourceNamespace: "ns", Name: topic}, Id: int32(i), Permission: rmqpb.Permission_READ_WRITE,
					Broker: &rmqpb.Broker{Name: "tidegate", Endpoints: at}, AcceptMessageTypes: []rmqpb.MessageType{kind},
				}
				assert.That(t, proto.Equal(q, want), "queue %v; want %v", q, want)
			}
		}
		// A topic with lite topics has one queue for producers and consumers, however many lite topics.
		e.parent(settings.LiteParent{})
		e.sendLite("a:1", "b:2")
		r := assert.Value(e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("parent"), Endpoints: at}))(t)
		if qs := r.GetMessageQueues(); len(qs) != 1 || !slices.Equal(qs[0].GetAcceptMessageTypes(), []rmqpb.MessageType{rmqpb.MessageType_LITE}) {
			t.Errorf("the route of a topic with lite topics is %v", r)
		}
		unknown := assert.Value(e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("nowhere")}))(t)
		refused(t, unknown.GetStatus(), tidegate.CodeTopicNotFound, "nowhere")

		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "ordered", settings.Group{FIFO: true})))
		for group, want := range map[string][]int32{"g": {-1}, "ordered": {0, 1}} {
			r, err := e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("normal"), Group: res(group), Endpoints: at})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
			var got []int32
			for _, a := range r.GetAssignments() {
				got = append(got, a.GetMessageQueue().GetId())
			}
			assert.That(t, slices.Equal(got, want), "%s: queues %v; want %v", group, got, want)
		}
		lite := assert.Value(e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("parent"), Group: res("ordered"), Endpoints: at}))(t)
		if as := lite.GetAssignments(); len(as) != 1 || as[0].GetMessageQueue().GetId() != -1 {
			t.Errorf("the assignment of a topic with lite topics is %v", lite)
		}
		a := assert.Value(e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("nowhere"), Group: res("g")}))(t)
		refused(t, a.GetStatus(), tidegate.CodeTopicNotFound, "nowhere")
		a = assert.Value(e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("normal"), Group: res("a b")}))(t)
		refused(t, a.GetStatus(), protocol.CodeIllegalConsumerGroup, "a b")
	})
}

// The response to a call that this broker does not support is a status, not a broken call.
func TestMissing(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for _, name := range []string{"UpdateOffset", "GetOffset", "QueryOffset", "PullMessage"} {
			st, err := e.call(e.ctx(), name)
			assert.NoError(t, err, "%s", name)
			refused(named{t, name}, st, tidegate.CodeNotImplemented)
		}
	})
}
