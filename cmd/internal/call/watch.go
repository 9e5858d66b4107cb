package call

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
)

// WatchFlag adds --watch. Zero means that the command prints its result once.
func WatchFlag(f *pflag.FlagSet, every *time.Duration) {
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
		return command.Usagef(c.Command, "--watch is %v; the shortest interval is 100ms", every)
	}
	if c.JSON() {
		c.Format.Format = output.JSONL
	}
	screen := c.Terminal && !c.JSON() && c.Format.Format != output.Name
	if screen {
		c.Screen = true
		if err := terminal.Control(c.Out, terminal.Enter); err != nil {
			return err
		}
		defer func() { _ = terminal.Control(c.Out, terminal.Leave) }() // the error before it is returned
	}
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
		if err != nil && (first || command.ExitCode(err) != command.ExitNoAnswer) {
			return err
		}
		if err != nil {
			c.Note("%s: %v", c.Command.Root().Name(), err)
		}
		if Sleep(ctx, every) != nil {
			return nil
		}
	}
}

// redraw draws the output of show over the previous screen.
func (c *Call) redraw(ctx context.Context, show func(context.Context) error) error {
	var b bytes.Buffer
	app := c.App
	drawn := *app
	drawn.Out, drawn.Err = &b, &b
	c.App = &drawn
	err := show(ctx)
	c.App = app
	if err != nil {
		return err
	}
	return terminal.Draw(c.Out, b.String())
}

// Sleep waits for d or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
