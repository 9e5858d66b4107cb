package state

import (
	"bytes"
	"context"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/terminal"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

// live redraws the screen at each interval and after each key, until q, Ctrl-C or the end of ctx.
func (k *topCommand) live(ctx context.Context, f view.TopFrame) error {
	restore, err := terminal.Raw(k.In)
	if err != nil {
		return err
	}
	defer restore()
	k.Screen = true
	if err := terminal.Control(k.Out, terminal.Enter); err != nil {
		return err
	}
	defer func() { _ = terminal.Control(k.Out, terminal.Leave) }() // the error before it is returned
	keys := terminal.Keys(ctx, k.In)
	s := view.TopScreen{Server: k.client.Endpoint(), Frame: f}
	all := f.Rows
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		s.View = k.TopView
		if rows, err := k.Rows(all); err == nil { // else the pattern is not finished
			s.Frame.Rows = rows
		}
		s.Width, s.Height = terminal.Size(k.Out)
		if err := k.draw(&s); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if s.Paused {
				continue
			}
			s.Failed = k.sampled(ctx, &s, &all)
		case key, ok := <-keys:
			if !ok {
				return nil // no more keys: the terminal is gone
			}
			topics := k.Topics
			if k.pressed(key, &s) {
				return nil
			}
			if topics != k.Topics {
				s.Failed = k.sampled(ctx, &s, &all)
			}
		}
	}
}

// sampled takes the next sample. After an error the screen keeps the last one.
func (k *topCommand) sampled(ctx context.Context, s *view.TopScreen, all *[]view.TopRow) error {
	f, err := k.look(ctx)
	if err == nil {
		s.Frame, *all = f, f.Rows
	}
	return err
}

// pressed carries out a key. It reports whether top ends.
func (k *topCommand) pressed(key byte, s *view.TopScreen) (quit bool) {
	const ctrlC, escape, backspace, del = 3, 27, 8, 127
	if s.Typing {
		switch {
		case key == '\r' || key == '\n' || key == escape:
			s.Typing = false
		case key == ctrlC:
			return true
		case key == backspace || key == del:
			k.Match = k.Match[:max(0, len(k.Match)-1)]
		case key >= ' ' && key < del:
			k.Match += string(rune(key))
		}
		return false
	}
	switch key {
	case 'q', ctrlC:
		return true
	case 's':
		k.NextOrder()
	case 'r':
		k.Reverse = !k.Reverse
	case 'g':
		k.Topics = !k.Topics
	case 'f':
		s.Typing, k.Match = true, ""
	case 'p':
		s.Paused = !s.Paused
	}
	return false
}

// draw writes the screen over the one before.
func (k *topCommand) draw(s *view.TopScreen) error {
	var b bytes.Buffer
	if err := s.Write(&b, k.ListOptions()); err != nil {
		return err
	}
	return terminal.Draw(k.Out, b.String())
}
