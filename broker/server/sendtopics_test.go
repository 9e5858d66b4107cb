package server_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// The messages of a request that announces it have different topics, and each topic has its own
// result and its own time to wait.
func TestSendToSeveralTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		if _, err := e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}}); err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), protocol.CodeMultipleResults)
		want := []tidegate.Code{protocol.CodeOK, tidegate.CodeTooManyRequests, tidegate.CodeTooManyRequests, tidegate.CodeTopicNotFound, protocol.CodeOK, protocol.CodeMessageBodyEmpty}
		var got []tidegate.Code
		for _, entry := range r.GetEntries() {
			got = append(got, tidegate.Code(entry.GetStatus().GetCode()))
		}
		if !slices.Equal(got, want) {
			t.Errorf("codes %v; want %v", got, want)
		}
		waits := strings.Split(strings.Join(trailer.Get(wire.TrailerPushBacks), ""), ",")
		if len(waits) != 4 || waits[0] != "0" || waits[1] == "0" || waits[2] != "0" || waits[3] != "0" {
			t.Errorf("waits %q; want one for the second of the four runs", waits)
		}
		if len(trailer.Get(wire.TrailerPushBack)) != 0 {
			t.Error("the request has a time to wait for all topics")
		}
	})
}

// Topics that all fail in the same way have a result each: the text names the topic.
func TestSendToSeveralMissingTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, wire.FeatureTopics)
		r, err := e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("north", "a"), msg("south", "b")}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.GetEntries()) != 2 || !strings.Contains(r.GetEntries()[0].GetStatus().GetMessage(), "north") || !strings.Contains(r.GetEntries()[1].GetStatus().GetMessage(), "south") {
			t.Errorf("entries %v", r.GetEntries())
		}
	})
}

// Middleware is called with one topic, so a server with one gets no request of several.
func TestMiddlewareGetsOneTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Intercept: func(ctx context.Context, _ server.Call, next func(context.Context) error) error { return next(ctx) }})
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, wire.FeatureTopics)
		r, err := e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "a"), msg("fifo", "b")}}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), protocol.CodeMessageCorrupted, "same topic")
		if got := header.Get(wire.HeaderFeatures); len(got) != 1 || strings.Contains(got[0], "topics") {
			t.Errorf("the server announces %q", got)
		}
	})
}
