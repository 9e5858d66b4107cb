package broker_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

func TestTopicRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		rate     settings.Rate
		size     int
		least    int // accepted in ten seconds
		most     int
		waitMost time.Duration
		says     string
	}{
		{"messages", settings.Rate{MessagesPerSecond: 10, Burst: 5}, 1, 100, 105, 100 * time.Millisecond, `topic rate messages of "t" is`},
		{"messages, default burst", settings.Rate{MessagesPerSecond: 10}, 1, 105, 110, 100 * time.Millisecond, "the limit is 10 messages/s"},
		{"bytes", settings.Rate{BytesPerSecond: 1000}, 100, 105, 110, 100 * time.Millisecond, `topic rate bytes of "t" is`},
		{"a message above a second's bytes", settings.Rate{BytesPerSecond: 50}, 100, 5, 6, 2 * time.Second, "the limit is 50 bytes/s"},
		{"both", settings.Rate{MessagesPerSecond: 1000, BytesPerSecond: 1000}, 100, 105, 110, 100 * time.Millisecond, "raise the topic's max_rate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{MaxRate: c.rate})
				accepted := 0
				for range 2000 {
					r := send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, c.size)})[0]
					if r.Err == nil {
						accepted++
					} else if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || !errors.Is(r.Err, tidegate.ErrThrottled) || e.RetryAfter <= 0 || e.RetryAfter > c.waitMost {
						t.Fatalf("the refusal is %#v", r.Err)
					} else if !strings.Contains(r.Err.Error(), c.says) {
						t.Fatalf("the text does not contain %q: %v", c.says, r.Err)
					}
					time.Sleep(5 * time.Millisecond)
				}
				if accepted < c.least || accepted > c.most {
					t.Errorf("%d accepted in 10 s, want %d to %d", accepted, c.least, c.most)
				}
				ths := b.Throttles()
				if len(ths) == 0 || ths[0].Since.IsZero() == ths[0].On {
					t.Errorf("throttles: %+v", ths)
				}
				time.Sleep(time.Minute)
				for _, th := range b.Throttles() {
					if th.On {
						t.Errorf("after a minute it throttles: %+v", th)
					}
				}
				putTopic(t, b, "t", settings.Topic{}) // lifted while running
				for range 100 {
					mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, c.size)})
				}
			})
		})
	}
}

// A new limit begins with its whole burst, with any sends or debts before it.
func TestRateThatIsSetAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, meanwhile, again settings.Rate }{
		"messages while bytes are limited": {settings.Rate{MessagesPerSecond: 100, BytesPerSecond: 1e9}, settings.Rate{BytesPerSecond: 1e9}, settings.Rate{MessagesPerSecond: 100}},
		"bytes while messages are limited": {settings.Rate{MessagesPerSecond: 1e9, BytesPerSecond: 100}, settings.Rate{MessagesPerSecond: 1e9}, settings.Rate{BytesPerSecond: 100}},
		"no limit meanwhile":               {settings.Rate{BytesPerSecond: 0.5}, settings.Rate{}, settings.Rate{BytesPerSecond: 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				put := func(r settings.Rate) { putTopic(t, b, "t", settings.Topic{MaxRate: r, DuplicateWindow: -1}) }
				put(c.first)
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 50)})
				put(c.meanwhile)
				msgs := make([]*tidegate.Message, 1000)
				for i := range msgs {
					msgs[i] = &tidegate.Message{Topic: "t", Body: make([]byte, 50)}
				}
				for range 3 {
					mustSend(t, b, msgs...)
					time.Sleep(time.Second)
				}
				put(c.again)
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 50)})
			})
		})
	}
}
