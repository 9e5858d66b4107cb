package producer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// A Source says who set a value.
type Source int

// Who set a value, the strongest first.
const (
	Client  Source = iota // Options
	Server                // the server's pushed settings
	Default               // this package
)

// String returns the lower-case name.
func (s Source) String() string {
	switch s {
	case Client:
		return "client"
	case Server:
		return "server"
	case Default:
		return "default"
	}
	return "unknown"
}

// Settings are the values that hold for sends to one topic, each with who set
// it. A value of the client beats the server's, and that one the default. A
// server's backoff that is too short to hold (see [Options].Backoff) counts as
// not set.
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
		MaxAttempts: DefaultMaxAttempts, MaxAttemptsFrom: Default,
		Backoff: backoff.Default(), BackoffFrom: Default,
		MaxBodySize: tidegate.MaxBodySize, MaxBodySizeFrom: Default,
	}
	switch {
	case o.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = o.MaxAttempts, Client
	case s.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = s.MaxAttempts, Server
	}
	switch {
	case o.Backoff != nil:
		e.Backoff, e.BackoffFrom = o.Backoff, Client
	case s.Backoff != nil:
		e.Backoff, e.BackoffFrom = s.Backoff, Server
	}
	switch {
	case o.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = o.MaxBodySize, Client
	case s.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = s.MaxBodySize, Server
	}
	return e
}

const (
	settingsMaxAge = 30 * time.Second // settings older than this are read again
	settingsRetry  = 5 * time.Second  // after they could not be read
	settingsWait   = time.Second      // a send waits no longer for them
	settingsLimit  = 5 * time.Second  // a question that no send waits for takes no longer
)

// errSettingsWait is the cause of the end of those times.
var errSettingsWait = fmt.Errorf("%w: no settings within the time that was given for them", tidegate.ErrUnavailable)

// A topic is what the producer remembers of a topic.
type topic struct {
	good   atomic.Bool            // a send to it was accepted
	answer atomic.Pointer[answer] // of the server, as last asked; nil before
	asking chan struct{}          // holds a token while one goroutine asks
}

// An answer is what came of asking the server.
type answer struct {
	settings Settings // that hold; the earlier ones if err is not nil
	err      error
	until    time.Time // when to ask again
}

func (p *Producer) topic(name string) *topic {
	if t, ok := p.topics.Load(name); ok {
		return t.(*topic)
	}
	t, _ := p.topics.LoadOrStore(name, &topic{asking: make(chan struct{}, 1)})
	return t.(*topic)
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
func (p *Producer) askedSettings(ctx context.Context, name string, t *topic) (Settings, error) {
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
	return p.ask(ctx, name, t)
}

// fresh returns the last answer, nil if it is too old or there is none.
func (t *topic) fresh() *answer {
	if a := t.answer.Load(); a != nil && time.Now().Before(a.until) {
		return a
	}
	return nil
}

// ask asks the server. Its caller holds the token in t.asking.
func (p *Producer) ask(ctx context.Context, name string, t *topic) (Settings, error) {
	pushed, err := p.transport.ProducerSettings(ctx, name)
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSettingsWait) {
		return p.settings(t), err // that this caller gave up says nothing about the server
	}
	a := &answer{err: err}
	if err == nil {
		a.settings, a.until = merge(p.opts, pushed), time.Now().Add(settingsMaxAge)
	} else {
		p.log.Debug("the server's settings could not be read", "topic", name, "error", err)
		a.settings, a.until = p.settings(t), time.Now().Add(settingsRetry)
	}
	t.answer.Store(a)
	return a.settings, a.err
}

// awaitedSettings is askedSettings that waits no longer than a second, nor than
// an attempt may take.
func (p *Producer) awaitedSettings(ctx context.Context, name string, t *topic, attempt time.Duration) (Settings, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(attempt, settingsWait), errSettingsWait)
	defer cancel()
	return p.askedSettings(ctx, name, t)
}

// askLater has the server asked by another goroutine, which Close waits for,
// unless its last answer is fresh or somebody asks already.
func (p *Producer) askLater(name string, t *topic) {
	if t.fresh() != nil {
		return
	}
	select {
	case t.asking <- struct{}{}:
	default:
		return
	}
	ctx, end := context.WithCancelCause(context.Background()) // it serves the sends to come, not one caller
	a, ok := p.begin(end)
	if !ok {
		end(nil)
		<-t.asking
		return
	}
	go func() {
		defer p.end(a)
		defer end(nil)
		defer func() { <-t.asking }()
		ctx, cancel := context.WithTimeoutCause(ctx, settingsLimit, errSettingsWait)
		defer cancel()
		_, _ = p.ask(ctx, name, t) // kept in t
	}()
}

// Effective returns the settings that hold for sends to the topic and who set
// each. It asks the server if what is known of it is older than 30 seconds,
// and blocks until there is an answer or ctx ends. If the error is not nil it
// tells why the server's settings could not be read, and the returned settings
// hold nevertheless: what the client set, what was read before, the defaults.
// A failure is remembered for 5 seconds, unless it was the end of ctx.
func (p *Producer) Effective(ctx context.Context, topic string) (Settings, error) {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return p.unasked, err
	}
	return p.askedSettings(ctx, topic, p.topic(topic))
}
