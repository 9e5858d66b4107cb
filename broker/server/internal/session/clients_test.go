package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// What is remembered of clients is bounded, and the refusal is one that a
// client comes back from.
func TestSessionsAreBounded(t *testing.T) {
	r := New(func(string) {})
	defer r.Close()
	ensure := func(id string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := r.ensureLocked(id)
		return err
	}
	for i := range MaxClients {
		if err := ensure(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := ensure("one more")
	if refusal.CodeOf(err) != tidegate.CodeTooManyRequests || !strings.Contains(err.Error(), "100000") {
		t.Errorf("%v; want 42900 with the limit", err)
	}
	if err := ensure("0"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	r.Terminate("0")
	if err := ensure("one more"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// All that is kept of settings has a limit, which a client comes back from; what
// a client says anew, and what is gone, no longer counts.
func TestSettingsOfAllAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(func(string) {})
		defer r.Close()
		say := func(id string, in *rmqpb.Settings) tidegate.Code {
			t.Helper()
			p, err := ProfileOf(in, "GO")
			if err != nil {
				t.Fatal(err)
			}
			s := NewStream(func(string) bool { return true })
			defer r.Detach(id, s)
			if _, err = r.Attach(id, s, p, in.GetPublishing().GetTopics()); err == nil {
				return tidegate.CodeOK
			}
			if text := err.Error(); !strings.Contains(text, "530 TOO_MANY_REQUESTS") || !strings.Contains(text, "limit") {
				t.Errorf("%s is told %q", id, text)
			}
			return refusal.CodeOf(err)
		}
		one := producer(topicNames(10)...)
		for i, c := range []struct {
			id   string
			in   *rmqpb.Settings
			want tidegate.Code
		}{
			{"a", one, tidegate.CodeOK},
			{"b", one, tidegate.CodeOK},
			{"b", one, tidegate.CodeOK}, // in place of what it said before
			{"c", one, tidegate.CodeTooManyRequests},
			{"a", producer(), tidegate.CodeOK}, // less than before
			{"c", one, tidegate.CodeOK},
			{"d", one, tidegate.CodeTooManyRequests},
			{"b", nil, 0}, // says that it ends
			{"d", one, tidegate.CodeOK},
		} {
			if c.in == nil {
				r.Terminate(c.id)
			} else if got := say(c.id, c.in); got != c.want {
				t.Errorf("%d, %s: %d, want %d", i, c.id, got, c.want)
			}
			if i == 0 {
				r.mu.Lock()
				r.keptMost = 2*r.kept + 100
				r.mu.Unlock()
			}
		}
		r.mu.Lock()
		r.keptMost += publicationSize
		r.mu.Unlock()
		r.Publishes("d", &rmqpb.Resource{Name: "half"})
		r.mu.Lock()
		if n := len(r.publishers["half"]); n != 1 {
			t.Errorf("%d clients publish a topic that one sent half messages to", n)
		}
		r.mu.Unlock()
		time.Sleep(Timeout + sweepInterval)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kept != 0 || len(r.byID) != 0 || len(r.publishers) != 0 {
			t.Errorf("%d bytes of %d clients and %d topics are kept when all are gone", r.kept, len(r.byID), len(r.publishers))
		}
	})
}

// A receive that ended is not remembered.
func TestUnpark(t *testing.T) {
	r := New(func(string) {})
	defer r.Close()
	parked, c, unpark, err := r.Park(t.Context(), "a")
	if err != nil || parked.Err() != nil || len(c.polls) != 1 {
		t.Fatalf("%v, %v, %d polls", err, parked.Err(), len(c.polls))
	}
	unpark()
	if parked.Err() == nil || len(c.polls) != 0 {
		t.Errorf("%v, %d polls are still registered", parked.Err(), len(c.polls))
	}
}
