package client

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A progressLine is a line on a terminal that counts. It is for one goroutine.
type progressLine struct {
	c       *call
	n       int64
	started time.Time
	shown   time.Time
}

func newProgress(c *call) *progressLine { return &progressLine{c: c, started: time.Now()} }

// step counts and shows the count at most five times a second.
func (p *progressLine) step(counts bool) {
	if counts {
		p.n++
	}
	now := time.Now()
	if p.c.Terminal && now.Sub(p.shown) >= 200*time.Millisecond {
		p.shown = now
		fmt.Fprintf(p.c.Err, "\r%s, %s a second ", output.Number(p.n), output.Number(int64(float64(p.n)/max(now.Sub(p.started).Seconds(), 1e-3))))
	}
}

func (p *progressLine) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.c.Err, "\r\x1b[K")
	}
}

// sorted are the entries of a map in the order of its keys.
func sorted[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// A notFoundError is the error of a subject that does not exist.
type notFoundError struct{ text string }

func (e *notFoundError) Error() string { return e.text }

// Is makes the error one of a missing subject, for the exit code.
func (e *notFoundError) Is(target error) bool { return target == tidegate.ErrNotFound }
