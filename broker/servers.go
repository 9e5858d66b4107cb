package broker

import (
	"slices"
	"sync"

	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/serving"
)

// servers are the servers of a broker. The zero value is ready for use.
type servers struct {
	mu  sync.Mutex
	all []serving.Server // guarded by mu: in the order of Attach; replaced by each change
}

// Attach adds a server.
func (b served) Attach(s serving.Server) {
	b.servers.mu.Lock()
	defer b.servers.mu.Unlock()
	b.servers.all = append(slices.Clip(b.servers.all), s)
}

// Detach removes a server. A check or a change that is under way can still call the server, and
// Detach does not wait for it.
func (b served) Detach(s serving.Server) {
	b.servers.mu.Lock()
	defer b.servers.mu.Unlock()
	b.servers.all = slices.DeleteFunc(slices.Clone(b.servers.all), func(t serving.Server) bool { return t == s })
}

func (s *servers) list() []serving.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// check passes a check on to the first server that has a producer for it. It returns false if none
// has.
func (s *servers) check(c pending.Check) bool {
	m := *c.Message
	for _, server := range s.list() {
		own := m // a server may change its message
		c.Message = &own
		if server.CheckTransaction(c) {
			return true
		}
	}
	return false
}

// ConsumerSettingsChanged implements engine.servers.
func (s *servers) ConsumerSettingsChanged(group string) {
	for _, server := range s.list() {
		server.ConsumerSettingsChanged(group)
	}
}
