// Package administration has the commands that show and change topics, groups, address settings
// and limits.
package administration

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Commands returns the commands of this package.
func Commands(a *call.App) []*cobra.Command {
	return []*cobra.Command{newTopics(a), newGroups(a), newRetries(a), newLimits(a), newAddress(a), newApply(a), newExport(a), newAudit(a), newAPI(a)}
}
