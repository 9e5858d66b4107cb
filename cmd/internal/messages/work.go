package messages

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer"
)

// exitRetry is EX_TEMPFAIL of sysexits.h: the failure is temporary.
const exitRetry = 75

// work runs the program of --exec for each message until ctx ends, or until --max messages are
// handled.
func (r *receiveCommand) work(ctx context.Context, t connection.Transport, sub consumer.Subscription) error {
	bounded, cancel := r.Bounded(ctx)
	err := t.Ping(bounded, sub.Topic) // a worker waits for a server that is away, but not for a wrong address
	cancel()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := ctx
	var begun, handled, failed atomic.Int64
	var out sync.Mutex // the outputs of the programs
	handler := func(ctx context.Context, d *tidegate.Delivery) error {
		if n := begun.Add(1); r.max > 0 && n > int64(r.max) {
			<-running.Done() // one too many: it is delivered again, with the same attempt
			return consumer.Snooze(0)
		}
		err := r.program(ctx, d, &out)
		if err != nil {
			failed.Add(1)
		}
		if n := handled.Add(1); r.max > 0 && n >= int64(r.max) {
			stop()
		}
		return err
	}
	o := consumer.PushOptions{
		Concurrency:       r.workers,
		MaxBuffered:       r.workers, // a message that waits for a worker needs no lease
		InvisibleDuration: r.lease,
		Logger:            slog.New(slog.NewTextHandler(r.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	p, err := consumer.NewPush(t, sub, handler, o)
	if err != nil {
		return r.Usage(err)
	}
	if r.Command.Flags().Changed("wait") && !r.follow {
		go stopIdle(ctx, stop, r.wait, &begun, &handled)
	}
	started := time.Now()
	err = p.Run(ctx)
	if ctx.Err() != nil {
		err = nil // Ctrl-C or --max: the ordered end of a worker
	}
	r.Note("%s handled, %s failed in %s", output.Number(handled.Load()), output.Number(failed.Load()), output.Duration(time.Since(started)))
	if err == nil && handled.Load() < int64(r.expect) {
		err = fmt.Errorf("%d of %d expected messages arrived: %w", handled.Load(), r.expect, command.ErrPartly)
	}
	return err
}

// stopIdle calls stop when no program has begun for a time and none is running.
func stopIdle(ctx context.Context, stop func(), wait time.Duration, begun, handled *atomic.Int64) {
	for last := int64(0); ; {
		if call.Sleep(ctx, wait) != nil {
			return
		}
		n := begun.Load()
		if n == last && handled.Load() >= n {
			stop()
			return
		}
		last = n
	}
}

// program runs the program for one message and turns its exit code into a verdict.
func (r *receiveCommand) program(ctx context.Context, d *tidegate.Delivery, out *sync.Mutex) error {
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, "sh", "-c", r.exec)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(d.Body), &stdout, &stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 5 * time.Second
	c.Env = append(os.Environ(),
		"TIDEGATE_MESSAGE_ID="+d.ID, "TIDEGATE_TOPIC="+d.Topic, "TIDEGATE_TAG="+d.Tag, "TIDEGATE_KEYS="+strings.Join(d.Keys, ","),
		"TIDEGATE_MESSAGE_GROUP="+d.MessageGroup, fmt.Sprintf("TIDEGATE_ATTEMPT=%d", d.Attempt))
	err := c.Run()
	out.Lock()
	_, outErr := r.Out.Write(stdout.Bytes())
	_, errErr := r.Err.Write(stderr.Bytes())
	out.Unlock()
	if err == nil {
		return errors.Join(outErr, errErr)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // the program was stopped: the message comes again
	}
	reason := cmp.Or(call.LastLine(stderr.String()), err.Error())
	exit, ended := errors.AsType[*exec.ExitError](err)
	if !ended || exit.ExitCode() == exitRetry || exit.ExitCode() < 0 {
		return errors.New(reason) // not started, or ended by a signal: perhaps it works later
	}
	return consumer.DeadLetterNow(fmt.Errorf("%s (exit code %d)", reason, exit.ExitCode()))
}
