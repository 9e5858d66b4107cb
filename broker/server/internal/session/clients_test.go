package session

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A forgets counts the calls of Forget by ID.
type forgets struct {
	mu        sync.Mutex
	forgotten map[string]int // guarded by mu
}

func (e *forgets) Forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgotten == nil {
		e.forgotten = map[string]int{}
	}
	e.forgotten[id]++
}

// anySender may send to every topic.
type anySender struct{}

func (anySender) MaySend(string) bool { return true }

// The memory of clients is bounded. Idle clients make room for others, those of the key with the
// most of them first. Clients with receives do not.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &forgets{}
		r := New(MaxSettingsBytes, e)
		defer r.Close()
		park := func(id string) (func(bool), error) {
			_, _, unpark, err := r.Park(t.Context(), id, of(strings.Split(id, "/")[0]))
			return unpark, err
		}
		stay := make([]func(bool), 0, MaxClients)
		for i := range MaxClients {
			id := fmt.Sprintf("greedy/%d", i)
			if i%4 == 0 {
				id = fmt.Sprintf("modest/%d", i)
			}
			unpark := assert.Value(park(id))(t)
			if i%8 < 4 {
				unpark(true)
			} else {
				stay = append(stay, unpark)
			}
		}
		assert.NoError(t, assert.Err(park("other/1")), "others are shut out")
		if want := MaxClients - MaxClients/8*3/2 + 1; r.Len() != want {
			t.Errorf("%d clients are left, want %d", r.Len(), want)
		}
		for i := range MaxClients {
			if i%8 == 0 && r.Get(fmt.Sprintf("modest/%d", i)) == nil || i%8 > 4 && r.Get(fmt.Sprintf("greedy/%d", i)) == nil {
				t.Fatalf("client %d was forgotten", i)
			}
		}
		if n := len(e.forgotten); n > 0 {
			t.Errorf("the engine was asked to forget %d clients, which may have deliveries", n)
		}
		for i := r.Len(); i < MaxClients; i++ {
			unpark := assert.Value(park(fmt.Sprintf("more/%d", i)))(t)
			stay = append(stay, unpark)
		}
		_, err := park("one more")
		if refusal.CodeOf(err) != tidegate.CodeTooManyRequests || !strings.Contains(err.Error(), "100000") {
			t.Errorf("within a second: %v; want 42900 with the limit", err)
		}
		for _, unpark := range stay {
			unpark(true)
		}
	})
}

// of returns the origin of a client.
func of(origin string) func() string { return func() string { return origin } }

// All stored settings together have a limit, from which a client recovers: replaced and removed
// settings no longer count.
func TestSettingsOfAllAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(MaxSettingsBytes, &forgets{})
		defer r.Close()
		var leave []func()
		say := func(id string, in *rmqpb.Settings) tidegate.Code {
			t.Helper()
			p, err := ProfileOf(in, "GO", "5.1.4", false)
			assert.Must(t, err)
			s := NewStream(anySender{})
			leave = append(leave, func() { r.Detach(id, s) })
			if _, err = r.Attach(id, of("here"), s, p, in.GetPublishing().GetTopics()); err == nil {
				return protocol.CodeOK
			}
			if text := err.Error(); !strings.Contains(text, "530 TOO_MANY_REQUESTS") || !strings.Contains(text, "limit") {
				t.Errorf("the error of %s is %q", id, text)
			}
			return refusal.CodeOf(err)
		}
		one := producer(topicNames(10)...)
		for i, c := range []struct {
			id   string
			in   *rmqpb.Settings
			want tidegate.Code
		}{
			{"a", one, protocol.CodeOK},
			{"b", one, protocol.CodeOK},
			{"b", one, protocol.CodeOK}, // in place of the earlier settings
			{"c", one, tidegate.CodeTooManyRequests},
			{"a", producer(), protocol.CodeOK}, // less than before
			{"c", one, protocol.CodeOK},
			{"d", one, tidegate.CodeTooManyRequests},
			{"b", nil, 0}, // announces its end
			{"d", one, protocol.CodeOK},
		} {
			if c.in == nil {
				r.Terminate(c.id)
			} else if got := say(c.id, c.in); got != c.want {
				t.Errorf("%d, %s: %d, want %d", i, c.id, got, c.want)
			}
			if i == 0 {
				r.mu.Lock()
				r.settingsLimit = 2 * (2*r.settingsBytes + 100) // one origin gets half
				r.mu.Unlock()
			}
		}
		r.mu.Lock()
		r.settingsLimit += 2 * publicationSize
		r.mu.Unlock()
		r.Publishes("d", &rmqpb.Resource{Name: "half"})
		r.mu.Lock()
		assert.Equal(t, "clients publish a topic that one sent half messages to", len(r.publishers["half"]), 1)
		r.mu.Unlock()
		for _, f := range leave {
			f()
		}
		time.Sleep(Timeout + expiryInterval)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.settingsBytes != 0 || len(r.originBytes) != 0 || len(r.byID) != 0 || len(r.publishers) != 0 {
			t.Errorf("%d bytes of %d clients and %d topics are kept when all are gone", r.settingsBytes, len(r.byID), len(r.publishers))
		}
	})
}

// Settings that the clients of one origin leave behind do not lock out other origins: an origin can
// use half of the limit, and its disconnected clients are removed for new ones.
func TestOneOriginShutsOutNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4 << 20
		r := New(limit, &forgets{})
		defer r.Close()
		large := assert.Value(ProfileOf(producer(topicNames(500)...), "GO", "5.1.4", false))(t)
		small := assert.Value(ProfileOf(producer("orders"), "GO", "5.1.4", false))(t)
		attach := func(id, origin string, p *Profile) (leave func(), err error) {
			s := NewStream(anySender{})
			_, err = r.Attach(id, of(origin), s, p, nil)
			return func() { r.Detach(id, s) }, err
		}
		// used compares the count with the stored settings.
		used := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			sum := 0
			for _, c := range r.byID {
				if c.profile.Load() != nil {
					sum += len(c.profile.Load().settings)
				}
			}
			assert.Equal(t, "bytes are stored and counted", sum, r.settingsBytes)
			return sum
		}
		// Clients that leave: each second some of the oldest make room for others of the origin.
		refused := 0
		for i := range 5000 {
			leave, err := attach(fmt.Sprintf("leaves/%d", i), "greedy", large)
			if err != nil {
				refused++
			} else {
				leave()
			}
			if used() > limit/2 {
				t.Fatalf("after %d clients, one origin uses %d bytes of %d", i, used(), limit)
			}
			if i%500 == 0 {
				time.Sleep(time.Second)
				leave, err := attach(fmt.Sprintf("other/%d", i), "other", small)
				assert.Must(t, err, "after %d clients, others are shut out", i)
				leave()
			}
		}
		assert.That(t, refused != 0 && refused != 5000, "%d of 5000 were refused", refused)
		// Clients that stay, of three greedy origins.
		for i := range 3000 {
			_, err := attach(fmt.Sprintf("stays/%d", i), fmt.Sprint("greedy-", i%3), large)
			assert.MustThat(t, err == nil || refusal.CodeOf(err) == tidegate.CodeTooManyRequests, "%v", err)
		}
		for i := range 100 {
			if _, err := attach(fmt.Sprintf("last/%d", i), "last", small); err != nil {
				t.Fatalf("beside three greedy origins, client %d: %v", i, err)
			}
		}
		assert.That(t, len(r.byID) <= 1200, "%d clients are remembered, with those that were refused", len(r.byID))
	})
}
