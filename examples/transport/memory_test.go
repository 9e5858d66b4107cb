package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The transport passes the suite that every transport passes.
func TestSuite(t *testing.T) {
	transporttest.Run(t, func(*testing.T) transporttest.Fixture {
		var mu sync.Mutex
		groups := map[string]transport.ConsumerSettings{}
		return transporttest.Fixture{
			Transport: newMemory(func(group string) transport.ConsumerSettings {
				mu.Lock()
				defer mu.Unlock()
				return groups[group]
			}),
			CreateTopic: func(context.Context, string, settings.TopicType) error { return nil },
			CreateGroup: func(_ context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				defer mu.Unlock()
				groups[name] = s
				return nil
			},
		}
	}, transporttest.Server{
		Virtual:    true,
		ExactWaits: true, RetriesWakeReceives: true, FullReceives: true, BoundsBytes: true, CancelledReceivesEnd: true,
		RefusesStaleHandles: true, RefusesEmptyBodies: true, GroupsFlow: true, DeadLettersAtOnce: true,
		LacksPositions: true, LacksTopicTypes: true, LacksMissingTopics: true,
	})
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := run(t.Context(), &out); err != nil || out.String() != "attempt 1: hello\nattempt 2: hello\n" {
			t.Errorf("%v, printed:\n%s", err, out.String())
		}
	})
}
