package remote

import (
	"testing"

	"github.com/tidegate/tidegate/transport"
)

// A load balancer that leads the requests of one connection to different servers
// gets no batches.
func TestMixedAnnouncementsEndBatches(t *testing.T) {
	c := &Connection{}
	ours := Features{transport.Capabilities{Batch: true, Suspend: true}, true}
	c.announce(ours)
	if !c.batch() || !c.topics() {
		t.Error("announced, and not noted")
	}
	c.announce(Features{})
	c.announce(ours)
	if c.batch() || c.topics() || !c.Features.Load().Suspend {
		t.Errorf("%+v after a response without features", *c.Features.Load())
	}
}

// If gRPC opens two connections at the same time, it may drop the newer one.
func TestConnectionInUse(t *testing.T) {
	l := new(Link)
	first, second := &Connection{number: 1}, &Connection{number: 2}
	l.Saw(first)
	l.Saw(second)
	first.announce(Features{})
	l.Saw(first)
	if l.current.Load() != first {
		t.Error("the connection that responds is not the one in use")
	}
	second.announce(Features{})
	l.Saw(second)
	l.Saw(first) // a late response
	if l.current.Load() != second {
		t.Error("an old connection replaced the one in use")
	}
}
