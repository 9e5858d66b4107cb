package flow

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// A prompt receive takes a full batch or waits, beside quick handlers. While other topics are slow,
// a topic without a message in hand gets one.
func TestPromptGrant(t *testing.T) {
	const concurrency, batch = 20, 32
	quick, slow := 10*time.Millisecond, time.Minute // a buffer of 400 messages, and none
	for name, tt := range map[string]struct {
		handling time.Duration
		inHand   int
		ask      Ask
		want     int
	}{
		"quick, nothing in hand":               {quick, 0, Ask{}, batch},
		"quick, half of the buffer is free":    {quick, 220, Ask{}, batch},
		"quick, less than half is free":        {quick, 389, Ask{}, 0},
		"quick, the same for a spare topic":    {quick, 389, Ask{Spare: true}, 0},
		"quick, full":                          {quick, 420, Ask{Spare: true}, 0},
		"slow, nothing in hand":                {slow, 0, Ask{}, concurrency},
		"slow, one handler is free":            {slow, 19, Ask{}, 1},
		"slow, full":                           {slow, 20, Ask{}, 0},
		"slow, full, a spare topic":            {slow, 20, Ask{Spare: true}, 1},
		"slow, far beyond, a spare topic":      {slow, 500, Ask{Spare: true}, 1},
		"slow, full, a spare topic's second":   {slow, 20, Ask{Spare: true, UnderWay: 1}, 0},
		"just slow, full, a spare topic":       {201 * time.Millisecond, 39, Ask{Spare: true}, 1},
		"not quite slow, full, a spare topic":  {200 * time.Millisecond, 40, Ask{Spare: true}, 0},
		"not quite slow, full, no spare topic": {200 * time.Millisecond, 40, Ask{}, 0},
	} {
		c := handling(tt.handling, concurrency)
		c.SetSources(1000)
		for range tt.inHand {
			c.Take(1 << 10)
		}
		tt.ask.Batch, tt.ask.Prompt = batch, true
		if may, g := c.May(tt.ask), c.Grant(tt.ask); g.Messages != tt.want || may != (tt.want > 0) {
			t.Errorf("%s: granted %d messages, May %v; want %d", name, g.Messages, may, tt.want)
		}
	}
}

// A prompt receive does not wait for the reservations of parked receives. They may stay for long.
func TestPromptBesideParked(t *testing.T) {
	c := handling(time.Millisecond, 4)
	c.SetSources(20)
	var parked []Grant
	for {
		g := c.Grant(Ask{Batch: 32})
		assert.MustThat(t, g.Messages != 0, "a parked receive gets nothing")
		parked = append(parked, g)
		if len(parked) == 19 {
			break
		}
	}
	for c.reservedMessages < c.concurrency+c.buffer() { // all of the window
		parked = append(parked, c.Grant(Ask{Batch: 32}))
	}
	prompt := Ask{Batch: 32, Prompt: true}
	if g := c.Grant(prompt); g.Messages == 0 {
		t.Error("beside parked receives, a prompt one gets nothing")
	} else {
		c.Refund(g)
	}
	for _, g := range parked {
		c.Refund(g)
	}
	if g := c.Grant(prompt); g.Messages != 32 || c.parked != 0 {
		t.Errorf("after the parked receives, a prompt one gets %d messages, and %d count as parked", g.Messages, c.parked)
	}
}

// With any number of queues and any sizes, prompt receives of quick handlers never ask for less
// than a batch or the free messages of the window, and the reservations keep to the bytes. When
// all have ended, a prompt receive may begin.
func TestPromptProperty(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := handling(time.Duration(1+rnd.IntN(100))*time.Millisecond, 1+rnd.IntN(64))
		c.maxBytes = 1<<20 + rnd.IntN(64<<20)
		c.SetSources(1000)
		var underWay []Grant
		var inHand []int
		for range 3000 {
			switch rnd.IntN(4) {
			case 0, 1:
				ask := Ask{Batch: 32, Spare: rnd.IntN(2) == 0, Prompt: true}
				free := c.concurrency + c.buffer() - c.messages - c.reservedMessages
				peak := c.peak
				left := c.maxBytes - c.bytes - c.reservedBytes
				g := c.Grant(ask)
				if g.Messages == 0 {
					continue
				}
				if bytes := min(left, c.maxBytes/2/(1+(c.concurrency+c.buffer())/32)); g.Messages < min(32, free, bytes/peak) {
					t.Fatalf("seed %d: granted %d messages, %d are free in the window, and bytes for %d", seed, g.Messages, free, bytes/peak)
				}
				assert.MustThat(t, c.messages+c.reservedMessages <= c.concurrency+c.buffer(),
					"seed %d: %d messages beyond the window", seed, c.messages+c.reservedMessages-c.concurrency-c.buffer())
				assert.MustThat(t, c.bytes+c.reservedBytes <= c.maxBytes, "seed %d: %d of %d bytes are in hand or reserved", seed, c.bytes+c.reservedBytes, c.maxBytes)
				underWay = append(underWay, g)
			case 2:
				if len(underWay) == 0 {
					continue
				}
				g := underWay[0]
				underWay = underWay[1:]
				c.Refund(g)
				for range rnd.IntN(g.Messages + 1) {
					size := rnd.IntN(1 + g.Bytes/g.Messages)
					c.Take(size)
					inHand = append(inHand, size)
				}
			case 3:
				for range min(len(inHand), rnd.IntN(64)) {
					c.Free(inHand[0])
					inHand = inHand[1:]
				}
			}
		}
		for _, g := range underWay {
			c.Refund(g)
		}
		for _, size := range inHand {
			c.Free(size)
		}
		assert.MustThat(t, c.reservedMessages == 0 && c.reservedBytes == 0 && c.May(Ask{Batch: 32, Prompt: true}), "seed %d: %+v at rest", seed, c)
	}
}
