package remote

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// patience is the least time without a response that counts as a failure when the
// caller's own deadline ends a send.
const patience = 250 * time.Millisecond

// A Verdict is the information of a send about its server.
type Verdict int

const (
	Nothing Verdict = iota
	Healthy
	Failing
)

// VerdictOf returns the state of the server that the result of a send shows:
//
//	accepted, throttled                      healthy: the server does its work
//	transient: no response, 5xxxx            failing
//	permanent: the message or the set-up     nothing
//	not sent, or the client was closed       nothing
//	cancelled by the caller                  nothing, since it was not waited for
//	the caller's deadline                    failing after patience, else nothing
//
// A caller that gives up on the server, as a producer does after an attempt's share
// of the time, has a cause that matches ErrUnavailable: failing. cause is that of the
// caller's ctx, nil if it has not ended, and took the time of the request.
func VerdictOf(err *tidegate.Error, cause error, took time.Duration) Verdict {
	switch {
	case err == nil:
		return Healthy
	case errors.Is(err, transport.ErrLaneChanged), errors.Is(err, tidegate.ErrClosed):
		return Nothing
	}
	switch class := tidegate.Classify(err); {
	case class == tidegate.ClassThrottled:
		return Healthy
	case class != tidegate.ClassTransient:
		return Nothing
	case err.Code != 0 || cause == nil || errors.Is(cause, tidegate.ErrUnavailable):
		return Failing
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return Failing
	}
	return Nothing
}
