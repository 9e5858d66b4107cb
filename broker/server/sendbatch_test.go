package server_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

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
	if !wire.Reusable(manyMessages) {
		t.Fatalf("the memory of %d messages is not used again", manyMessages)
	}
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
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: largeSend("a")})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeInternalServerError, "ouch")
		for range 5 {
			e.send(largeSend("b")...)
		}
		checkIncoming(t, "a", kept)
	})
}
