package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A space is memory for the bodies of so many bytes.
type space int64

var errNoSpace = errors.New("no space")

func (s space) Admit(bytes int64) error {
	if bytes > int64(s) {
		return errNoSpace
	}
	return nil
}

// A receive gets the messages that it is admitted, new ones and ones that are due again. The others
// stay, with the attempts that they had.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.Open(broker.Options{MinInvisibleDuration: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := b.PutTopic(t.Context(), "t", settings.Topic{Queues: 1}); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if r := b.Send(t.Context(), []*tidegate.Message{{Topic: "t", ID: fmt.Sprint(i), Body: make([]byte, 100)}})[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		poll := func(room space, want int, attempt int) {
			t.Helper()
			ds, err := serve(b).Poll(t.Context(), engine.Request{
				ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Second},
				Memory:         room,
			})
			if len(ds) != want || (want == 0) != errors.Is(err, errNoSpace) {
				t.Fatalf("with space for %d bytes it gets %d messages, %v; want %d", room, len(ds), err, want)
			}
			for _, d := range ds {
				if d.Attempt != attempt {
					t.Errorf("offset %d comes with attempt %d, want %d", d.Offset, d.Attempt, attempt)
				}
			}
		}
		poll(99, 0, 0)
		poll(350, 3, 1)
		poll(1000, 7, 1)
		time.Sleep(2 * time.Second) // all are due again
		poll(99, 0, 0)
		poll(999, 9, 2)
		poll(1000, 1, 2)
	})
}
