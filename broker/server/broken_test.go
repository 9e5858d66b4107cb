package server_test

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A buggy server panics.
type buggy struct{ engine.Server }

func (buggy) ConsumerSettingsChanged(string) { panic("a bug") }

// A broker that rejects everything logs why, once, and not each request that it rejects.
func TestBrokenBrokerLogsOneError(t *testing.T) {
	log, text := testLog()
	e := startWith(t, broker.Options{Logger: log}, server.Options{Logger: log})
	e.b.Engine().Attach(buggy{})
	func() {
		defer func() { _ = recover() }() // as a server does
		_, _ = e.b.PutGroup(t.Context(), "g", settings.Group{})
	}()
	if e.b.Healthy() == nil {
		t.Fatal("the broker is healthy")
	}
	for range 5 {
		resp, err := e.SendMessage(as(t.Context(), "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
			Topic: &rmqpb.Resource{Name: "normal"}, SystemProperties: &rmqpb.SystemProperties{MessageId: "m"}, Body: []byte("x"),
		}}})
		if err != nil || resp.GetStatus().GetCode() != rmqpb.Code_INTERNAL_SERVER_ERROR {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged:\n%s", n, text)
	}
}
