package conn

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A load balancer that leads the requests of one connection to different servers
// gets no batches.
func TestMixedAnnouncementsEndBatches(t *testing.T) {
	c := &Connection{}
	ours := parseFeatures([]string{"batch, suspend, topics, heartbeats, queues"})
	c.announce(ours)
	f := *c.Features.Load()
	assert.That(t, f == ours && f.Batch && f.Topics && f.Heartbeats && f.Queues, "%+v of %+v", f, ours)
	c.announce(Features{})
	c.announce(ours)
	want := Features{Capabilities: transport.Capabilities{Suspend: true}}
	assert.Equal(t, "after a response without features", *c.Features.Load(), want)
}

// If gRPC opens two connections at the same time, it may drop the newer one.
func TestConnectionInUse(t *testing.T) {
	l := new(Link)
	first, second := &Connection{number: 1}, &Connection{number: 2}
	l.Saw(first)
	l.Saw(second)
	first.announce(Features{})
	l.Saw(first)
	assert.Equal(t, "the connection that responds is not the one in use", l.current.Load(), first)
	second.announce(Features{})
	l.Saw(second)
	l.Saw(first) // a late response
	assert.Equal(t, "an old connection replaced the one in use", l.current.Load(), second)
}
