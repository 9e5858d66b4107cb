package messages

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/transport"
)

func newRecall(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use: "recall", GroupID: call.MessageGroup,
		Short:   "Cancel a delayed message by the recall handle of its receipt",
		Example: "  tidegate recall reminders HANDLE",
	}, []string{"TOPIC", "HANDLE"}, func(ctx context.Context, c *call.Call) error {
		t, _, err := c.Transport(ctx)
		if err != nil {
			return err
		}
		recaller, ok := t.(transport.Recaller)
		if !ok {
			return errors.Join(c.Unsupported(), t.Close())
		}
		bounded, cancel := c.Bounded(ctx)
		defer cancel()
		id, err := recaller.Recall(bounded, c.Args[0], c.Args[1])
		if err := errors.Join(err, t.Close()); err != nil {
			return err
		}
		return c.Show(map[string]string{"id": id}, id, []output.Field{{Name: "recalled", Value: id}})
	})
}
