package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// A play is one row in one round.
type play struct {
	row    row
	server target
	feeder *feeder
	round  int
	logs   string
}

// run returns the runs of both sides in the order of sides.
func (p *play) run(ctx context.Context) ([]run, error) {
	loads := make([]spec, len(sides))
	stage := &stage{server: p.server}
	if p.row.on == small {
		others := "compare-others-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
		if err := p.server.topic(ctx, others, false); err != nil {
			return nil, err
		}
		stage.flood = func(ctx context.Context) { p.feeder.flood(ctx, others, p.row.load.Size) }
	}
	for i, side := range sides {
		endpoint := p.server.endpoint()
		if !p.direct() {
			r, err := listenRelay(endpoint, rand.Float64)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			stage.relays = append(stage.relays, r)
			endpoint = r.Address()
		}
		var err error
		if loads[i], err = p.load(ctx, side, endpoint); err != nil {
			return nil, err
		}
	}
	if p.row.turns {
		return p.inTurns(ctx, loads, stage)
	}
	return p.together(ctx, loads, stage)
}

// load returns the load of a side, with the topics and the group that it needs.
func (p *play) load(ctx context.Context, side, endpoint string) (spec, error) {
	s := p.row.load
	name := "compare-" + p.row.name + "-" + side + "-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
	s.Endpoint, s.Topic = endpoint, name
	if err := p.server.topic(ctx, s.Topic, s.FIFO); err != nil {
		return s, err
	}
	if p.row.fed || s.FIFO || s.Total > 0 || s.Drain > 0 {
		s.PushTopic, s.Group = s.Topic, name+"-group"
		if p.row.fed {
			s.PushTopic = name + "-fed"
			if err := p.server.topic(ctx, s.PushTopic, false); err != nil {
				return s, err
			}
		}
		if err := p.server.group(ctx, s.Group, s.FIFO); err != nil {
			return s, err
		}
	}
	if p.logs != "" {
		s.Logs = filepath.Join(p.logs, fmt.Sprintf("%s-%d-%s", p.row.name, p.round+1, side))
		if err := os.MkdirAll(s.Logs, 0o755); err != nil {
			return s, err
		}
	}
	if s.Total > 0 {
		return s, p.feeder.fill(ctx, s)
	}
	return s, nil
}

// direct reports whether the sides connect to the server without a relay: if the server itself is
// the fault, or its speed is measured.
func (p *play) direct() bool { return p.row.load.FIFO || p.row.turns || p.row.on == paired }

func (p *play) together(ctx context.Context, loads []spec, st *stage) ([]run, error) {
	processes := make([]*process, len(sides))
	errs := make([]error, len(sides))
	var all sync.WaitGroup
	for i, side := range sides {
		var err error
		if processes[i], err = launch(ctx, side, loads[i], p.row.limit); err != nil {
			return nil, err
		}
		defer processes[i].end()
		all.Go(func() { _, errs[i] = processes[i].say("") }) // ready
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, q := range processes {
		if _, err := fmt.Fprintln(q.words, wordGo); err != nil {
			return nil, err
		}
	}
	if p.row.fed {
		feeding, stop := context.WithCancel(ctx)
		all.Go(func() { p.feeder.feed(feeding, []string{loads[0].PushTopic, loads[1].PushTopic}, loads[0].Size) })
		defer all.Wait()
		defer stop()
	}
	if err := p.row.run(ctx, st); err != nil {
		return nil, err
	}
	runs := make([]run, len(sides))
	var reading sync.WaitGroup
	for i, q := range processes {
		reading.Go(func() { runs[i], errs[i] = q.finish(st) })
	}
	reading.Wait()
	return runs, errors.Join(errs...)
}

// inTurns runs one side after the other; in every other round official runs first.
func (p *play) inTurns(ctx context.Context, loads []spec, st *stage) ([]run, error) {
	runs := make([]run, len(sides))
	for turn := range sides {
		i := (turn + p.round) % len(sides)
		q, err := launch(ctx, sides[i], loads[i], p.row.limit)
		if err != nil {
			return nil, err
		}
		if runs[i], err = p.alone(ctx, q, st); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

func (p *play) alone(ctx context.Context, q *process, st *stage) (run, error) {
	defer q.end()
	if _, err := q.say(""); err != nil { // ready
		return run{}, err
	}
	if p.row.run == nil { // the side ends by itself
		if _, err := q.say(wordGo); err != nil { // done
			return run{}, err
		}
		return q.finish(st)
	}
	if _, err := fmt.Fprintln(q.words, wordGo); err != nil {
		return run{}, err
	}
	if err := p.row.run(ctx, st); err != nil {
		return run{}, err
	}
	return q.finish(st)
}

// patience bounds a side that neither gets ready nor ends, unless its row has a limit.
const patience = 3 * time.Minute

// launch starts the process of a side. A limit of 0 means patience.
func launch(ctx context.Context, side string, s spec, limit time.Duration) (*process, error) {
	limit = cmp.Or(limit, patience)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	load, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New(side+" takes longer than "+limit.String()))
	cmd := exec.CommandContext(ctx, self, "-side", side, "-load", string(load))
	logs := s.Logs
	if logs == "" { // the official client always writes one
		if logs, err = os.MkdirTemp("", "compare-"); err != nil {
			cancel()
			return nil, err
		}
	}
	cmd.Env = append(os.Environ(), "rocketmq.client.logRoot="+logs)
	cmd.Stderr = os.Stderr
	words, err1 := cmd.StdinPipe()
	lines, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		cancel()
		return nil, fmt.Errorf("starting %s: %w", side, err)
	}
	return &process{words: words, lines: bufio.NewReader(lines), end: func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if s.Logs == "" {
			_ = os.RemoveAll(logs)
		}
	}}, nil
}

// finish asks for the result.
func (p *process) finish(st *stage) (run, error) {
	line, err := p.say(wordStop)
	if err != nil {
		return run{}, fmt.Errorf("a side ended without a result: %w", err)
	}
	r := run{faultBegan: st.began, faultEnded: st.ended}
	return r, json.Unmarshal([]byte(line), &r.result)
}
