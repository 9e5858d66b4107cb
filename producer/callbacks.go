package producer

import (
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/list"
)

// callbacks calls the functions given to SendAsync one after the other, in the order of the
// results. A goroutine runs while there are any.
type callbacks struct {
	mu      sync.Mutex
	queue   list.List[*item] // guarded by mu; linked by item.entry.Place, which the ledger no longer uses
	running bool             // guarded by mu
}

func (c *callbacks) add(p *Producer, it *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue.PushBack(&it.entry.Place)
	if !c.running {
		c.running = true
		p.ledger.Running.Go(func() { c.run(p) }) // Close waits for the message, so it cannot wait for Running yet
	}
}

func (c *callbacks) run(p *Producer) {
	for {
		it := c.next()
		if it == nil {
			return
		}
		p.ledger.Calling()
		it.call(p)
		p.ledger.Called(&it.entry)
	}
}

// next takes the next message from the queue. It returns nil if there is none, and then the
// goroutine ends.
func (c *callbacks) next() *item {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.queue.First()
	if c.running = it != nil; c.running {
		it.entry.Place.Leave()
	}
	return it
}

// call calls the function of the message.
func (it *item) call(p *Producer) {
	defer p.recovered("the function given to SendAsync panicked", it.Message.ID)
	if it.err != nil {
		it.done(tidegate.Receipt{}, it.err)
		return
	}
	it.done(it.receipt, nil)
}
