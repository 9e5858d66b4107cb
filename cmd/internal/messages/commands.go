// Package messages has the commands that send, receive and look for messages.
package messages

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Commands returns the commands of this package.
func Commands(a *call.App) []*cobra.Command {
	return []*cobra.Command{newSend(a), newReceive(a), newPeek(a), newFind(a), newTrace(a), newRecall(a)}
}
