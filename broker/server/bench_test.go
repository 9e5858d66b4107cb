package server_test

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// benchClient serves with serve on a port of the loopback and connects to it.
func benchClient(b *testing.B, serve func(net.Listener) error, stop func()) rmqpb.MessagingServiceClient {
	b.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(lis)
	}()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		stop()
		<-done
	})
	return rmqpb.NewMessagingServiceClient(conn)
}

// sends stores n messages of 1 KiB.
func sends(b *testing.B, c rmqpb.MessagingServiceClient, n int) {
	b.Helper()
	ctx := as(b.Context(), "bench")
	payload := make([]byte, 1<<10)
	for n > 0 {
		var ms []*rmqpb.Message
		for range min(n, 256) {
			ms = append(ms, msg("bench", "id", body(payload)))
		}
		n -= len(ms)
		if r, err := c.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: ms}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			b.Fatalf("send: %v, %v", r, err)
		}
	}
}

// BenchmarkReceive is receives of 32 messages of 1 KiB, acknowledged in one
// request, through real gRPC to a broker in memory; an operation is one message.
func BenchmarkReceive(b *testing.B) {
	e, err := broker.Open(broker.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	if _, err := e.PutTopic(b.Context(), "bench", settings.Topic{DuplicateWindow: -1}); err != nil {
		b.Fatal(err)
	}
	s, err := server.New(e, server.Options{})
	if err != nil {
		b.Fatal(err)
	}
	c := benchClient(b, s.Serve, func() { s.Close() })
	ctx := as(b.Context(), "bench")
	sends(b, c, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for got := 0; got < b.N; {
		fs, err := frames(c.ReceiveMessage(ctx, receiveRequest("bench")))
		if err != nil {
			b.Fatal(err)
		}
		a := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("bench")}
		for _, f := range fs {
			if m := f.GetMessage(); m != nil {
				a.Entries = append(a.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
			}
		}
		if r, err := c.AckMessage(ctx, a); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			b.Fatal(r, err)
		}
		got += len(a.Entries)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
