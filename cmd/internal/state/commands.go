// Package state has the commands that show the state of a server: status, top, clients, metrics,
// check and the console.
package state

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Commands returns the commands of this package.
func Commands(a *call.App) []*cobra.Command {
	return []*cobra.Command{newStatus(a), newTop(a), newClients(a), newMetrics(a), newCheck(a), newConsole(a)}
}
