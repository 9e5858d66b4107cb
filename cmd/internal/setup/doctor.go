package setup

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/doctor"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func newDoctor(a *call.App) *cobra.Command {
	p := &doctor.Patient{}
	cmd := &cobra.Command{
		Use: "doctor", GroupID: call.ToolGroup,
		Short: "Find the fault of a set-up: address, TLS, clock, credentials, topic, group",
		Long: `Tests a set-up as a client, step by step: the name of the server, a connection, TLS
or plain text, the protocol, the clocks, the credentials, a topic and a group.
Each line has the step, its result and the remedy. The command ends with the exit
code of the first failure.`,
		Example: `  tidegate doctor
  tidegate doctor --grpc proxy.example:8081 --topic orders --group billing`,
	}
	a.Leaf(cmd, nil, func(ctx context.Context, c *call.Call) error {
		if p.Topic == "" && (p.Group != "" || p.Send) {
			return command.Usagef(cmd, "--group and --send need --topic")
		}
		return examine(ctx, c, p)
	})
	f := cmd.Flags()
	f.StringVar(&p.Topic, "topic", "", "also test this `topic`")
	f.StringVar(&p.Group, "group", "", "also test this consumer `group`; needs --topic")
	f.BoolVar(&p.Send, "send", false, "send a message to --topic")
	return cmd
}

// examine tries the steps and ends with the exit code of the first failure.
func examine(ctx context.Context, c *call.Call, p *doctor.Patient) error {
	var err error
	if p.Server, err = c.Server(); err != nil {
		return err
	}
	p.Command, p.Timeout, p.Bounded, p.Admin = c.Command.CommandPath(), c.Timeout, c.Bounded, c.Admin
	if c.App.Artemis != nil {
		p.Artemis = c.App.Artemis.Examine
	}
	steps := p.Examine(ctx)
	if err := showSteps(c, steps); err != nil {
		return err
	}
	for _, s := range steps {
		if s.Err != nil {
			return command.Status(command.ExitCode(s.Err))
		}
	}
	return nil
}

func showSteps(c *call.Call, steps []doctor.Step) error {
	if c.JSON() {
		return output.Encode(c.Out, map[string]any{"steps": call.NotNil(steps)})
	}
	for _, s := range steps {
		if _, err := fmt.Fprintf(c.Out, "%-8s %-14s %s\n", s.Result, s.Step, output.Safe(strings.ReplaceAll(strings.TrimSpace(s.What), "\n", "; "))); err != nil {
			return err
		}
		if s.Remedy != "" {
			fmt.Fprintf(c.Out, "%-8s %-14s %s\n", "", "remedy", s.Remedy)
		}
	}
	return nil
}

func newContextTest(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:   "test",
		Short: "Test a context: address, TLS, protocol, clock and credentials",
		Long: `Tests a context step by step, as 'tidegate doctor' tests a set-up:
the current context, or the one of the argument.`,
		Example: `  tidegate context test
  tidegate context test prod`,
	}, []string{"[CONTEXT]"}, func(ctx context.Context, c *call.Call) error {
		if len(c.Args) > 0 {
			alone := *c.App
			alone.Env = c.Directories
			c.App, c.Connection = &alone, connection.Named(c.Args[0])
		}
		return examine(ctx, c, &doctor.Patient{})
	})
}
