package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// A Source is the origin of a setting.
type Source int

// The sources, the strongest first.
const (
	FromClient  Source = iota // Options
	FromServer                // the server's settings
	FromDefault               // this package
)

// String returns the lower-case name.
func (s Source) String() string {
	switch s {
	case FromClient:
		return "client"
	case FromServer:
		return "server"
	case FromDefault:
		return "default"
	}
	return "unknown"
}

// Settings are the values that hold for sends to one topic, each with its source.
// A value of the client beats the server's, which beats the default. A server's
// backoff that is too short to hold (see [Options].Backoff) counts as not set. The
// server cannot ask for more than 16 attempts, nor for waits below 10 ms.
type Settings struct {
	MaxAttempts     int // of one send, the first included
	MaxAttemptsFrom Source

	Backoff     backoff.Policy // after a throttled attempt
	BackoffFrom Source

	MaxBodySize     int // bytes
	MaxBodySizeFrom Source
}

// merge is the precedence: client, server, default.
func merge(o Options, s transport.ProducerSettings) Settings {
	e := Settings{
		MaxAttempts: DefaultMaxAttempts, MaxAttemptsFrom: FromDefault,
		Backoff: backoff.Default(), BackoffFrom: FromDefault,
		MaxBodySize: tidegate.MaxBodySize, MaxBodySizeFrom: FromDefault,
	}
	switch {
	case o.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = o.MaxAttempts, FromClient
	case s.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = min(s.MaxAttempts, maxServerAttempts), FromServer
	}
	switch {
	case o.Backoff != nil:
		e.Backoff, e.BackoffFrom = o.Backoff, FromClient
	case s.Backoff != nil:
		e.Backoff, e.BackoffFrom = floored{s.Backoff}, FromServer
	}
	switch {
	case o.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = o.MaxBodySize, FromClient
	case s.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = s.MaxBodySize, FromServer
	}
	return e
}

const (
	maxServerAttempts = 16
	minServerDelay    = 10 * time.Millisecond
)

// floored is a server's backoff with delays that cannot harm the server.
type floored struct{ transport.Delayer }

// Delay implements backoff.Policy.
func (f floored) Delay(n int) time.Duration { return max(minServerDelay, f.Delayer.Delay(n)) }

const (
	settingsMaxAge = 30 * time.Second // settings older than this are read again
	settingsRetry  = 5 * time.Second  // after they could not be read
	settingsWait   = time.Second      // a send waits no longer for them
	settingsLimit  = 5 * time.Second  // a question that no send waits for takes no longer
)

// errSettingsWait is the cause of the end of those times.
var errSettingsWait = fmt.Errorf("%w: no settings within the time that was given for them", tidegate.ErrUnavailable)

// An answer is what came of asking the server.
type answer struct {
	settings Settings // that hold; the earlier ones if err is not nil
	err      error
	until    time.Time // when to ask again
}

// settings returns what is known without asking.
func (p *Producer) settings(t *topic) Settings {
	if a := t.answer.Load(); a != nil {
		return a.settings
	}
	return p.unasked
}

// askedSettings asks the server if the last answer is old. Only one goroutine
// asks at a time; the others wait for its answer. The error tells why there is
// none; the settings that hold come with it.
func (p *Producer) askedSettings(ctx context.Context, t *topic) (Settings, error) {
	if a := t.fresh(); a != nil {
		return a.settings, a.err
	}
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return p.settings(t), context.Cause(ctx)
	}
	if a := t.fresh(); a != nil {
		return a.settings, a.err // the goroutine before us asked
	}
	return p.ask(ctx, t)
}

// fresh returns the last answer, nil if it is too old or there is none.
func (t *topic) fresh() *answer {
	if a := t.answer.Load(); a != nil && time.Now().Before(a.until) {
		return a
	}
	return nil
}

// ask asks the server. Its caller holds the token in t.asking.
func (p *Producer) ask(ctx context.Context, t *topic) (Settings, error) {
	pushed, err := p.transport.ProducerSettings(ctx, t.name)
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSettingsWait) {
		return p.settings(t), err // that this caller gave up says nothing about the server
	}
	a := &answer{err: err}
	if err == nil {
		a.settings, a.until = merge(p.opts, pushed), time.Now().Add(settingsMaxAge)
	} else {
		p.log.Debug("the server's settings could not be read", "topic", t.name, "error", err)
		a.settings, a.until = p.settings(t), time.Now().Add(settingsRetry)
	}
	t.answer.Store(a)
	return a.settings, a.err
}

// awaitedSettings is askedSettings that waits no longer than a second, nor than
// an attempt may take.
func (p *Producer) awaitedSettings(ctx context.Context, t *topic, attempt time.Duration) (Settings, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(attempt, settingsWait), errSettingsWait)
	defer cancel()
	return p.askedSettings(ctx, t)
}

// settingsFor is awaitedSettings for a send that was throttled. It ends with own's
// ctx, if own is set, and with Close. An error leaves the settings that hold.
func (p *Producer) settingsFor(own *item, t *topic) Settings {
	if a := t.fresh(); a != nil {
		return a.settings
	}
	ctx := p.life
	if own != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(own.ctx)
		defer cancel()
		defer context.AfterFunc(p.life, cancel)()
	}
	s, err := p.awaitedSettings(ctx, t, p.opts.AttemptTimeout)
	if err != nil {
		p.log.Debug("a throttled send goes on without the server's settings", "topic", t.name, "error", err)
	}
	return s
}

// askLater has another goroutine ask the server, which Close waits for, unless
// the last response is fresh or another goroutine asks already.
func (p *Producer) askLater(t *topic) {
	if t.fresh() != nil {
		return
	}
	select {
	case t.asking <- struct{}{}:
	default:
		return
	}
	if !p.ledger.Hold() {
		<-t.asking
		return
	}
	go func() {
		defer p.ledger.Running.Done()
		defer func() { <-t.asking }()
		ctx, cancel := context.WithTimeoutCause(p.life, settingsLimit, errSettingsWait)
		defer cancel()
		_, _ = p.ask(ctx, t) // kept in t
	}()
}

// Effective returns the settings that hold for sends to the topic, with their
// sources. It asks the server if the last response is older than 30 seconds, and
// blocks until there is a response or ctx ends. If the server's settings cannot be
// read, the error gives the reason, and the returned settings hold nevertheless:
// the client's, those read before, the defaults. A failure is remembered for 5
// seconds, unless it was the end of ctx.
func (p *Producer) Effective(ctx context.Context, topic string) (Settings, error) {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return p.unasked, err
	}
	t := p.use(topic)
	defer t.release()
	return p.askedSettings(ctx, t)
}
