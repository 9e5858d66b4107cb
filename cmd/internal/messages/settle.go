package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/transport"
)

// A fate is the end of a printed message.
type fate struct {
	name   string // release, ack, retry or dead
	delay  time.Duration
	reason string
}

// fate reads --then.
func (r *receiveCommand) fate() (fate, error) {
	switch {
	case r.then == "" && r.Terminal:
		return fate{name: "release"}, nil
	case r.then == "":
		return fate{}, errors.New("without a terminal --then is required: release, ack, retry or dead")
	case r.then == "ask" && !r.Terminal:
		return fate{}, errors.New("--then ask needs a terminal; otherwise it is release, ack, retry[=TIME] or dead[=REASON]")
	case r.then == "ask":
		return fate{name: "ask"}, nil
	}
	f, err := parseFate(r.then)
	if err != nil {
		return fate{}, fmt.Errorf("--then is %q; %w", r.then, err)
	}
	return f, nil
}

// parseFate reads the fate of a message.
func parseFate(text string) (fate, error) {
	const by = "by tidegate receive"
	name, value, hasValue := strings.Cut(text, "=")
	switch {
	case (name == "ack" || name == "release") && !hasValue:
		return fate{name: name}, nil
	case name == "dead":
		return fate{name: name, reason: cmp.Or(value, by)}, nil
	case name == "retry" && !hasValue:
		return fate{name: name, delay: transport.BySchedule, reason: by}, nil
	case name == "retry":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fate{}, errors.New("the time of a retry is as in retry=5s")
		}
		return fate{name: name, delay: d, reason: by}, nil
	}
	return fate{}, errors.New("it is release, ack, retry[=TIME], dead[=REASON], or ask on a terminal")
}

// settle settles a printed message, also after Ctrl-C. With --follow it outlives a server that is
// away.
func (r *receiveCommand) settle(ctx context.Context, t connection.Transport, d *tidegate.Delivery, f fate) error {
	once := func(ds []*tidegate.Delivery) []error {
		ctx, cancel := r.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		return []error{settle(ctx, t, ds[0], f)}
	}
	if r.follow {
		once = persistent(ctx, r.lease, once)
	}
	return once([]*tidegate.Delivery{d})[0]
}

func settle(ctx context.Context, t connection.Transport, d *tidegate.Delivery, f fate) error {
	var err error
	switch f.name {
	case "ack":
		err = t.Ack(ctx, []*tidegate.Delivery{d})[0]
	case "retry":
		_, err = t.Retry(ctx, d, f.delay, f.reason)
	case "dead":
		_, err = t.DeadLetter(ctx, d, f.reason)
	}
	if err != nil {
		return unsettled(d, err)
	}
	return nil
}

// release makes deliveries ready again without counting an attempt, where the server can. The
// oldest is the first, so that a receive that waits gets them in their order.
func (r *receiveCommand) release(ctx context.Context, t connection.Transport, ds []*tidegate.Delivery) error {
	ctx, cancel := r.Bounded(context.WithoutCancel(ctx)) // also after Ctrl-C
	defer cancel()
	var first error
	failed := 0
	for _, d := range ds {
		if !t.Capabilities(d.Endpoint).Snooze {
			continue // it comes again after the lease
		}
		if err := t.Snooze(ctx, d, 0); err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
			failed++
			first = errors.Join(first, err)
		}
	}
	if first != nil {
		return fmt.Errorf("%d of %d messages are redelivered after %v (--lease) and not at once: %w", failed, len(ds), r.lease, first)
	}
	return nil
}
