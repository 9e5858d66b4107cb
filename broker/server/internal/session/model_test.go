package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/internal/model"
)

// Random streams, waiting receives, heartbeats and ends of a few clients. A receive ends when its
// client terminates or all receives are ended, and not before. A client without stream, receive and
// heartbeat is removed within Timeout and expiryInterval, and others are not. The engine hears of
// each removed client that is not merely dropped. Receives of a client of a refused type fail,
// until it sends other settings, terminates or is removed. With the last client the timer ends, and
// every byte of settings is returned.
func TestModel(t *testing.T) {
	t.Parallel()
	model.Run(t, 1000, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) { runModel(t, r) })
	})
}

// A modelClient is the expected state of a client.
type modelClient struct {
	seen    time.Time
	streams []*Stream
	waits   []*modelWait
	served  bool
	refused error // of an unserved type

	rejected bool // its settings were, since it last sent others
}

// A modelWait is a waiting receive.
type modelWait struct {
	parked context.Context // that Park returned
	unpark func(served bool)
	of     *modelClient
	ended  error // with which it must have ended; nil: it waits
}

// A modelRun has the clients beside their model.
type modelRun struct {
	t       *testing.T
	rnd     *rand.Rand
	real    *Clients
	clients map[string]*modelClient

	engine forgets
	ended  map[string]int // ends by Terminate
}

func runModel(t *testing.T, rnd *rand.Rand) {
	m := &modelRun{t: t, rnd: rnd, clients: map[string]*modelClient{}, engine: forgets{forgotten: map[string]int{}}, ended: map[string]int{}}
	m.real = New(1<<20, &m.engine)
	defer m.real.Close()
	for range 60 {
		m.act()
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(rnd.Int64N(int64(Timeout))))
			synctest.Wait()
		}
		m.check()
	}
	// Every event ends: then nothing is left, and nothing runs.
	for _, id := range slices.Sorted(maps.Keys(m.clients)) {
		c := m.clients[id]
		for _, s := range c.streams {
			m.real.Detach(id, s)
		}
		for _, w := range c.waits {
			w.unpark(true)
			c.served = c.served || !errors.Is(w.ended, ErrTerminated)
		}
		c.streams, c.waits, c.seen = nil, nil, time.Now()
		m.drop(id, c)
	}
	time.Sleep(Timeout + 2*expiryInterval)
	synctest.Wait()
	m.check()
	m.real.mu.Lock()
	defer m.real.mu.Unlock()
	if n := len(m.real.byID); n != 0 || m.real.timer != nil {
		t.Errorf("%d clients are left; a timer runs: %v", n, m.real.timer != nil)
	}
	if m.real.settingsBytes != 0 || len(m.real.originBytes) != 0 {
		t.Errorf("%d bytes of settings are left, by origin %v", m.real.settingsBytes, m.real.originBytes)
	}
}

// act makes one random event.
func (m *modelRun) act() {
	id := fmt.Sprint("c", m.rnd.IntN(4))
	origin := func() string { return "o" + id[:1] }
	now, c := time.Now(), m.clients[id]
	switch m.rnd.IntN(9) {
	case 0:
		if (m.real.Get(id) != nil) && c != nil {
			c.seen = now
		}
	case 1:
		s, again := NewStream(anySender{}), c != nil && len(c.streams) > 0 && m.rnd.IntN(2) == 0
		if again { // more settings in a stream, which after a termination do not count
			s = c.streams[0]
		}
		p := &Profile{Group: "g", settings: make([]byte, m.rnd.IntN(1000))}
		assert.NoError(m.t, assert.Err(m.real.Attach(id, origin, s, p, nil)))
		c = m.ensure(id)
		if c.refused, c.rejected = nil, false; !again {
			c.streams, c.served = append(c.streams, s), true
		}
	case 2, 3:
		parked, _, unpark, err := m.real.Park(m.t.Context(), id, origin)
		c = m.ensure(id)
		if !errors.Is(err, c.refused) || c.refused == nil && err != nil {
			m.t.Errorf("a receive of %s fails with %v, want %v", id, err, c.refused)
		}
		if err != nil {
			return
		}
		c.waits = append(c.waits, &modelWait{parked: parked, unpark: unpark, of: c})
	case 4:
		if c != nil && len(c.streams) > 0 {
			m.real.Detach(id, c.streams[0])
			c.streams, c.seen = c.streams[1:], now
			m.drop(id, c)
		}
	case 5:
		if c != nil && len(c.waits) > 0 {
			w, served := c.waits[0], m.rnd.IntN(2) == 0
			w.unpark(served)
			assert.That(m.t, w.parked.Err() != nil, "a receive of %s that ended waits on", id)
			c.waits, c.seen, c.served = c.waits[1:], now, c.served || served && !errors.Is(w.ended, ErrTerminated)
			m.drop(id, c)
		}
	case 6:
		m.real.Terminate(id)
		m.ended[id]++
		if c != nil {
			m.end(c, ErrTerminated)
			c.served, c.refused, c.rejected = false, nil, false
			if len(c.streams) == 0 {
				m.leave(c)
				delete(m.clients, id)
			}
		}
	case 8:
		why := fmt.Errorf("refusal %d", m.rnd.Int())
		unserved := m.rnd.IntN(2) == 0
		m.real.Refuse(id, origin, why, unserved)
		c = m.ensure(id)
		c.rejected = c.rejected || !unserved
		if unserved {
			m.end(c, ErrTerminated)
			c.served, c.refused = false, why
		}
	case 7:
		if m.rnd.IntN(4) == 0 {
			m.real.EndPolls(ErrNewRules)
			for _, c := range m.clients {
				m.end(c, ErrNewRules)
			}
		}
	}
}

// drop removes a client without stream and receive that terminated, or did nothing but fail.
func (m *modelRun) drop(id string, c *modelClient) {
	if !c.served && c.refused == nil && !c.rejected && len(c.waits) == 0 && len(c.streams) == 0 {
		delete(m.clients, id)
	}
}

// ensure returns a client, which sends a request now.
func (m *modelRun) ensure(id string) *modelClient {
	m.expire()
	c := m.clients[id]
	if c == nil {
		c = &modelClient{}
		m.clients[id] = c
	}
	c.seen = time.Now()
	return c
}

// end ends the waiting receives of a client.
func (m *modelRun) end(c *modelClient, why error) {
	for _, w := range c.waits {
		if w.ended == nil {
			w.ended = why
		}
	}
}

// leave has the receives of a client end that is removed.
func (m *modelRun) leave(c *modelClient) {
	for _, w := range c.waits {
		w.unpark(true)
	}
	c.waits = nil
}

// expire removes the clients from the model that were silent for so long that the timer has removed
// them. Between Timeout and that time both are right.
func (m *modelRun) expire() {
	for id, c := range m.clients {
		silent := time.Since(c.seen)
		if len(c.streams) > 0 || len(c.waits) > 0 || silent < Timeout {
			continue
		}
		m.real.mu.Lock()
		there := m.real.byID[id] != nil
		m.real.mu.Unlock()
		if there && silent < Timeout+expiryInterval {
			continue
		}
		assert.That(m.t, !there, "%s is known %v after its last request", id, silent)
		m.engine.mu.Lock()
		if m.engine.forgotten[id]--; m.engine.forgotten[id] < 0 {
			m.t.Errorf("the engine did not hear of the end of %s", id)
		}
		m.engine.mu.Unlock()
		delete(m.clients, id)
	}
}

// check compares the clients with the model.
func (m *modelRun) check() {
	m.t.Helper()
	m.expire()
	m.real.mu.Lock()
	defer m.real.mu.Unlock()
	bytes := 0
	for id, c := range m.real.byID {
		bytes += c.settingsBytes
		assert.That(m.t, m.clients[id] != nil, "%s is known, although it has ended", id)
	}
	assert.Equal(m.t, "the settings of all have bytes", bytes, m.real.settingsBytes)
	for id, c := range m.clients {
		have := m.real.byID[id]
		if have == nil {
			m.t.Errorf("%s is not known any more, %v after its last request", id, time.Since(c.seen))
			continue
		}
		if len(have.streams) != len(c.streams) || len(have.polls) != len(c.waits) {
			m.t.Errorf("%s has %d streams and %d receives, want %d and %d", id, len(have.streams), len(have.polls), len(c.streams), len(c.waits))
		}
		for _, w := range c.waits {
			if why := context.Cause(w.parked); !errors.Is(why, w.ended) || w.ended == nil && why != nil {
				m.t.Errorf("a receive of %s ended with %v, want %v", id, why, w.ended)
			}
		}
	}
	m.engine.mu.Lock()
	defer m.engine.mu.Unlock()
	for id, n := range m.ended {
		assert.That(m.t, m.engine.forgotten[id] >= n, "the engine got %d ends of %s, want %d", m.engine.forgotten[id], id, n)
	}
}
