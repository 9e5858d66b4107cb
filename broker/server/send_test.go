package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
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
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
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
			{"no topic", []edit{func(m *rmqpb.Message) { m.Topic = nil }}, tidegate.CodeIllegalTopic, []string{"topic", "127"}},
			{"topic too long", []edit{topic(strings.Repeat("t", 128))}, tidegate.CodeIllegalTopic, []string{"topic", "128", "127"}},
			{"topic's characters", []edit{topic("a b")}, tidegate.CodeIllegalTopic, []string{"topic", `"a b"`, "letters"}},
			{"system topic", []edit{topic("TBW102")}, tidegate.CodeIllegalTopic, []string{"topic", "TBW102"}},
			{"unknown topic", []edit{topic("nowhere")}, tidegate.CodeTopicNotFound, []string{"nowhere"}},
			{"empty body", []edit{body(nil)}, protocol.CodeMessageBodyEmpty, []string{"body", "empty"}},
			{"body too large", []edit{body(make([]byte, 4<<20+1))}, tidegate.CodeMessageBodyTooLarge, []string{"body", "4194305", "4194304"}},
			{"properties too many", []edit{props(many(129))}, tidegate.CodeMessagePropertiesTooLarge, []string{"properties", "129", "128"}},
			{"properties too large", []edit{props(map[string]string{"k": strings.Repeat("v", 16<<10)})}, tidegate.CodeMessagePropertiesTooLarge, []string{"16385", "16384"}},
			{"tag and keys count too", []edit{props(map[string]string{"k": strings.Repeat("v", 16<<10-2)}), tag("tt")}, tidegate.CodeMessagePropertiesTooLarge, []string{"16385"}},
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
			{"group to a NORMAL topic", []edit{group("g")}, tidegate.CodeMessagePropertyConflict, []string{"normal", "NORMAL", `"g"`}},
			{"no group to a FIFO topic", []edit{topic("fifo")}, tidegate.CodeMessagePropertyConflict, []string{"fifo", "FIFO"}},
			{"delay", []edit{at(timestamppb.New(time.Now().Add(time.Hour)))}, tidegate.CodeMessagePropertyConflict, []string{"delivery time", "NORMAL"}},
			{"delay too long", []edit{at(timestamppb.New(time.Now().Add(25 * time.Hour)))}, tidegate.CodeIllegalDeliveryTime, []string{"delivery_timestamp", "25h0m0s", "24h0m0s"}},
			{"delay that is no time", []edit{at(&timestamppb.Timestamp{Nanos: -1})}, tidegate.CodeIllegalDeliveryTime, []string{"delivery_timestamp"}},
			{"birth that is no time", []edit{sys(func(p *rmqpb.SystemProperties) { p.BornTimestamp = &timestamppb.Timestamp{Seconds: 1 << 60} })}, tidegate.CodeBadRequest, []string{"born_timestamp", "1970"}},
			{"recovery too long", []edit{sys(func(p *rmqpb.SystemProperties) {
				p.OrphanedTransactionRecoveryDuration = durationpb.New(2 * time.Hour)
			})}, tidegate.CodeBadRequest, []string{"orphaned_transaction_recovery_duration", "2h0m0s", "1h0m0s"}},
			{"transaction", []edit{kind(rmqpb.MessageType_TRANSACTION)}, tidegate.CodeMessagePropertyConflict, []string{"half message", "TRANSACTION", "NORMAL"}},
			{"transaction to nowhere", []edit{kind(rmqpb.MessageType_TRANSACTION), topic("nowhere")}, tidegate.CodeTopicNotFound, []string{"nowhere"}},
			{"unknown type", []edit{kind(77)}, tidegate.CodeMessagePropertyConflict, []string{"message_type", "77"}},
			{"priority", []edit{sys(func(p *rmqpb.SystemProperties) { p.Priority = proto.Int32(1) })}, tidegate.CodeMessagePropertyConflict, []string{"PRIORITY"}},
			{"lite topic", []edit{sys(func(p *rmqpb.SystemProperties) { p.LiteTopic = new("l") })}, tidegate.CodeMessagePropertyConflict, []string{"LITE"}},
			{"unknown encoding", []edit{sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = 9 })}, protocol.CodeMessageCorrupted, []string{"body_encoding", "9"}},
			{"not gzip", []edit{gz}, protocol.CodeMessageCorrupted, []string{"GZIP", "5 bytes"}},
			{"gzip cut off", []edit{gz, body(zipped([]byte("hello"))[:20])}, protocol.CodeMessageCorrupted, []string{"GZIP", "truncated"}},
			{"gzip bomb", []edit{gz, body(zipped(make([]byte, 4<<20+1)))}, tidegate.CodeMessageBodyTooLarge, []string{"body", "4194304"}},
			{"gzip of nothing", []edit{gz, body(zipped(nil))}, protocol.CodeMessageBodyEmpty, nil},
			{"wrong MD5", []edit{digest(rmqpb.DigestType_MD5, "00")}, protocol.CodeMessageCorrupted, []string{"body_digest", "MD5", `"00"`, "5D41402ABC4B2A76B9719D911017C592"}},
			{"wrong CRC32", []edit{digest(rmqpb.DigestType_CRC32, "1")}, protocol.CodeMessageCorrupted, []string{"CRC32", "3610A686"}},
			{"unknown digest", []edit{digest(8, "1")}, protocol.CodeMessageCorrupted, []string{"body_digest", "8"}},
			{"trace context too long", []edit{sys(func(p *rmqpb.SystemProperties) { p.TraceContext = new(strings.Repeat("t", 4097)) })}, tidegate.CodeMessagePropertiesTooLarge, []string{"trace_context", "4097", "4096"}},
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
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
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if len(r.GetEntries()) != 0 {
				t.Errorf("%s: entries %v; want none", c.name, r.GetEntries())
			}
			refused(named{t, c.name}, r.GetStatus(), c.code, c.words...)
		}
	})
}

// Values on the limits are accepted.
func TestSendAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
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
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Errorf("%s: %v, %v", name, r, err)
			}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		var ms []*rmqpb.Message
		for i := range 5 {
			ms = append(ms, msg("normal", fmt.Sprint("id", i), body([]byte{byte(i)}), func(m *rmqpb.Message) {
				m.UserProperties = map[string]string{"i": fmt.Sprint(i)}
				m.SystemProperties.Tag = new(fmt.Sprint("tag", i))
			}))
		}
		var header metadata.MD
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		if got := header.Get(wire.HeaderFeatures); len(got) != 1 || got[0] != "batch, pushback, suspend, deadletter, retry, repeat, snooze, reconsume, packed, brief, watch, heartbeats, queues, topics" {
			t.Errorf("%s: %q", wire.HeaderFeatures, got)
		}
		if len(r.GetEntries()) != 5 {
			t.Fatalf("%d entries; want 5", len(r.GetEntries()))
		}
		for i, entry := range r.GetEntries() {
			if entry.GetStatus().GetCode() != rmqpb.Code_OK || entry.GetMessageId() != fmt.Sprint("id", i) || entry.GetTransactionId() != entry.GetMessageId() {
				t.Errorf("entry %d: %v", i, entry)
			}
		}
		_, got := e.receive(e.ctx(), receiveRequest("normal"))
		if len(got) != 5 {
			t.Fatalf("%d messages; want 5", len(got))
		}
		for _, m := range got {
			i := fmt.Sprint(m.GetBody()[0])
			p := m.GetSystemProperties()
			if p.GetMessageId() != "id"+i || p.GetTag() != "tag"+i || m.GetUserProperties()["i"] != i {
				t.Errorf("message %s: %v", i, m)
			}
		}
	})
}

// The response to a throttled send has status 42900, no entries, and the time of the next attempt.
// RocketMQ: sending retry and throttling: "reply-code:530" RocketMQ: sending retry and throttling:
// "reply-text:TOO_MANY_REQUESTS"
func TestSendThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		if _, err := e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 10}}); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			e.send(msg("full", fmt.Sprint(i)))
		}
		try := func(n int) (*rmqpb.SendMessageResponse, metadata.MD) {
			var ms []*rmqpb.Message
			for i := range n {
				ms = append(ms, msg("full", fmt.Sprint("more", i)))
			}
			var trailer metadata.MD
			r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms}, grpc.Trailer(&trailer))
			if err != nil {
				t.Fatal(err)
			}
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
			if got := trailer.Get(wire.TrailerPushBack); len(got) != 0 {
				t.Errorf("push-back %q although nothing drains", got)
			}
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

func TestSendMixedResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{
			msg("normal", "good"), msg("normal", "bad", body(nil)),
		}})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), protocol.CodeMultipleResults)
		if len(r.GetEntries()) != 2 || r.GetEntries()[0].GetStatus().GetCode() != rmqpb.Code_OK ||
			r.GetEntries()[1].GetStatus().GetCode() != rmqpb.Code_MESSAGE_BODY_EMPTY || r.GetEntries()[1].GetMessageId() != "bad" {
			t.Errorf("entries %v", r.GetEntries())
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
			r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}})
			if err != nil {
				t.Fatal(err)
			}
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
		if r := try(); r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Errorf("afterwards: %v", r)
		}
	})
}
