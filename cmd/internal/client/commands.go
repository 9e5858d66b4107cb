// Package client has all commands that use a server: a tidegate broker or Apache RocketMQ 5. It
// does not import the broker.
package client

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/administration"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/failures"
	"github.com/tidegate/tidegate/cmd/internal/measure"
	"github.com/tidegate/tidegate/cmd/internal/messages"
	"github.com/tidegate/tidegate/cmd/internal/move"
	"github.com/tidegate/tidegate/cmd/internal/setup"
	"github.com/tidegate/tidegate/cmd/internal/state"
)

// Commands returns the commands.
func Commands(a *call.App) []*cobra.Command {
	return slices.Concat(
		messages.Commands(a), state.Commands(a), administration.Commands(a), failures.Commands(a),
		setup.Commands(a), []*cobra.Command{move.Command(a), measure.Command(a)},
	)
}
