package broker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// cutLog takes a part of the end of a closed broker's message log.
func cutLog(t *testing.T, fs *vfs.MemFS, left float64) {
	t.Helper()
	names, err := fs.List("data/messages")
	if err != nil {
		t.Fatal(err)
	}
	name, size := "", 0
	var data []byte
	for _, n := range names {
		if !strings.HasSuffix(n, ".log") {
			continue
		}
		if d, err := fs.UnsafeGetFileDataBuffer("data/messages/" + n); err != nil {
			t.Fatal(err)
		} else if len(d) > size {
			name, size, data = "data/messages/"+n, len(d), append([]byte(nil), d...)
		}
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data[:int(float64(size)*left)]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove("data/CLEAN"); err != nil {
		t.Fatal(err)
	}
}

// Where damage has taken the end of the message log, and an operator goes on without it, what is
// sent then is delivered to the groups that had been further, no offset is given twice,
// and what they had in flight of the lost messages is forgotten.
func TestLostEndOfAQueue(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs := vfs.NewMem()
			options := Options{Dir: "data", fs: fs}
			b := open(t, options)
			kind, messageGroup, config := TopicNormal, "", GroupConfig{}
			if fifo {
				kind, messageGroup, config = TopicFIFO, "mg", GroupConfig{FIFO: true, OnExhausted: OnExhaustedPark, MaxAttempts: 1}
			}
			putTopic(t, b, "t", TopicConfig{Queues: 1, Type: kind})
			putGroup(t, b, "g", config)
			const before, after = 100, 40
			sendOne := func(id string) tidegate.Receipt {
				r := send(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: messageGroup, Body: []byte(id)})[0]
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				return r.Receipt
			}
			for i := range before {
				sendOne(fmt.Sprint("old", i))
			}
			var old []*tidegate.Delivery
			if fifo { // one after another, up to one that fails and parks the others
				for range before * 9 / 10 {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					if err := b.Ack(t.Context(), ds)[0]; err != nil {
						t.Fatal(err)
					}
				}
				old = receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true})
				if err := b.Retry(t.Context(), old[0], 0); err != nil {
					t.Fatal(err)
				}
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
			} else {
				for len(old) < before {
					old = append(old, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})...)
				}
				for i, err := range b.Ack(t.Context(), old[:before-3]) {
					if err != nil {
						t.Fatal(i, err)
					}
				}
				old = old[before-3:]
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			cutLog(t, fs, 0.6)
			b = open(t, options)
			info, err := b.Topic("t")
			left := info.Messages
			if err != nil || left < before/4 || left > before*3/4 {
				t.Fatalf("%d messages are left of %d, %v", left, before, err)
			}
			for i, err := range b.Ack(t.Context(), old) {
				wantCode(t, fmt.Sprint("handle ", i, " of a lost message"), err, tidegate.CodeInvalidReceiptHandle)
			}
			for i := range after {
				if r := sendOne(fmt.Sprint("new", i)); r.Offset < before {
					t.Fatalf("message %d was given offset %d a second time", i, r.Offset)
				}
			}
			for restart := range 2 {
				want := after - restart
				for i := range want {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 10 * time.Second, Wait: time.Second})
					if len(ds) != 1 || ds[0].Attempt != 1+restart || fifo && ds[0].ID != fmt.Sprint("new", i) {
						t.Fatalf("start %d, %d of %d: %+v", restart, i, want, ds)
					}
					if fifo || i == 0 && restart == 0 {
						if err := b.Ack(t.Context(), ds)[0]; err != nil {
							t.Fatal(err)
						}
					}
				}
				if info, err := b.Topic("t"); err != nil || info.Messages != left+after {
					t.Errorf("start %d: %d messages, want %d; %v", restart, info.Messages, left+after, err)
				}
				if fifo {
					break
				}
				<-time.After(time.Minute)
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, options)
			}
			n := int64(0)
			for {
				ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
				if len(ds) == 0 {
					break
				}
				n += int64(len(ds))
				b.Ack(t.Context(), ds)
			}
			if n != left+after {
				t.Errorf("another group receives %d, want %d", n, left+after)
			}
			if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages != left+after {
				t.Errorf("a purge removes %d messages, want %d; %v", removed.Messages, left+after, err)
			}
			if info, err := b.Topic("t"); err != nil || info.Messages != 0 || info.Bytes != 0 || info.Backlog != (Backlog{}) {
				t.Errorf("after it there are %d messages, %d bytes, backlog %v; %v", info.Messages, info.Bytes, info.Backlog, err)
			}
		})
	}
}
