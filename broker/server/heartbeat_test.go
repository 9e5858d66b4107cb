package server_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// A heartbeat that announces it counts for all clients whose streams announce it and use the same
// connection.
func TestSharedHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		begin := time.Now()
		other := x.dial()
		defer other.Close()
		shares := []string{wire.HeaderFeatures, "packed, watch, heartbeats"}
		for _, id := range []string{"a", "b"} {
			x.telemetry(as(t.Context(), id, shares...), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		}
		x.telemetry(as(t.Context(), "alone"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		st, err := rmqpb.NewMessagingServiceClient(other).Telemetry(as(t.Context(), "elsewhere", shares...))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(producer("normal"))); err != nil {
			t.Fatal(err)
		}
		x.settings(st)

		expect := func(what string, want map[string]time.Duration) {
			t.Helper()
			got := map[string]time.Duration{}
			for _, c := range x.clients("", "").Clients {
				got[c.ID] = c.LastSeen.Sub(begin)
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: the clients were seen at %v, want %v", what, got, want)
			}
		}
		expect("at first", map[string]time.Duration{"a": 0, "b": 0, "alone": 0, "elsewhere": 0})
		beat := func(id string, features ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			r, err := x.Heartbeat(as(t.Context(), id, features...), &rmqpb.HeartbeatRequest{Group: res("g")})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, r.GetStatus(), protocol.CodeOK)
		}
		beat("a", wire.HeaderFeatures, "heartbeats")
		expect("a heartbeat for all", map[string]time.Duration{"a": time.Minute, "b": time.Minute, "alone": 0, "elsewhere": 0})
		beat("a")
		expect("a heartbeat for one", map[string]time.Duration{"a": 2 * time.Minute, "b": time.Minute, "alone": 0, "elsewhere": 0})
		beat("b", wire.HeaderFeatures, "heartbeats")
		expect("another one for all", map[string]time.Duration{"a": 3 * time.Minute, "b": 3 * time.Minute, "alone": 0, "elsewhere": 0})
		if got := idsOf(x.clients("", "?idle=1m")); len(got) != 2 {
			t.Errorf("%v were idle for a minute, want alone and elsewhere", got)
		}
	})
}

// A client that shares heartbeats is asked for its settings in the stream if a termination, perhaps
// a late one, has removed them. Without settings the broker would treat a push consumer as a simple
// one.
func TestTerminationAsksForSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		end := func(id string) {
			t.Helper()
			if _, err := e.NotifyClientTermination(as(t.Context(), id), &rmqpb.NotifyClientTerminationRequest{Group: res("g")}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a stream that stays silent fails the test
		defer cancel()
		st, _ := e.telemetry(as(ctx, "client", wire.HeaderFeatures, "heartbeats"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		end("client")
		cmd, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		refused(t, cmd.GetStatus(), protocol.CodeUnrecognizedClientType, "settings")
		if err := st.Send(command(consumer(rmqpb.ClientType_PUSH_CONSUMER))); err != nil {
			t.Fatal(err)
		}
		e.settings(st)
		if !e.s.Parts().Sessions.IsPush("client") {
			t.Error("the client is no push consumer after its settings")
		}

		// Other clients learn it from the responses to their heartbeats.
		old, _ := e.telemetry(as(t.Context(), "old"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		end("old")
		sessions := e.s.Parts().Sessions
		sessions.Resend(sessions.Get("old")) // as a change of its group does beside the termination
		read := make(chan *rmqpb.TelemetryCommand, 1)
		go func() {
			if cmd, err := old.Recv(); err == nil {
				read <- cmd
			}
		}()
		synctest.Wait()
		if len(read) > 0 {
			t.Errorf("a client without the feature got %v", <-read)
		}
	})
}
