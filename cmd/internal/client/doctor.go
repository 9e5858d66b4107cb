package client

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/doctor"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func (a *App) doctor() *cobra.Command {
	p := &doctor.Patient{}
	cmd := &cobra.Command{
		Use: "doctor", GroupID: toolGroup,
		Short: "Find out why it does not work: address, TLS, clock, credentials, topic, group",
		Long: `Tries step by step what a client needs: the name of the server, a connection, TLS
or plain text, the protocol, the clocks, the credentials, a topic and a group.
Each line says what was tried, what came, and what to do. It ends with the exit
code of the first failure.`,
		Example: `  tidegate doctor
  tidegate doctor --grpc proxy.example:8081 --topic orders --group billing`,
	}
	a.leaf(cmd, nil, func(ctx context.Context, c *call) error {
		if p.Topic == "" && (p.Group != "" || p.Send) {
			return command.Usagef(cmd, "--group and --send need --topic")
		}
		return c.examine(ctx, p)
	})
	f := cmd.Flags()
	f.StringVar(&p.Topic, "topic", "", "also test this `topic`")
	f.StringVar(&p.Group, "group", "", "also test this consumer `group`; needs --topic")
	f.BoolVar(&p.Send, "send", false, "send a message to --topic")
	return cmd
}

// examine tries the steps and ends with the exit code of the first failure.
func (c *call) examine(ctx context.Context, p *doctor.Patient) error {
	var err error
	if p.Server, err = c.server(); err != nil {
		return err
	}
	p.Command, p.Timeout, p.Bounded, p.Admin = c.command.CommandPath(), c.timeout, c.bounded, c.admin
	steps := p.Examine(ctx)
	if err := c.showSteps(steps); err != nil {
		return err
	}
	for _, s := range steps {
		if s.Err != nil {
			return command.Status(command.ExitCode(s.Err))
		}
	}
	return nil
}

func (c *call) showSteps(steps []doctor.Step) error {
	if c.json() {
		return output.Encode(c.Out, map[string]any{"steps": notNil(steps)})
	}
	for _, s := range steps {
		if _, err := fmt.Fprintf(c.Out, "%-8s %-14s %s\n", s.Result, s.Step, output.Safe(s.What)); err != nil {
			return err
		}
		if s.Remedy != "" {
			fmt.Fprintf(c.Out, "%-8s %-14s %s\n", "", "what to do", s.Remedy)
		}
	}
	return nil
}
