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

// The sources of settings, as [Settings] has them.
const (
	fromClient  = "client"
	fromServer  = "server"
	fromDefault = "default"
)

// Settings are the values in effect for sends to one topic. The source of each value is "client"
// for Options, "server" or "default": the client's value has priority over the server's, and the
// server's over the default. A server's backoff that is too short (see [Options].Backoff) counts as
// not set. A server cannot set more than 16 attempts, nor waits below 10 ms.
type Settings struct {
	MaxAttempts     int // of one send, including the first
	MaxAttemptsFrom string

	Backoff     backoff.Policy // after a throttled attempt
	BackoffFrom string

	MaxBodySize     int // bytes
	MaxBodySizeFrom string
}

// merge applies the precedence: client, server, default.
func merge(o Options, s transport.ProducerSettings) Settings {
	e := Settings{
		MaxAttempts: defaultMaxAttempts, MaxAttemptsFrom: fromDefault,
		Backoff: backoff.Default(), BackoffFrom: fromDefault,
		MaxBodySize: tidegate.MaxBodySize, MaxBodySizeFrom: fromDefault,
	}
	switch {
	case o.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = o.MaxAttempts, fromClient
	case s.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = min(s.MaxAttempts, maxServerAttempts), fromServer
	}
	switch {
	case o.Backoff != nil:
		e.Backoff, e.BackoffFrom = o.Backoff, fromClient
		if own, ok := o.Backoff.(backoff.Exponential); ok {
			e.Backoff = own.Filled() // the values in effect
		}
	case s.Backoff != nil:
		e.Backoff, e.BackoffFrom = floored{s.Backoff}, fromServer
	}
	switch {
	case o.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = o.MaxBodySize, fromClient
	case s.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = s.MaxBodySize, fromServer
	}
	return e
}

const (
	maxServerAttempts = 16
	minServerDelay    = 10 * time.Millisecond
)

// floored is a server's backoff with a lower bound that protects the server.
type floored struct{ backoff.Policy }

// Delay implements backoff.Policy.
func (f floored) Delay(n int) time.Duration { return max(minServerDelay, f.Policy.Delay(n)) }

const (
	settingsMaxAge = 30 * time.Second // maximum age of settings before they are requested again
	settingsRetry  = 5 * time.Second  // wait after a failed request
	settingsWait   = time.Second      // longest wait of a send for settings
	settingsLimit  = 5 * time.Second  // timeout of a request that no send waits for
)

// errSettingsWait is the cause when one of these times is over.
var errSettingsWait = fmt.Errorf("%w: the server sent no settings in time", tidegate.ErrUnavailable)

// An answer is the result of a settings request.
type answer struct {
	settings Settings // in effect; the earlier ones if err is not nil
	err      error
	until    time.Time // time of the next request
}

// settings returns the known settings without a request.
func (p *Producer) settings(t *topic) Settings {
	if a := t.answer.Load(); a != nil {
		return a.settings
	}
	return p.assumed
}

// askedSettings requests the settings if the known ones are old. Only one goroutine sends a request
// at a time; the others wait for its result. The settings in effect are returned also with an
// error.
func (p *Producer) askedSettings(ctx context.Context, t *topic) (Settings, error) {
	if a := t.fresh(); a != nil {
		return a.settings, a.err
	}
	select {
	case t.requesting <- struct{}{}:
		defer func() { <-t.requesting }()
	case <-ctx.Done():
		return p.settings(t), context.Cause(ctx)
	}
	if a := t.fresh(); a != nil {
		return a.settings, a.err // another goroutine has requested them in the meantime
	}
	return p.requestSettings(ctx, t)
}

// fresh returns the last result, or nil if it is too old or there is none.
func (t *topic) fresh() *answer {
	if a := t.answer.Load(); a != nil && time.Now().Before(a.until) {
		return a
	}
	return nil
}

// requestSettings sends a settings request. The caller holds the token in t.requesting.
func (p *Producer) requestSettings(ctx context.Context, t *topic) (Settings, error) {
	pushed, err := p.transport.ProducerSettings(ctx, t.name)
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSettingsWait) {
		return p.settings(t), err // the end of the caller's ctx is no failure of the server
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

// awaitedSettings is askedSettings for a send. The send waits for at most a second, or
// AttemptTimeout if that is shorter, and not longer than until Close.
func (p *Producer) awaitedSettings(ctx context.Context, t *topic) (Settings, error) {
	if a := t.fresh(); a != nil {
		return a.settings, a.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, min(p.opts.AttemptTimeout, settingsWait), errSettingsWait)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	return p.askedSettings(ctx, t)
}

// requestSettingsLater requests the settings in another goroutine, which Close waits for. It
// does nothing if the last result is fresh or a request is under way.
func (p *Producer) requestSettingsLater(t *topic) {
	if t.fresh() != nil {
		return
	}
	select {
	case t.requesting <- struct{}{}:
	default:
		return
	}
	if !p.ledger.Hold() {
		<-t.requesting
		return
	}
	go func() {
		defer p.ledger.Running.Done()
		defer func() { <-t.requesting }()
		ctx, cancel := context.WithTimeoutCause(p.life, settingsLimit, errSettingsWait)
		defer cancel()
		_, _ = p.requestSettings(ctx, t) // the result is stored in t
	}()
}

// Effective returns the settings in effect for sends to the topic, with their sources. It requests
// the server's settings if the last response is older than 30 seconds, and blocks until there is a
// response or ctx ends. If the request fails, the error has the reason, and the returned settings
// are valid nevertheless: those of the client, those of the last response, and the defaults. After
// a failure Effective sends no further request for 5 seconds, unless ctx had ended.
func (p *Producer) Effective(ctx context.Context, topic string) (Settings, error) {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return p.assumed, err
	}
	t := p.use(topic)
	defer t.release()
	return p.askedSettings(ctx, t)
}
