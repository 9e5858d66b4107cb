package command

import (
	"context"
	"errors"

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
	ExitInterrupted  = 130 // by Ctrl-C
)

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
