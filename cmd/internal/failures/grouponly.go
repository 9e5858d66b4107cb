package failures

import (
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
)

// groupOnly returns an error if --to-group-only does not fit the other flags or the server.
func groupOnly(c *call.Call, to, edit string) error {
	server, err := c.Server()
	switch {
	case err != nil:
		return err
	case server.Kind == connection.RocketMQ || server.HTTP == "":
		return command.Usagef(c.Command, "--to-group-only works with the HTTP API of a tidegate broker; "+
			"RocketMQ sends a message to all groups of a topic: leave the flag out, or give a topic of this group alone with --to")
	case to != "":
		return command.Usagef(c.Command, "--to-group-only sends each message to its own topic; give it or --to, not both")
	case edit != "":
		return command.Usagef(c.Command, "--edit sends a message anew, to all groups of its topic; give it or --to-group-only, not both")
	}
	return nil
}
