package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// The commands in the plan are whole and quoted: a name can be a flag, or have characters of
// shells.
func TestOfferedCommands(t *testing.T) {
	s := moveState{Group: status.Group{Name: "-a|b"}, Sees: status.Subscription{Parked: 2}}
	if got, want := s.stays(), []string{"2 messages parked: ready after tidegate parked redrive -- '-a|b'"}; !slices.Equal(got, want) {
		t.Errorf("the plan has %q, want %q", got, want)
	}
	topic, group := s.Creates("", "there", "-x", "-a|b")
	if want := "tidegate topic create --context there -- -x type=NORMAL queues="; !strings.HasPrefix(topic, want) {
		t.Errorf("the topic is created by %s, want %s", topic, want)
	}
	if want := "tidegate group create --context there -- '-a|b' max_attempts="; !strings.HasPrefix(group, want) {
		t.Errorf("the group is created by %s, want %s", group, want)
	}
}

// A move ends when no message has arrived for --wait; with --follow it never ends by itself.
func TestFollowHasNoEnd(t *testing.T) {
	const wait = 30 * time.Second
	for _, c := range []struct {
		follow bool
		idle   time.Duration
		done   bool
	}{{false, wait - 1, false}, {false, wait, true}, {true, wait, false}, {true, 1000 * time.Hour, false}} {
		for name, state := range map[string]*moveState{"a RocketMQ": nil, "a tidegate broker": {}} {
			if state != nil && !c.done && !c.follow {
				continue // it asks the broker
			}
			m := &moveCommand{follow: c.follow, wait: wait}
			if done, err := m.done(t.Context(), state, c.idle); done != c.done || err != nil {
				t.Errorf("%s, follow %t, after %v without a message: done %t, %v; want %t", name, c.follow, c.idle, done, err, c.done)
			}
		}
	}
}
