package browsertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The picture of the README shows a group with messages in each state, and stays small.
func TestPictureOfTheReadme(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{Queues: 1})
	s.group("billing", settings.Group{})
	s.bury("billing", "orders", 41, func(int) string { return "no such account" }, func(i int) *tidegate.Message {
		return &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, `{"order":%d}`, i)}
	})
	msgs := make([]*tidegate.Message, 1604)
	for i := range msgs {
		msgs[i] = &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, `{"order":%d}`, i)}
	}
	s.send(msgs...)
	for i, d := range s.take("billing", "orders", 400) {
		var err error
		switch {
		case i < 318:
			_, err = s.Settle(context.Background(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "connection refused"})
		case i < 336:
			err = s.Ack(context.Background(), []*tidegate.Delivery{d})[0]
		}
		assert.Must(t, err)
	}
	b := open(t, s.url)
	b.size(1280, 720)
	b.load("#/groups/billing")
	b.shoot("readme")
	if *screenshots == "" {
		return
	}
	info := assert.Value(os.Stat(filepath.Join(*screenshots, "readme.png")))(t)
	if info.Size() > 150_000 || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("the picture has %d bytes, of %v; the limit is 150 000", info.Size(), info.ModTime())
	}
}
