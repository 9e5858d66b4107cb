package producer

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// An Attempt is what became of one attempt of a send, and what follows.
type Attempt struct {
	Topic     string
	MessageID string
	Number    int           // 1 for the first
	Endpoint  string        // that answered or failed to; empty if not known
	Duration  time.Duration // of the attempt

	Class       transport.Class
	Err         error // nil if it succeeded
	MaybeStored bool  // a failed attempt may have been stored

	// Stop is why there is no further attempt. NotStopped after a success, and
	// if another attempt follows after Delay.
	Stop        Reason
	Delay       time.Duration // from the end of this attempt to the next
	DelaySource DelaySource   // where Delay comes from
}

// observe tells about an attempt.
func (p *Producer) observe(ctx context.Context, a Attempt) {
	if a.Err != nil && p.log.Enabled(ctx, slog.LevelDebug) {
		p.log.LogAttrs(ctx, slog.LevelDebug, "send attempt failed",
			slog.String("topic", a.Topic), slog.String("message_id", a.MessageID),
			slog.Int("attempt", a.Number), slog.String("endpoint", a.Endpoint),
			slog.String("class", a.Class.String()), slog.Any("error", a.Err),
			slog.String("stop", a.Stop.String()),
			slog.Duration("delay", a.Delay), slog.String("delay_source", a.DelaySource.String()))
	}
	if p.opts.OnAttempt == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("OnAttempt panicked", "panic", v, "message_id", a.MessageID, "stack", string(debug.Stack()))
		}
	}()
	p.opts.OnAttempt(a)
}
