package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Clients of RocketMQ look for these words in the status texts of its proxy.
func TestTextsThatClientsLookFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 10 * time.Second, MaxInvisibleDuration: 12 * time.Hour}, server.Options{})
		const small, large = "the invisibleTime is too small. min is 10000", "the invisibleTime is too large. max is 43200000"
		for d, text := range map[time.Duration]string{9999 * time.Millisecond: small, 12*time.Hour + time.Millisecond: large} {
			if st, _ := e.receive(e.ctx(), receiveRequest("normal", invisible(d))); st.GetCode() != 40011 || !strings.HasPrefix(st.GetMessage(), text) {
				t.Errorf("receive for %v: %v; want 40011 and %q", d, st, text)
			}
		}
		e.send(msg("normal", "1"), msg("normal", "2"))
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		change := func(d time.Duration) *rmqpb.Status {
			r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: ms[0].GetSystemProperties().GetReceiptHandle(), InvisibleDuration: durationpb.New(d),
			})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetStatus()
		}
		for d, text := range map[time.Duration]string{-1: "the invisibleTime is too small. min is 0", 12*time.Hour + time.Millisecond: large} {
			if st := change(d); st.GetCode() != 40011 || !strings.HasPrefix(st.GetMessage(), text) {
				t.Errorf("change to %v: %v; want 40011 and %q", d, st, text)
			}
		}

		ackAll := func() *rmqpb.AckMessageResponse {
			r := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal")}
			for _, m := range ms {
				r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
			}
			a, err := e.AckMessage(e.ctx(), r)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		e.ack(ms[0])
		if a := ackAll(); a.GetStatus().GetCode() != rmqpb.Code_MULTIPLE_RESULTS {
			t.Errorf("one of two entries failed: %v; want MULTIPLE_RESULTS", a)
		}
		a := ackAll()
		for _, entry := range a.GetEntries() {
			refused(t, entry.GetStatus(), tidegate.CodeInvalidReceiptHandle)
			if strings.Contains(entry.GetStatus().GetMessage(), "INVALID_RECEIPT_HANDLE") {
				t.Errorf("entry %v", entry)
			}
		}
		if st := a.GetStatus(); st.GetCode() != 40013 || !strings.HasPrefix(st.GetMessage(), "INVALID_RECEIPT_HANDLE: ") {
			t.Errorf("all entries failed: %v; want 40013 and a text that begins with INVALID_RECEIPT_HANDLE", st)
		}
	})
}
