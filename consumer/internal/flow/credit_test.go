package flow

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// The consumer's defaults.
const (
	maxBuffered = 1024
	maxBytes    = 64 << 20
)

// handling returns credits whose handlers take d.
func handling(d time.Duration, concurrency int) Credits {
	c := New(concurrency, maxBuffered, maxBytes)
	c.handling, c.peak = d, 1<<10
	return c
}

func TestBufferFollowsTheHandlersSpeed(t *testing.T) {
	for _, tt := range []struct {
		handling    time.Duration
		concurrency int
		want        int
	}{
		{time.Minute, 20, 0}, // no message is kept from other consumers
		{time.Second, 20, 4},
		{10 * time.Millisecond, 20, 400},
		{0, 20, maxBuffered},
		{0, 1, maxBuffered},
		{200 * time.Millisecond, 1, 1},
	} {
		c := handling(tt.handling, tt.concurrency)
		if got := c.buffer(); got != tt.want {
			t.Errorf("handlers of %v, concurrency %d: %d messages wait, want %d", tt.handling, tt.concurrency, got, tt.want)
		}
	}
	c := New(20, maxBuffered, maxBytes)
	for range 200 {
		c.Handled(time.Microsecond)
	}
	assert.Equal(t, "after 200 quick messages may wait", c.buffer(), maxBuffered)
}

// For messages of any size, a server that keeps to the requests exceeds the byte bound by at most
// one body for each receive. Reservations end with their receives, and a receive is always
// possible.
func TestCreditsProperty(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + rnd.IntN(64<<20)
		c := New(1+rnd.IntN(64), rnd.IntN(2000), limit)
		c.sources = 1 + rnd.IntN(4)
		var inHand []int
		var underWay []Grant
		largest := 0
		for range 2000 {
			switch rnd.IntN(3) {
			case 0:
				if g := c.Grant(Ask{Batch: 32, UnderWay: min(len(underWay), 1)}); g.Messages > 0 {
					underWay = append(underWay, g)
				}
			case 1:
				if len(underWay) == 0 {
					continue
				}
				g := underWay[0]
				underWay = underWay[1:]
				c.Refund(g)
				for n, bytes := 0, 0; n < g.Messages; n++ {
					size := rnd.IntN(1 << rnd.IntN(23))
					if n > 0 && bytes+size > g.Bytes {
						break
					}
					bytes += size
					largest = max(largest, size)
					c.Take(size)
					inHand = append(inHand, size)
				}
			case 2:
				c.Handled(time.Duration(rnd.Int64N(int64(time.Second))))
				if len(inHand) > 0 {
					c.Free(inHand[0])
					inHand = inHand[1:]
				}
			}
			over := c.bytes - limit
			assert.MustThat(t, over <= largest*(1+c.sources+8), "seed %d: %d bytes in hand, the limit is %d", seed, c.bytes, limit)
		}
		for _, g := range underWay {
			c.Refund(g)
		}
		for _, size := range inHand {
			c.Free(size)
		}
		assert.MustThat(t, c.reservedMessages == 0 && c.reservedBytes == 0 && c.messages == 0 && c.bytes == 0 && c.Grant(Ask{Batch: 32}).Messages != 0, "seed %d: %+v at rest", seed, c)
	}
}
