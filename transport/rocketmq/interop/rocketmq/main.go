// Command rocketmq starts real Apache RocketMQ servers on this machine, for the interop tests and
// for trying a program on them: a name server, brokers and gRPC proxies in Java processes, which it
// starts and kills by name. It needs a Java of version 8 or later and Maven, which
// downloads each version of RocketMQ once.
//
//	go run ./transport/rocketmq/interop/rocketmq up --version 5.5.0 --brokers 2 --proxies 2
//	go run ./transport/rocketmq/interop/rocketmq kill broker-b
//	go run ./transport/rocketmq/interop/rocketmq start broker-b
//	go run ./transport/rocketmq/interop/rocketmq down
//
// The processes outlive the program; "down" ends them and removes their data. Each command has
// --port, which identifies the set-up, and --help. The exit status is 3 if the machine lacks Java
// or Maven, and 1 for every other error. Package runner has the same for Go programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := commands().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "rocketmq:", err)
	code := 1
	if errors.Is(err, runner.ErrMissing) {
		code = 3
	}
	os.Exit(code) //nolint:forbidigo // a program
}

func commands() *cobra.Command {
	root := &cobra.Command{
		Use: "rocketmq", Short: "Start real Apache RocketMQ servers for tests",
		SilenceUsage: true, SilenceErrors: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	port := root.PersistentFlags().Int("port", 8081, "the gRPC port of the first proxy, which identifies the set-up")
	timeout := root.PersistentFlags().Duration("timeout", 5*time.Minute, "the limit for a command that starts or ends processes")
	// on runs a function on the set-up, within the limit.
	on := func(f func(ctx context.Context, s *runner.Setup, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			ctx, cancel := limited(cmd, *timeout)
			defer cancel()
			s, err := runner.Open(*port)
			if err != nil {
				return err
			}
			return f(ctx, s, cmd, args)
		}
	}
	names := func(f func(*runner.Setup, context.Context, ...string) error) func(*cobra.Command, []string) error {
		return on(func(ctx context.Context, s *runner.Setup, _ *cobra.Command, names []string) error {
			return f(s, ctx, names...)
		})
	}
	root.AddCommand(up(port, timeout), &cobra.Command{
		Use: "start [NAME]...", Short: "Start processes that do not run, and wait until they serve", RunE: names((*runner.Setup).Start),
		Long: "Start the named processes, or all, and wait until they serve. RocketMQ's proxies end at their start while a broker is away.",
	}, &cobra.Command{
		Use: "kill [NAME]...", Short: "End processes at once, as kill -9 does", RunE: names((*runner.Setup).Kill),
	}, &cobra.Command{
		Use: "stop [NAME]...", Short: "End processes as the signal TERM does, and wait for their end", RunE: names((*runner.Setup).Stop),
	}, topic(on), group(on), &cobra.Command{
		Use: "set KEY=VALUE...", Short: "Change settings of all brokers while they run", Args: cobra.MinimumNArgs(1),
		Long: "Change settings of all brokers while they run. RocketMQ reads many settings only at the start of a broker: give those to up --broker.",
		RunE: on(func(ctx context.Context, s *runner.Setup, _ *cobra.Command, args []string) error {
			settings, err := pairs(args)
			if err != nil {
				return err
			}
			return s.Configure(ctx, settings)
		}),
	}, &cobra.Command{
		Use: "status", Short: "List the processes, the version, the address of the name server, and the directory with the logs", Args: cobra.NoArgs,
		RunE: on(func(_ context.Context, s *runner.Setup, cmd *cobra.Command, _ []string) error {
			names, pids := s.Processes()
			for _, name := range names {
				words := "does not run"
				if pids[name] != 0 {
					words = "pid " + strconv.Itoa(pids[name])
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-10s %s\n", name, words); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%-10s %s\n%-10s %s\n%-10s %s\n",
				"version", s.Options().Version, "address", s.NameServer(), "directory", s.Dir())
			return err
		}),
	}, &cobra.Command{
		Use: "mqadmin -- COMMAND [ARGUMENT]...", Short: "Run a command of RocketMQ's mqadmin", Args: cobra.MinimumNArgs(1),
		Long: "Run a command of RocketMQ's mqadmin and print its output. For its option -n, status prints the address of the name server.",
		RunE: on(func(ctx context.Context, s *runner.Setup, cmd *cobra.Command, args []string) error {
			out, err := s.Mqadmin(ctx, args...)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), out)
			return err
		}),
	}, &cobra.Command{
		Use: "down", Short: "End all processes of a set-up at once and remove its data", Args: cobra.NoArgs,
		RunE: on(func(ctx context.Context, s *runner.Setup, _ *cobra.Command, _ []string) error { return s.Wipe(ctx) }),
	})
	return root
}

// limited returns the context of a command with the limit of --timeout.
func limited(cmd *cobra.Command, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("the limit of %v (--timeout) is over", limit))
}

type onSetup = func(func(context.Context, *runner.Setup, *cobra.Command, []string) error) func(*cobra.Command, []string) error

func up(port *int, timeout *time.Duration) *cobra.Command {
	var o runner.Options
	var brokerSettings, proxySettings []string
	cmd := &cobra.Command{
		Use: "up", Short: "Start a set-up and wait until it serves", Args: cobra.NoArgs,
		Long: `Start a name server, brokers and proxies, and wait until they serve. The processes are namesrv, broker-a, broker-b and
so on, and proxy-1, proxy-2 and so on. The data of an earlier set-up with the same port are still there. If the set-up
runs already, the processes that are missing are started.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := limited(cmd, *timeout)
			defer cancel()
			var err error
			if o.Broker, err = pairs(brokerSettings); err != nil {
				return err
			}
			if o.Proxy, err = pairs(proxySettings); err != nil {
				return err
			}
			o.Port = *port
			began := time.Now()
			s, err := runner.Up(ctx, o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "RocketMQ %s is up after %v: %s\n",
				s.Options().Version, time.Since(began).Round(time.Second/10), strings.Join(s.Endpoints(), ";"))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Version, "version", runner.Versions[0], "the version of RocketMQ: "+strings.Join(runner.Versions, ", "))
	f.IntVar(&o.Brokers, "brokers", 1, "the number of brokers, without replicas; several set --cluster")
	f.IntVar(&o.Proxies, "proxies", 1, "the number of proxies, with ports that follow --port; several set --cluster")
	f.BoolVar(&o.Cluster, "cluster", false, "run the broker in a process of its own, as in production, and not within the proxy")
	f.BoolVar(&o.Throttle, "throttle", false, "serve one send at a time, let 8 wait, and respond to others with TOO_MANY_REQUESTS (42900); it sets --cluster")
	f.StringArrayVar(&brokerSettings, "broker", nil, "a `KEY=VALUE` for broker.conf of all brokers; can be repeated")
	f.StringArrayVar(&proxySettings, "proxy", nil, "a `KEY=VALUE` for rmq-proxy.json of all proxies; can be repeated")
	f.StringVar(&o.Heap, "heap", "512m", "the largest Java heap of each broker and each proxy")
	return cmd
}

func topic(on onSetup) *cobra.Command {
	var queues int
	cmd := &cobra.Command{
		Use: "topic NAME TYPE", Short: "Create or change a topic on all brokers", Args: cobra.ExactArgs(2),
		Long: "Create or change a topic on all brokers. TYPE is normal, fifo, delay, transaction or mixed, and with newer versions priority or lite.",
		RunE: on(func(ctx context.Context, s *runner.Setup, _ *cobra.Command, args []string) error {
			return s.Topic(ctx, args[0], args[1], queues)
		}),
	}
	cmd.Flags().IntVar(&queues, "queues", 8, "the number of queues on each broker")
	return cmd
}

func group(on onSetup) *cobra.Command {
	var g runner.Group
	cmd := &cobra.Command{
		Use: "group NAME", Short: "Create or change a consumer group on all brokers", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, s *runner.Setup, _ *cobra.Command, args []string) error {
			return s.Group(ctx, args[0], g)
		}),
	}
	cmd.Flags().BoolVar(&g.FIFO, "fifo", false, "consume in order")
	cmd.Flags().StringVar(&g.LiteTopic, "lite-topic", "", "receive from the lite topics of this `topic` of type LITE; with RocketMQ 5.5.0")
	cmd.Flags().StringToStringVar(&g.Attributes, "attribute", nil, "further attributes, for example lite.sub.model=Exclusive")
	cmd.Flags().IntVar(&g.MaxRetries, "max-retries", 16, "the number of deliveries of a message after the first one")
	cmd.Flags().DurationSliceVar(&g.Retry, "retry-delays", nil, "the delays of retries that the server gives to push consumers, for example 1s,10s; RocketMQ's table without")
	return cmd
}

// pairs returns the keys and values of a list of KEY=VALUE; nil for none.
func pairs(list []string) (map[string]string, error) {
	var all map[string]string
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE", s)
		}
		if all == nil {
			all = map[string]string{}
		}
		all[k] = v
	}
	return all, nil
}
