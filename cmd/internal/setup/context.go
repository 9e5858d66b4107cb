package setup

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

func newContexts(a *call.App) *cobra.Command {
	return call.Parent(call.ToolGroup, "context", "Keep servers by name: addresses, keys and where their secrets are", "  tidegate context add prod --grpc mq.example:8081 --http https://mq.example:8082 --access-key operator --secret-file ~/.mq",
		newContextList(a), newContextUse(a), newContextAdd(a), newContextShow(a), newContextTest(a), newContextRemove(a))
}

// A contextRow is a context with its name.
type contextRow struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	connection.Context
}

func newContextList(a *call.App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the contexts; * marks the current one",
		Example: "  tidegate context list",
	}, nil, func(_ context.Context, c *call.Call) error {
		f, _, err := c.ContextFile()
		if err != nil {
			return err
		}
		var rows []contextRow
		for _, name := range f.Names() {
			rows = append(rows, contextRow{name, name == f.Current, f.Contexts[name]})
		}
		return call.PrintList(c, output.List[contextRow]{
			Rows: rows,
			Columns: []output.Column[contextRow]{
				{Name: "NAME", Cell: func(r contextRow) any { return r.Name + map[bool]string{true: " *"}[r.Current] }},
				{Name: "KIND", Cell: func(r contextRow) any { return cmp.Or(r.Kind, connection.Tidegate) }},
				{Name: "GRPC", Cell: func(r contextRow) any { return cmp.Or(r.GRPC, r.AMQP) }},
				{Name: "HTTP", Cell: func(r contextRow) any { return r.HTTP }},
				{Name: "ACCESS-KEY", Cell: func(r contextRow) any { return r.Key }},
				{Name: "PROTECTED", Cell: func(r contextRow) any { return map[bool]string{true: "yes"}[r.Protect] }},
			},
			Name:     func(r contextRow) string { return r.Name },
			Document: func(rs []contextRow) any { return map[string]any{"contexts": call.NotNil(rs)} },
			Empty:    "no contexts: commands use 127.0.0.1; 'tidegate context add NAME --grpc HOST:PORT' adds one",
		})
	}).Command
}

func newContextUse(a *call.App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use:     "use",
		Short:   "Choose the context of later commands; - goes back to the previous one",
		Example: "  tidegate context use prod",
	}, []string{"NAME"}, func(_ context.Context, c *call.Call) error {
		f, path, err := c.ContextFile()
		if err != nil {
			return err
		}
		name := c.Args[0]
		if name == "-" {
			if name = f.Previous; name == "" {
				return command.Usagef(c.Command, "there is no previous context")
			}
		}
		if _, err := f.Get(name); err != nil {
			return &contextError{err}
		}
		if name != f.Current {
			f.Previous, f.Current = f.Current, name
		}
		if err := f.Write(path); err != nil {
			return err
		}
		c.Note("the context is %s", output.Safe(name))
		return nil
	}).Command
}

// A contextError is the error of a context that does not exist.
type contextError struct{ error }

func (e *contextError) Unwrap() []error { return []error{e.error, call.NotFound(e.Error())} }

func newContextAdd(a *call.App) *cobra.Command {
	var n connection.Context
	var secretCommand []string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add a context, or replace one",
		Long: `Adds a context, or replaces one. The file of contexts has no secrets, only where
they are: in a file, or in the output of a command.`,
		Example: `  tidegate context add dev --grpc 127.0.0.1:8081 --http http://127.0.0.1:8082
  tidegate context add rmq --kind rocketmq --grpc proxy.example:8081 --access-key app --secret-command pass,show,mq`,
	}
	c := a.Local(cmd, []string{"NAME"}, func(_ context.Context, c *call.Call) error {
		f, path, err := c.ContextFile()
		if err != nil {
			return err
		}
		n.SecretCommand = secretCommand
		if n.AMQP != "" && n.Kind == "" {
			n.Kind = connection.AMQP
		}
		if err := n.Check(c.Args[0]); err != nil {
			return c.Usage(err)
		}
		switch {
		case n.GRPC+n.HTTP+n.AMQP == "":
			return command.Usagef(c.Command, "give --grpc, and for a tidegate broker --http; or for an ActiveMQ Artemis --amqp")
		case n.Kind == connection.RocketMQ && n.HTTP != "":
			return command.Usagef(c.Command, "a RocketMQ has no HTTP API; remove --http")
		case n.SecretFile != "" && len(secretCommand) > 0:
			return command.Usagef(c.Command, "--secret-file and --secret-command exclude each other")
		}
		if f.Contexts == nil {
			f.Contexts = map[string]connection.Context{}
		}
		f.Contexts[c.Args[0]] = n
		first := f.Current == ""
		if first {
			f.Current = c.Args[0]
		}
		if err := f.Write(path); err != nil {
			return err
		}
		c.Note("%s has %s; %s tests it", path, output.Safe(c.Args[0]), shell.Mention(c.Command.Root().Name()+" doctor"+shell.Flag("context", c.Args[0])))
		if first {
			c.Note("%s is now the current context", output.Safe(c.Args[0]))
		}
		return nil
	})
	f := c.Command.Flags()
	f.StringVar(&n.Kind, "kind", "", "`kind` of server: tidegate, rocketmq or amqp")
	f.StringVar(&n.GRPC, "grpc", "", "`host:port` of the broker or RocketMQ proxy")
	f.StringVar(&n.HTTP, "http", "", "`URL` of the broker's HTTP API")
	f.StringVar(&n.AMQP, "amqp", "", "`URL` of an ActiveMQ Artemis, for the program tidegate-amqp")
	f.StringVar(&n.Namespace, "namespace", "", "`prefix` of the names on a RocketMQ with namespaces")
	f.StringVar(&n.Key, "access-key", "", "access `key`")
	f.StringVar(&n.SecretFile, "secret-file", "", "`file` with the secret")
	f.StringSliceVar(&secretCommand, "secret-command", nil, "`command` that prints the secret, its words separated by commas")
	f.BoolVar(&n.TLS, "tls", false, "use TLS for --grpc")
	f.StringVar(&n.CACert, "cacert", "", "`file` with the certificates to trust")
	f.StringVar(&n.Cert, "cert", "", "`file` with the client certificate")
	f.StringVar(&n.CertKey, "cert-key", "", "`file` with the key of the client certificate")
	f.BoolVar(&n.SkipVerify, "tls-skip-verify", false, "accept any certificate")
	f.BoolVar(&n.Protect, "protect", false, "destructive commands need --yes=NAME with the name of their subject")
	return c.Command
}

func newContextShow(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:     "show",
		Short:   "Show the server in effect, each value with its source",
		Example: "  tidegate context show",
	}, nil, func(_ context.Context, c *call.Call) error {
		s, err := c.InEffect()
		if err != nil {
			return err
		}
		fields := []output.Field{{Name: "kind", Value: cmp.Or(s.Kind, connection.Tidegate)}}
		for _, v := range s.Sources {
			fields = append(fields, output.Field{Name: v[0], Value: fmt.Sprintf("%s (%s)", v[1], v[2])})
		}
		if s.Protect {
			fields = append(fields, output.Field{Name: "protected", Value: "destructive commands need --yes=NAME"})
		}
		return c.Show(contextRow{s.Name, s.Name != "", s.Context}, s.Name, fields)
	})
}

func newContextRemove(a *call.App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use: "remove", Aliases: []string{"rm"},
		Short:   "Remove a context",
		Example: "  tidegate context remove dev",
	}, []string{"NAME"}, func(_ context.Context, c *call.Call) error {
		f, path, err := c.ContextFile()
		if err != nil {
			return err
		}
		name := c.Args[0]
		if _, err := f.Get(name); err != nil {
			return &contextError{err}
		}
		delete(f.Contexts, name)
		if f.Current == name {
			f.Current = ""
		}
		if f.Previous == name {
			f.Previous = ""
		}
		if err := f.Write(path); err != nil {
			return err
		}
		c.Note("removed the context %s", output.Safe(name))
		return nil
	}).Command
}
