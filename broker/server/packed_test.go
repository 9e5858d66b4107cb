package server_test

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// A client that announces it gets its messages packed into one frame. Any other one gets them as
// RocketMQ sends them, a frame each. A client that receives none sees no difference.
func TestPackedOnlyOnRequest(t *testing.T) {
	for announced, want := range map[string]struct{ frames, packed int }{
		"": {5, 0}, "packed": {1, 3}, "other, packed": {1, 3}, "unpacked": {5, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, server.Options{})
			for i := range 3 {
				e.send(msg("normal", fmt.Sprint(i)))
			}
			ctx := e.ctx()
			if announced != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, announced)
			}
			for range 2 { // with messages, and without
				fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal")))
				if err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				packed := 0
				for _, f := range fs {
					packed += len(f.GetPacked())
				}
				if len(fs) != want.frames || packed != want.packed {
					t.Errorf("%q: %d frames with %d packed messages, want %+v", announced, len(fs), packed, want)
				}
				if fs[0].GetStatus() == nil {
					t.Errorf("%q: the first frame is %v", announced, fs[0])
				}
				want.frames, want.packed = 2, 0
			}
		})
	}
}

// The header bounds the messages of a receive together.
func TestMaxBytesOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		for i := range 6 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, 100))))
		}
		with := func(text string) (*rmqpb.Status, []*rmqpb.Message) {
			return e.receive(metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderMaxBytes, text), receiveRequest("normal"))
		}
		for _, c := range []struct {
			text string
			want int
		}{{"1", 1}, {"250", 2}, {"0", 3}} {
			if st, ms := with(c.text); len(ms) != c.want {
				t.Errorf("max bytes %s: %v, %d messages; want %d", c.text, st, len(ms), c.want)
			}
		}
		for _, text := range []string{"-1", "1 KiB", "99999999999999999999"} {
			st, _ := with(text)
			refused(t, st, tidegate.CodeBadRequest, wire.HeaderMaxBytes)
		}
	})
}

// Digests are of the kind that the client reads: CRC32 in the form of RocketMQ's Go client, MD5 for
// all others, which disagree about the form of a CRC32.
func TestDigestByLanguage(t *testing.T) {
	e := start(t, server.Options{})
	for _, language := range []string{"GO", "JAVA", "HTTP", ""} {
		e.send(msg("normal", "id", body([]byte("tide 302")))) // a CRC32 that begins with zeros
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderLanguage, language)
		d := e.one(ctx, receiveRequest("normal")).GetSystemProperties().GetBodyDigest()
		if language == "GO" && (d.GetType() != rmqpb.DigestType_CRC32 || d.GetChecksum() != "2F6FC0") {
			t.Errorf("%q: %v", language, d)
		}
		if sum := md5.Sum([]byte("tide 302")); language != "GO" && (d.GetType() != rmqpb.DigestType_MD5 || d.GetChecksum() != fmt.Sprintf("%X", sum)) {
			t.Errorf("%q: %v", language, d)
		}
	}
}

// An acknowledgement that succeeded has no entries in its response for a client that announces that
// it needs none; a partly failed response has all of them.
func TestBriefAcknowledgements(t *testing.T) {
	e := start(t, server.Options{})
	brief := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, "packed, brief")
	ack := func(ctx context.Context, handles ...string) *rmqpb.AckMessageResponse {
		t.Helper()
		r := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal")}
		for _, h := range handles {
			r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: h})
		}
		out, err := e.AckMessage(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	receive := func() string {
		e.send(msg("normal", tidegate.NewMessageID()))
		return e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
	}
	done := receive()
	if r := ack(brief, done); r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 0 {
		t.Errorf("all succeeded: %v", r)
	}
	if r := ack(brief, receive(), done); r.GetStatus().GetCode() != rmqpb.Code_MULTIPLE_RESULTS || len(r.GetEntries()) != 2 ||
		r.GetEntries()[0].GetStatus().GetCode() != rmqpb.Code_OK || r.GetEntries()[1].GetStatus().GetCode() != rmqpb.Code_INVALID_RECEIPT_HANDLE {
		t.Errorf("one failed: %v", r)
	}
	if r := ack(e.ctx(), receive()); r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 1 {
		t.Errorf("to a client that announces nothing: %v", r)
	}
}

// The broker asks a client that reads packed deliveries to receive more of them at a time, and
// delivers them, also after a heartbeat.
func TestPackedReceivesAreLarger(t *testing.T) {
	for announced, want := range map[string]int{"": refusal.MaxReceive, "packed": server.PackedBatchSize} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, server.Options{})
			for i := range server.PackedBatchSize + 1 {
				e.send(msg("normal", fmt.Sprint(i)))
			}
			ctx := e.ctx()
			if announced != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, announced)
			}
			st, got := e.telemetry(ctx, consumer(rmqpb.ClientType_PUSH_CONSUMER))
			if n := got.GetSubscription().GetReceiveBatchSize(); int(n) != want {
				t.Errorf("%q: the settings have %d messages in a receive, want %d", announced, n, want)
			}
			if r, err := e.Heartbeat(e.ctx(), &rmqpb.HeartbeatRequest{}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
			fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1000 })))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, f := range fs {
				if n += len(f.GetPacked()); f.GetMessage() != nil {
					n++
				}
			}
			if n != want {
				t.Errorf("%q: a receive brought %d messages, want %d", announced, n, want)
			}
			if err := st.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if cmd, err := st.Recv(); !errors.Is(err, io.EOF) { // the heartbeat changed no settings
				t.Errorf("%q: %v, %v after the settings", announced, cmd, err)
			}
		})
	}
}
