package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// After 10 000 dead letters within a minute the log has two lines: the first dead letter at once,
// and the number of the others at the end of Run.
func TestDeadLettersAreTallied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const letters = 10_000
		s := newServer(t)
		s.caps = ours
		s.fill(letters)
		var log bytes.Buffer // guarded by the lock of its handler; read after Run
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("not an order"))
		},
			consumer.PushOptions{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		time.Sleep(30 * time.Second)
		stop()
		if len(s.dead) != letters {
			t.Fatalf("%d dead letters, want %d", len(s.dead), letters)
		}
		type entry struct {
			Level   string
			Msg     string
			Topic   string
			Group   string
			ID      string `json:"message_id"`
			Error   string
			Further int
		}
		var lines []entry
		for d := json.NewDecoder(&log); d.More(); {
			var e entry
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			if e.Msg == "message became a dead letter" {
				lines = append(lines, e)
			}
		}
		if len(lines) != 2 || lines[0].Further != 0 || lines[1].Further != letters-1 {
			t.Fatalf("lines %+v, want one for the first dead letter and one for the other %d", lines, letters-1)
		}
		for _, e := range lines {
			if e.Level != "WARN" || e.Topic != "orders" || e.Group != "billing" || e.ID == "" || e.Error != "not an order" {
				t.Errorf("line %+v", e)
			}
		}
	})
}
