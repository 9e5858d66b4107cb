// Command compare runs the SDK of this repository and Apache RocketMQ's own Go client side by side
// on a real RocketMQ, through the same faults and with the same load, and prints a table of both.
// It is a module of its own, so that tidegate does not depend on the client.
//
//	go run . -rounds 10            # the rows of one broker and one proxy
//	go run . -cluster -rounds 10   # the rows of two brokers and two proxies
//
// Package runner starts the RocketMQ, which needs Java and Maven. The program ends it.
//
// Each side runs in a process of its own. It is behind a relay of its own (relay.go) unless the
// servers are the fault or their speed is measured. In rows with a fault both sides run at the same
// time; the others measure one side after the other, in turns.
// Rows whose fault is in the relays run at the same time too: each has its own relays, topics and
// processes, and together they make at most 640 sends a second. So do the two rows of a fault of a
// cluster. All rounds of a row, or of such rows, run before the next one begins.
// The rows of a cluster are in cluster.go. They offer both sides the same number of sends a second.
// Without further options both clients have their defaults.
//
// The exit status is 1 if ours is worse in a cell (see verdict) or above its bound, 2 if the program failed. Without
// Java or Maven the program prints LEFT OUT and the reason, with exit status 0; if the environment
// variable CI is set, with 2.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// The names of the sides, in the order of the table.
var sides = []string{"ours", "official"}

func main() {
	port := flag.Int("port", 18400, "the `port` of the RocketMQ")
	version := flag.String("version", "", "the `version` of RocketMQ; empty for the runner's default, and for the newest one in the rows of a cluster")
	onCluster := flag.Bool("cluster", false, "run the rows of a cluster in place of those of one broker and one proxy; not with -rows")
	names := flag.String("rows", "", "`names` of rows, separated by commas; empty for all of one broker and one proxy, or with -cluster of a cluster")
	rounds := flag.Int("rounds", 1, "how `often` each row runs; verdicts need at least 2, and 10 are meant")
	proxy := fileSettings{"useEndpointPortFromRequest": "true"}
	flag.Var(proxy, "proxy", "a `KEY=VALUE` for rmq-proxy.json of all proxies; can be repeated")
	logs := flag.String("logs", "", "a `directory` for the logs of both clients; empty for none")
	side := flag.String("side", "", "the program's own: run this side")
	load := flag.String("load", "", "the program's own: the load of a side, as JSON")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	status := 0
	switch {
	case *side != "":
		err = playSide(ctx, *side, *load)
	case flag.NArg() > 0 || *rounds < 1:
		err = fmt.Errorf("it needs a positive -rounds and takes no arguments; it got %q", flag.Args())
	default:
		var selected []row
		if selected, err = choose(*names, *onCluster); err == nil {
			status, err = compare(ctx, os.Stdout, &rocketMQ{port: *port, version: *version, proxy: proxy}, selected, *rounds, *logs)
		}
	}
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		status = 2
	}
	os.Exit(status) //nolint:forbidigo // a program
}

// fileSettings are those of a configuration file, as values of a flag.
type fileSettings map[string]string

// String implements flag.Value.
func (s fileSettings) String() string { return fmt.Sprint(map[string]string(s)) }

// Set implements flag.Value.
func (s fileSettings) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("%q is no setting; give KEY=VALUE", text)
	}
	s[key] = value
	return nil
}

func playSide(ctx context.Context, side, load string) error {
	var s spec
	if err := json.Unmarshal([]byte(load), &s); err != nil {
		return fmt.Errorf("-load: %w", err)
	}
	clients := map[string]client{"ours": &ours{}, "official": &official{}}
	c, ok := clients[side]
	if !ok {
		return fmt.Errorf("-side: %q is not one of %q", side, sides)
	}
	return runSide(ctx, c, s, os.Stdin, os.Stdout)
}

// compare runs the rows and prints the table.
func compare(ctx context.Context, out io.Writer, s *rocketMQ, selected []row, rounds int, logs string) (status int, err error) {
	defer func() { err = errors.Join(err, s.end()) }()
	if err := s.start(ctx, selected[0].on); err != nil {
		if errors.Is(err, runner.ErrMissing) && os.Getenv("CI") == "" {
			_, printed := fmt.Fprintln(out, "LEFT OUT:", err)
			return 0, printed
		}
		return 2, err
	}
	f, err := newFeeder(s.first())
	if err != nil {
		return 2, err
	}
	defer f.client.Close()
	if logs != "" {
		if logs, err = filepath.Abs(logs); err != nil {
			return 2, err
		}
	}
	var table []measured
	defer func() { // after an error too: the rounds that ended
		words, good := format(table)
		if !good && err == nil {
			status = 1
		}
		_, printed := fmt.Fprint(out, words)
		err = errors.Join(err, printed)
	}()
	for _, batch := range batches(selected) {
		first := len(table)
		for _, r := range batch {
			for _, c := range r.cells {
				table = append(table, measured{cell: c, row: r.name})
			}
		}
		for round := range rounds {
			if err := s.start(ctx, batch[0].on); err != nil {
				return 2, err
			}
			runs, err := playTogether(ctx, batch, play{server: s, feeder: f, round: round, logs: logs})
			if err != nil {
				return 2, err
			}
			n := first
			for i, r := range batch {
				var line strings.Builder
				fmt.Fprintf(&line, "round %d, %s (%s), ours / official:", round+1, r.name, r.about)
				for _, c := range r.cells {
					fmt.Fprintf(&line, " %s %s;", c.name, table[n].add(c, runs[i]))
					n++
				}
				if _, err := fmt.Fprintln(out, &line); err != nil {
					return 2, err
				}
			}
		}
	}
	return 0, nil
}

// batches splits rows, without changing their order, into those that run at the same time.
func batches(rows []row) [][]row {
	var list [][]row
	for i, r := range rows {
		if i > 0 && (r.beside && rows[i-1].beside || r.servers != "" && r.servers == rows[i-1].servers) {
			list[len(list)-1] = append(list[len(list)-1], r)
		} else {
			list = append(list, []row{r})
		}
	}
	return list
}

// playTogether runs the rows of a batch in one round and returns the runs of each row.
func playTogether(ctx context.Context, batch []row, p play) ([][]run, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runs, errs := make([][]run, len(batch)), make([]error, len(batch))
	faults := batch[0].run
	if batch[0].servers != "" {
		faults = jointly(len(batch), faults)
	}
	var all sync.WaitGroup
	for i, r := range batch {
		all.Go(func() {
			p := p
			p.row = r
			if r.servers != "" {
				p.row.run = faults
			}
			if runs[i], errs[i] = p.run(ctx); errs[i] != nil {
				errs[i] = fmt.Errorf("row %s, round %d: %w", r.name, p.round+1, errs[i])
				cancel()
			}
		})
	}
	all.Wait()
	return runs, errors.Join(errs...)
}

// add appends the runs of a round and returns them in words.
func (m *measured) add(c cell, runs []run) string {
	detail := c.detail
	if detail == nil {
		detail = func(r run) string { return c.format(c.value(r)) }
	}
	m.ours = append(m.ours, c.value(runs[0]))
	m.official = append(m.official, c.value(runs[1]))
	words := detail(runs[0]) + " / " + detail(runs[1])
	m.runs = append(m.runs, words)
	return words
}

// choose returns the named rows in their order. Without names it returns those of a cluster, or all
// others.
func choose(names string, onCluster bool) ([]row, error) {
	switch {
	case names != "" && onCluster:
		return nil, fmt.Errorf("-cluster and -rows %s exclude each other: omit -cluster", names)
	case onCluster:
		return clusterRows(), nil
	case names == "":
		return serverRows(), nil
	}
	wanted := strings.Split(names, ",")
	var known []string
	var chosen []row
	for _, r := range rows() {
		known = append(known, r.name)
		if slices.Contains(wanted, r.name) {
			chosen = append(chosen, r)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("-rows: there is no row %q, only %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}
