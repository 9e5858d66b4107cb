package call

import (
	"time"

	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
)

// A ProgressLine is a line on a terminal that counts. It is for one goroutine.
type ProgressLine struct {
	c       *Call
	N       int64 // the counted messages
	started time.Time
	shown   time.Time
}

// NewProgress returns a line that counts from 0.
func NewProgress(c *Call) *ProgressLine { return &ProgressLine{c: c, started: time.Now()} }

// Step counts and shows the count at most five times a second.
func (p *ProgressLine) Step(counts bool) {
	if counts {
		p.N++
	}
	now := time.Now()
	if p.c.Watched && now.Sub(p.shown) >= 200*time.Millisecond {
		p.shown = now
		_ = terminal.Control(p.c.Err, "\r"+output.Textf("%s, %s a second ", output.Number(p.N), output.Number(float64(p.N)/max(now.Sub(p.started).Seconds(), 1e-3))).Grouped()) // a note
	}
}

// End removes the line.
func (p *ProgressLine) End() {
	if !p.shown.IsZero() {
		_ = terminal.Control(p.c.Err, "\r\x1b[K") // a note
	}
}
