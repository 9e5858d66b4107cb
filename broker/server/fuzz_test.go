package server

import (
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// Whatever a client sends as a message is refused with a code, or stored and
// delivered with the same content.
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
	e := start(f, Options{MinLongPolling: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m rmqpb.Message
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		out, born, err := wire.Message(&m, 1<<20, time.Now())
		if err != nil {
			if refusal.CodeOf(err) == tidegate.CodeInternalServerError {
				t.Fatalf("refused without a code of its own: %v", err)
			}
			return
		}
		in := []broker.Incoming{{Message: &out, BornAt: born}}
		if err := e.b.Append(t.Context(), in)[0].Err; err != nil {
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

// Whatever a connection begins with, the handshake ends and gives it again.
func FuzzSniff(f *testing.F) {
	for _, s := range []string{"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00", "\x16", "\x16\x03\x01\x00\x05hello", "\x00"} {
		f.Add([]byte(s))
	}
	c, err := selfSigned()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSniffer(c)
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			client.Write(b)
			client.Close()
		}()
		go io.Copy(io.Discard, client) // what TLS answers
		conn, _, err := s.ServerHandshake(server)
		if err == nil {
			got, _ := io.ReadAll(conn)
			if string(got) != string(b) {
				t.Errorf("read %q; want %q", got, b)
			}
			conn.Close()
		}
		<-done
		if n := s.pending.len(); n != 0 {
			t.Errorf("%d are still pending", n)
		}
	})
}
