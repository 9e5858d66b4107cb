package call

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/connection"
)

// completionTime bounds the completion of a name: a shell waits for it after each press of the key.
const completionTime = 300 * time.Millisecond

// complete returns the names that the next argument can have. It has no names, and prints nothing,
// if the server does not respond in time.
func (c *Call) complete(names, given []string, prefix string) []string {
	if len(given) >= len(names) {
		return nil
	}
	s, err := connection.Resolve(c.Connection, c.Env, io.Discard, c.opener())
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime) // cobra's completion has no context
	defer cancel()
	client, err := s.Admin(ctx, 1)
	if err != nil {
		return nil
	}
	defer func() { _ = client.Close() }() // the names are known
	var out []string
	for _, name := range namesOf(ctx, client, names[len(given)]) {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	return out
}

// namesOf returns the names of the kind that an argument takes.
func namesOf(ctx context.Context, client *admin.Client, arg string) []string {
	var out []string
	switch arg {
	case "TOPIC":
		topics, err := client.Topics(ctx)
		if err != nil {
			return nil
		}
		for _, t := range topics {
			out = append(out, t.Name)
		}
	case "GROUP":
		groups, err := client.Groups(ctx)
		if err != nil {
			return nil
		}
		for _, g := range groups {
			out = append(out, g.Name)
		}
	case "MATCH":
		list, err := client.AllAddressSettings(ctx)
		if err != nil {
			return nil
		}
		for _, s := range list {
			out = append(out, s.Match)
		}
	}
	return out
}
