package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// A story runs the steps of the example, prints their results, and collects failed assertions.
type story struct {
	endpoint string // of the broker, gRPC
	admin    *admin.Client
	prefix   string // of the names of this run
	start    time.Time

	mu     sync.Mutex
	out    io.Writer // guarded by mu
	faults []error   // guarded by mu
	made   []made    // guarded by mu: topics and groups to delete at the end
}

// made is a topic or a group that this run has created.
type made struct {
	name   string
	delete func(ctx context.Context, name string) error
}

// A scene is a part of the story that runs beside the other scenes.
type scene struct {
	*story
	name string
}

func (s *story) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %-11s  %s\n", time.Since(s.start).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *story) fault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, err)
}

func (s scene) say(format string, args ...any) { s.story.say(s.name, format, args...) }

// assert records a failed assertion unless ok is true.
func (s scene) assert(ok bool, format string, args ...any) {
	if !ok {
		s.fault(fmt.Errorf("%s: expected, but it did not happen: %s", s.name, fmt.Sprintf(format, args...)))
	}
}

// assertEqual records a failed assertion unless the lists are equal.
func assertEqual[T comparable](s scene, what string, got, want []T) {
	s.assert(slices.Equal(got, want), "%s: got %v, want %v", what, got, want)
}

// topic creates a topic with the settings, and returns its name.
func (s scene) topic(ctx context.Context, name string, settings settings.Topic) (string, error) {
	name = s.prefix + name
	if _, err := s.admin.PutTopic(ctx, name, settings); err != nil {
		return "", err
	}
	s.willDelete(made{name, s.admin.DeleteTopic})
	return name, nil
}

// group creates a consumer group with the settings, and returns its name.
func (s scene) group(ctx context.Context, name string, settings settings.Group) (string, error) {
	name = s.prefix + name
	if _, err := s.admin.PutGroup(ctx, name, settings); err != nil {
		return "", err
	}
	s.willDelete(made{name, s.admin.DeleteGroup})
	return name, nil
}

func (s scene) willDelete(m made) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, m)
}

// tidy deletes the topics and groups of this run. A failed deletion, for example because the broker
// is gone, is printed and does not fail the run.
func (s *story) tidy(ctx context.Context) {
	s.mu.Lock()
	made := slices.Clone(s.made)
	s.mu.Unlock()
	for _, m := range made {
		if err := m.delete(ctx, m.name); err != nil {
			s.say("all", "left behind: %v", err)
		}
	}
}

// A progress is how far a group is in a topic, as far as this program looks.
type progress struct{ Acked, Redelivered, DeadLetters int64 }

// settled waits until the broker has nothing left for a group in a topic, and
// asserts how it came to that.
func (s scene) settled(ctx context.Context, group, topic string, want progress) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		g, err := s.admin.Group(ctx, group)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(g.Topics, func(t status.Subscription) bool { return t.Topic == topic })
		if i < 0 {
			return fmt.Errorf("group %s has not received from topic %s", group, topic)
		}
		at := g.Topics[i]
		got := progress{at.Acked, at.Redelivered, at.DeadLetters}
		if at.Backlog.Messages == 0 {
			s.assert(got == want, "the broker's count for group %s: got %+v, want %+v", group, got, want)
			s.say("nothing is left for group %s: acknowledged %d, redelivered %d, dead letters %d",
				group, got.Acked, got.Redelivered, got.DeadLetters)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until nothing is left for group %s, which is at %+v: %w", group, got, context.Cause(ctx))
		}
	}
}
