package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// watchFlag adds --watch. Zero means that the command prints its result once.
func watchFlag(f *pflag.FlagSet, every *time.Duration) {
	f.DurationVar(every, "watch", 0, "print the result again at each `interval`, until Ctrl-C")
	f.Lookup("watch").NoOptDefVal = "2s"
}

// Watch calls show once, or at each interval until ctx ends. On a terminal each result takes the
// place of the one before; JSON is one object a line. A watch outlives a server that is away,
// except at first.
func (c *Call) Watch(ctx context.Context, every time.Duration, show func(context.Context) error) error {
	if every == 0 {
		return show(ctx)
	}
	if every < 100*time.Millisecond {
		return usagef(c.Command, "--watch is %v; the shortest interval is 100ms", every)
	}
	if c.JSON() {
		c.Format.Chosen = output.JSONL
	}
	screen := c.Shown() && !c.JSON() && c.Format.Chosen != output.Name
	if screen {
		c.Screen = true
		if err := control(c.Out, enter); err != nil {
			return err
		}
		defer func() { _ = control(c.Out, leave) }() // the error before it is returned
	}
	var outage outage
	for first := true; ; first = false {
		var err error
		if screen {
			err = c.redraw(ctx, show)
		} else {
			err = show(ctx)
		}
		if ctx.Err() != nil {
			return nil // Ctrl-C: the ordered end
		}
		if first && err != nil || !outage.Outlived(c, err) {
			return err
		}
		if backoff.Sleep(ctx, every) != nil {
			return nil
		}
	}
}

// An outage is what a command with --follow knows about its server. The zero value has begun.
type outage struct{ away bool }

// Outlived reports whether the command goes on after a request, because it succeeded or no server
// has responded. It notes the begin of each outage.
func (o *outage) Outlived(c *Call, err error) bool {
	if err != nil && exitCode(err) != exitNoAnswer {
		return false
	}
	if err != nil && !o.away {
		c.Note("%s: %v; it goes on when a server responds", c.Command.Root().Name(), err)
	}
	o.away = err != nil
	return true
}

// overlap is the time before the last known item from which a command queries again: a server whose
// clock was set back stores an item with an earlier time than a known one.
const overlap = 5 * time.Second

// A recent selects the new items of repeated queries. K identifies an item. Each query is for the
// items from Since on.
type recent[K comparable] struct {
	Since time.Time

	known, latest time.Time // of the items: before the last whole query, and now
	seen          map[K]time.Time
}

// New reports whether an item was not in a query before.
func (r *recent[K]) New(k K, at time.Time) bool {
	if _, again := r.seen[k]; again {
		return false
	}
	if r.seen == nil {
		r.seen = map[K]time.Time{}
	}
	r.seen[k] = at
	if at.After(r.latest) {
		r.latest = at
	}
	return true
}

// Whole ends a query that has read all items. An item that was stored during the query can be in a
// part that the query had passed. Therefore the next one begins before the items that were known
// when this one began.
func (r *recent[K]) Whole() {
	if next := r.known.Add(-overlap); next.After(r.Since) {
		r.Since = next
		maps.DeleteFunc(r.seen, func(_ K, at time.Time) bool { return at.Before(next) })
	}
	r.known = r.latest
}

// A follower prints the new items of repeated queries, until Ctrl-C or a number of items. K
// identifies an item.
type follower[K comparable, T any] struct {
	*Call
	recent[K]
	every   time.Duration
	most    int // items; 0 means no end
	columns []output.Column[T]
	name    func(T) string
	key     func(T) (K, time.Time)
	print   func(T) error // nil: a line in the format of the flags

	n     int
	lines *output.Stream[T]
}

// errEnough ends a follow after the last item.
var errEnough = errors.New("enough items")

// run makes a query at each interval, which calls item for each of its items. It outlives a server
// that is away, except at first.
func (f *follower[K, T]) run(ctx context.Context, query func(context.Context) error) error {
	var outage outage
	for first := true; ; first = false {
		err := query(ctx)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil && (first || ctx.Err() != nil), !outage.Outlived(f.Call, err):
			return err
		case err == nil:
			f.Whole()
		}
		if err := backoff.Sleep(ctx, f.every); err != nil {
			return err
		}
	}
}

// item prints an item, unless it was in a query before.
func (f *follower[K, T]) item(v T) error {
	if !f.New(f.key(v)) {
		return nil
	}
	show := f.print
	if show == nil {
		show = f.line
	}
	if err := show(v); err != nil {
		return err
	}
	if f.n++; f.most > 0 && f.n >= f.most {
		return errEnough
	}
	return nil
}

func (f *follower[K, T]) line(v T) (err error) {
	switch {
	case f.JSON():
		return output.Line(f.Out, v)
	case f.Format.Chosen == output.Name:
		_, err := fmt.Fprintln(f.Out, output.Word(f.name(v)))
		return err
	case f.lines == nil:
		if f.lines, err = output.NewStream(output.List[T]{Columns: f.columns}, f.ListOptions()); err != nil {
			return f.Usage(err)
		}
	}
	return f.lines.Print(f.Out, v, time.Now())
}

// redraw draws the output of show over the previous screen.
func (c *Call) redraw(ctx context.Context, show func(context.Context) error) error {
	var b bytes.Buffer
	app := c.App
	drawn := *app
	drawn.Out, drawn.Err, drawn.Watched = &b, &b, true
	if columns := columns(app.Out); columns > 0 {
		drawn.Columns = columns // it can have changed
	}
	c.App = &drawn
	err := show(ctx)
	c.App = app
	if err != nil {
		return err
	}
	return draw(c.Out, b.String())
}
