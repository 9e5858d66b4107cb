package broker_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker"
)

// A powerCut is a power failure at a random operation of the file system, once the broker has
// given a number of responses: a failure with nothing to lose would show nothing.
type powerCut struct {
	fs     *crashFS
	rnd    *rand.Rand
	failed chan struct{} // closed when the power fails

	mu         sync.Mutex
	responses  int        // guarded by mu: how many come before the failure
	operations int        // guarded by mu: how many follow the last of them
	left       *vfs.MemFS // guarded by mu: the content after the failure; nil before it
}

// newPowerCut returns a powerCut of a file system that comes after 1 to responses responses.
func newPowerCut(fs *vfs.MemFS, rnd *rand.Rand, responses int) *powerCut {
	p := &powerCut{rnd: rnd, failed: make(chan struct{}), responses: 1 + rnd.IntN(responses), operations: rnd.IntN(12)}
	p.fs = &crashFS{MemFS: fs, before: p.before}
	return p
}

func (p *powerCut) before(int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left != nil || p.responses > 0 {
		return
	}
	if p.operations--; p.operations < 0 {
		p.cut()
	}
}

// cut lets the power fail. The caller holds p.mu, and nothing is written meanwhile.
func (p *powerCut) cut() {
	p.left = p.fs.clone(p.rnd.IntN(101), p.rnd.Uint64())
	close(p.failed)
}

// responded calls record for a response that came before the power failure, and not for a later
// one.
func (p *powerCut) responded(record func()) {
	p.unlessFailed(func() {
		record()
		p.responses--
	})
}

// unlessFailed calls record while the power has not failed, as before a request.
func (p *powerCut) unlessFailed(record func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == nil {
		record()
	}
}

// over returns the content after the power failure. The power fails now if it has not failed
// before.
func (p *powerCut) over(t *testing.T) *vfs.MemFS {
	t.Helper()
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.responses > 0 {
		t.Fatalf("the load ended, and %d responses were to come before the power failure", p.responses)
	}
	if p.left == nil {
		p.cut()
	}
	return p.left
}

// losePower runs a load on a broker whose power fails after 1 to responses responses, and returns a
// broker on the content that is left. The load ends after its last operation, or when p.failed is
// closed.
func losePower(t *testing.T, rnd *rand.Rand, responses int, load func(b *broker.Broker, p *powerCut)) *broker.Broker {
	t.Helper()
	p := newPowerCut(vfs.NewCrashableMem(), rnd, responses)
	b := open(t, broker.Options{Dir: "data"}.On(p.fs))
	load(b, p)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, broker.Options{Dir: "data"}.On(p.over(t)))
}
