// Package failures has the commands for dead letters and parked message groups.
package failures

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Commands returns the commands of this package.
func Commands(a *call.App) []*cobra.Command {
	return []*cobra.Command{newDeadLetters(a), newParked(a)}
}
