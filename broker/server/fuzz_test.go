package server_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
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
			if refusal.CodeOf(err) == tidegate.CodeInternalServerError {
				t.Fatalf("refused without a code of its own: %v", err)
			}
			return
		}
		in := []engine.Incoming{{Message: &out, BornAt: born}}
		if err := e.b.Engine().Append(t.Context(), in)[0].Err; err != nil {
			if refusal.CodeOf(err) == tidegate.CodeInternalServerError {
				t.Fatalf("the engine refused it: %v", err)
			}
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
