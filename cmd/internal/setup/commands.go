// Package setup has the commands for contexts, and for finding out why a connection does not work.
package setup

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Commands returns the commands of this package.
func Commands(a *call.App) []*cobra.Command {
	return []*cobra.Command{newContexts(a), newDoctor(a)}
}
