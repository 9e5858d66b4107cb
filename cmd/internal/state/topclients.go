package state

import (
	"bytes"
	"context"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

// runClients is top --clients.
func (k *topCommand) runClients(ctx context.Context) (err error) {
	if k.Topics {
		return command.Usagef(k.Command, "--topics and --clients are two lists; give one of them")
	}
	if !k.Command.Flags().Changed("by") {
		k.By = "inflight"
	}
	if err := view.SortClients(nil, k.By, false); err != nil {
		return k.Usage(err)
	}
	if k.client, err = k.Admin(ctx); err != nil {
		return err
	}
	f, err := k.clientFrame(ctx)
	switch {
	case err != nil:
		return err
	case k.Format.Format == output.JSONL:
		for outage := (call.Outage{}); ; {
			if err == nil {
				if err := output.Line(k.Out, f); err != nil || k.once {
					return err
				}
			}
			if err := backoff.Sleep(ctx, k.every); err != nil {
				return err
			}
			if f, err = k.clientFrame(ctx); !outage.Outlived(k.Call, err) {
				return err
			}
		}
	case k.Terminal && !k.once && k.Format.Format == output.Table:
		return k.liveClients(ctx, f)
	}
	return call.PrintList(k.Call, output.List[status.Client]{
		Rows: f.Clients, Columns: view.ClientColumns(f.At),
		Name: func(r status.Client) string { return r.ID },
		Document: func(shown []status.Client) any {
			f.Clients = call.NotNil(shown)
			return f
		},
		Empty: "no client is connected" + call.MatchNote(k.Match),
	})
}

// clientFrame reads the clients, in the order of the flags.
func (k *topCommand) clientFrame(ctx context.Context) (view.ClientFrame, error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	all, err := allClients(ctx, k.client, status.ClientQuery{Match: k.Match}, 0)
	if err != nil {
		return view.ClientFrame{}, err
	}
	if err := view.SortClients(all.Clients, k.By, k.Reverse); err != nil {
		return view.ClientFrame{}, err
	}
	f := view.ClientFrame{At: all.AsOf, Interval: k.every.String(), Total: int(all.Total), Versions: call.NotNil(all.Versions), Clients: call.NotNil(all.Clients)}
	if k.Limit > 0 {
		f.Clients = f.Clients[:min(len(f.Clients), k.Limit)]
	}
	return f, nil
}

// liveClients redraws the screen at each interval, until q, Ctrl-C or the end of ctx.
func (k *topCommand) liveClients(ctx context.Context, f view.ClientFrame) error {
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
	s := view.ClientScreen{Server: k.client.Endpoint(), Frame: f, By: k.By}
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		s.Width, s.Height = terminal.Size(k.Out)
		var b bytes.Buffer
		if err := s.Write(&b, k.ListOptions()); err != nil {
			return err
		}
		if err := terminal.Draw(k.Out, b.String()); err != nil {
			return err
		}
		const ctrlC = 3
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if s.Paused {
				continue
			}
			if f, s.Failed = k.clientFrame(ctx); s.Failed == nil {
				s.Frame = f
			}
		case key, ok := <-keys:
			switch {
			case !ok, key == 'q', key == ctrlC:
				return nil
			case key == 'p':
				s.Paused = !s.Paused
			}
		}
	}
}
