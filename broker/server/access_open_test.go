package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// teams are two keys that may do everything with the topics of their patterns.
func teams(topics map[string]string) (c server.AccessConfig) {
	for name, pattern := range topics {
		c.Keys = append(c.Keys, server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(secretMark + name)}, Allow: []server.Rule{
			{Actions: []server.Action{server.ActionSend, server.ActionReceive}, Topics: []string{pattern}, Groups: []string{"g"}},
		}})
	}
	return c
}

// Checks, which have whole bodies, go to clients that may still send to the topic. The stream of a
// client ends when its key is removed or loses the topics.
func TestTelemetryOfARemovedKey(t *testing.T) {
	for name, c := range map[string]struct {
		after map[string]string
		code  tidegate.Code // of the end of the stream
		ends  codes.Code
	}{
		"the key is gone":               {map[string]string{"new": "*"}, tidegate.CodeUnauthorized, codes.Unauthenticated},
		"it may not send to this topic": {map[string]string{"new": "*", "old": "normal"}, tidegate.CodeForbidden, codes.PermissionDenied},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := withTransactions(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})})
			old, _ := e.telemetry(signed(t.Context(), "old"), producer("tx"))
			current, _ := e.telemetry(signed(t.Context(), "new"), producer("tx"))
			if err := e.s.SetAccess(teams(c.after)); err != nil {
				t.Fatal(err)
			}
			if n := len(e.s.Parts().Sessions.Publishing("tx")); n != 1 { // at once
				t.Errorf("%s: %d streams are asked, want 1", name, n)
			}
			half := msg("tx", "m", sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_TRANSACTION }))
			r, err := e.SendMessage(signed(t.Context(), "new"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{half}})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, r.GetStatus(), protocol.CodeOK)
			for range 3 {
				if got := e.check(current).GetMessage().GetSystemProperties().GetMessageId(); got != "m" {
					t.Errorf("%s: checked %q", name, got)
				}
			}
			cmd, err := old.Recv()
			if err != nil {
				t.Fatal(err)
			}
			refused(named{t, name}, cmd.GetStatus(), c.code)
			ended(named{t, name}, old, c.ends, cmd.GetStatus())
		})
	}
}

// A stream belongs to the key that opened it: settings that arrive after the end of its signature's
// validity are accepted.
func TestTelemetryOutlivesItsSignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: teams(map[string]string{"old": "*"})})
		st, _ := e.telemetry(signed(t.Context(), "old"), producer("normal"))
		time.Sleep(2 * server.DefaultMaxClockSkew)
		for _, access := range []server.AccessConfig{teams(map[string]string{"old": "norm*"}), teams(map[string]string{"old": "*", "new": "*"})} {
			if err := e.s.SetAccess(access); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := st.Send(command(producer("normal"))); err != nil {
				t.Fatal(err)
			}
			e.settings(st)
		}
		// Without keys the client has another ID: it comes again with that.
		if err := e.s.SetAccess(server.AccessConfig{}); err != nil {
			t.Fatal(err)
		}
		if cmd, err := st.Recv(); err != io.EOF {
			t.Errorf("%v, %v", cmd, err)
		}
	})
}

// A receive that waits takes nothing for a key that is gone meanwhile.
func TestWaitingReceivesAreAuthorizedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})})
		answers := make(chan *rmqpb.Status, 1)
		go func() {
			st, _ := e.receive(signed(t.Context(), "old"), receiveRequest("normal"))
			answers <- st
		}()
		synctest.Wait()
		if err := e.s.SetAccess(teams(map[string]string{"new": "*"})); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		refused(t, <-answers, protocol.CodeMessageNotFound)
		if d := time.Since(began); d != 0 {
			t.Errorf("it waited for another %v", d)
		}
	})
}

// Streams over HTTP end with their key and with its rights.
func TestHTTPStreamsOfARemovedKey(t *testing.T) {
	for name, c := range map[string]struct {
		after  map[string]string
		status int // 0: it continues
	}{
		"the key is gone":          {map[string]string{"new": "*"}, 401},
		"the topic is not its own": {map[string]string{"old": "fifo"}, 403},
		"nothing changes for it":   {map[string]string{"old": "normal", "new": "fifo"}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := startWeb(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})})
			at := time.Now().UTC().Format("20060102T150405Z")
			header := []string{"X-Mq-Date-Time", at, "Authorization", signature("old", secretMark+"old", at)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in := x.sendStream(ctx, "normal", header...)
			out := x.deliveryStream(ctx, "normal", `{}`, header...)
			defer out.Body.Close()
			lines := bufio.NewScanner(out.Body)
			next := func() string {
				t.Helper()
				for lines.Scan() {
					if lines.Text() != "" {
						return lines.Text()
					}
				}
				return fmt.Sprint("end ", lines.Err())
			}
			in.write(`{"id":"1","body":"eA=="}` + "\n")
			if r := in.next(); r.Error != nil {
				t.Fatalf("%+v", r)
			}
			if got := next(); !strings.Contains(got, `"id":"1"`) {
				t.Fatal(got)
			}
			if err := x.s.SetAccess(teams(c.after)); err != nil {
				t.Fatal(err)
			}
			if c.status != 0 {
				want := fmt.Sprintf(`"status":%d`, c.status)
				if got := next(); !strings.Contains(got, want) { // at once
					t.Errorf("%s: received %s, want %s", name, got, want)
				}
				if got := next(); got != "end <nil>" {
					t.Errorf("%s: received %s after the last line", name, got)
				}
			}
			in.write(`{"id":"2","body":"eA=="}` + "\n")
			switch r := in.next(); {
			case c.status == 0 && r.Error != nil, c.status != 0 && (r.Error == nil || r.Error.Status != c.status || r.Line != 0):
				t.Errorf("%s: the response is %+v", name, r)
			case c.status != 0:
				in.end()
			default:
				if got := next(); !strings.Contains(got, `"id":"2"`) {
					t.Errorf("%s: received %s", name, got)
				}
			}
			synctest.Wait()
			stored, err := x.b.Topic("normal")
			if want := map[bool]int64{true: 2, false: 1}[c.status == 0]; err != nil || stored.StoredMessages != want {
				t.Errorf("%s: %+v, %v; want %d messages", name, stored, err, want)
			}
		})
	}
}
