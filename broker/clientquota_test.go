package broker_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
)

// RocketMQ: sending retry and throttling: "Throttling: throttling triggered by excessive traffic"
func TestClientQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{ClientQuota: settings.Quota{MessagesPerSecond: 10, Burst: 5}})
		putTopic(t, b, "t", settings.Topic{})
		send := func(client string) error {
			return serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}, Client: client}})[0].Err
		}
		accepted := 0
		var refusal error
		for range 100 { // 10 s of 10 a second, tried twice as often
			if err := send("greedy"); err == nil {
				accepted++
			} else {
				refusal = err
			}
			<-time.After(50 * time.Millisecond)
		}
		if accepted < 50 || accepted > 55 {
			t.Errorf("%d accepted in 5 s, want 50 to 55", accepted)
		}
		e, ok := errors.AsType[*tidegate.Error](refusal)
		if !ok || !errors.Is(refusal, tidegate.ErrThrottled) || e.RetryAfter <= 0 || e.RetryAfter > 100*time.Millisecond {
			t.Errorf("the refusal is %#v", refusal)
		}
		for _, w := range []string{"530 TOO_MANY_REQUESTS", `"greedy"`, "10 messages a second", "burst 5"} {
			if !strings.Contains(refusal.Error(), w) {
				t.Errorf("the text does not contain %q: %v", w, refusal)
			}
		}
		for _, client := range []string{"modest", ""} {
			if err := send(client); err != nil {
				t.Errorf("client %q: %v", client, err)
			}
		}
	})
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	_, err := broker.Open(broker.Options{
		MaxBacklog: settings.Limit{Messages: -1}, ClientQuota: settings.Quota{MessagesPerSecond: math.NaN()}, MaxBodySize: -1,
		MinInvisibleDuration: time.Hour, MaxInvisibleDuration: time.Minute, CacheBytes: -1,
	})
	if err == nil {
		t.Fatal("it was opened")
	}
	for _, w := range []string{"MaxBacklog", "ClientQuota", "MaxBodySize is -1", "MinInvisibleDuration is 1h0m0s", "CacheBytes is -1"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

// The default backlog limit and the quota change while in use, and a bad one
// changes nothing.
func TestLimitsChangeInUse(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{})
	send := func() error {
		return serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}, Client: "c"}})[0].Err
	}
	for i, c := range []struct {
		limit   settings.Limit
		quota   settings.Quota
		refused bool
	}{
		{settings.Limit{}, settings.Quota{}, false},
		{settings.Limit{Messages: 1}, settings.Quota{}, true},
		{settings.Limit{}, settings.Quota{MessagesPerSecond: 1e-3}, false},
		{settings.Limit{}, settings.Quota{MessagesPerSecond: 1e-3, Burst: 1}, false},
		{settings.Limit{Messages: 100}, settings.Quota{}, false},
	} {
		if err := b.SetLimits(t.Context(), settings.Limits{MaxBacklog: c.limit, ClientQuota: c.quota}); err != nil {
			t.Fatal(err)
		}
		if b.SetLimits(t.Context(), settings.Limits{MaxBacklog: settings.Limit{Bytes: -1}}) == nil || b.SetLimits(t.Context(), settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: -1}}) == nil {
			t.Error("a negative limit was accepted")
		}
		if err := send(); errors.Is(err, tidegate.ErrThrottled) != c.refused {
			t.Errorf("step %d: %v", i, err)
		}
		if c.quota != (settings.Quota{}) {
			if err := send(); !errors.Is(err, tidegate.ErrThrottled) {
				t.Errorf("step %d: beyond the quota: %v", i, err)
			}
		}
	}
}
