package command

import (
	"context"
	"errors"
	"os"

	"github.com/tidegate/tidegate"
)

// The exit codes of all commands.
const (
	ExitDone         = 0
	ExitFailed       = 1   // for a reason that has no code of its own
	ExitUsage        = 2   // wrong arguments or configuration, or not supported by this server
	ExitNotFound     = 3   // no topic, group or message of this name
	ExitNotPermitted = 4   // credentials are missing, wrong, or do not permit it
	ExitThrottled    = 5   // the server throttles or has no room
	ExitNoAnswer     = 6   // unreachable or timed out
	ExitPartly       = 7   // a part was done
	ExitInterrupted  = 130 // by Ctrl-C, before the work was done
	ExitTerminated   = 143 // by SIGTERM, before the work was done
)

// A Signal is the cause of a context that a signal has ended. It matches context.Canceled.
type Signal struct{ os.Signal }

func (s Signal) Error() string { return s.String() + " signal received" }

// Is reports whether target is context.Canceled.
func (s Signal) Is(target error) bool { return target == context.Canceled }

// Ordinary returns nil for the error that the end of ctx caused, and else err. It is for commands
// that go on until a signal, such as --follow and top: for them it is no interruption.
func Ordinary(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && ExitCode(err) == ExitInterrupted {
		return nil
	}
	return err
}

// ErrPartly marks an error after which a part of the work is done.
var ErrPartly = errors.New("partly done")

// ErrUnsupported marks an error of a command that this kind of server does not support.
var ErrUnsupported = errors.New("not supported by this server")

// ExitCode returns the exit code for an error of a command.
func ExitCode(err error) int {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	_, usage := errors.AsType[UsageError](err)
	_, invalid := errors.AsType[Invalid](err)
	e, answered := errors.AsType[*tidegate.Error](err)
	switch {
	case err == nil:
		return ExitDone
	case usage, invalid, is(ErrUnsupported), answered && e.Code == tidegate.CodeNotImplemented:
		return ExitUsage
	case is(ErrPartly):
		return ExitPartly
	case is(tidegate.ErrNotFound, tidegate.ErrTopicNotFound):
		return ExitNotFound
	case is(tidegate.ErrUnauthorized, tidegate.ErrForbidden):
		return ExitNotPermitted
	case is(tidegate.ErrThrottled):
		return ExitThrottled
	case is(context.Canceled):
		return ExitInterrupted
	case is(tidegate.ErrInvalid):
		return ExitUsage
	case is(tidegate.ErrUnavailable, context.DeadlineExceeded), answered && (e.NotConnected || e.Code == 0):
		return ExitNoAnswer
	}
	return ExitFailed
}
