package producer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A logBuffer collects lines of several goroutines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count returns the number of lines, and of those with a text.
func (b *logBuffer) count(text string) (lines, with int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), "\n"), strings.Count(b.text.String(), text)
}

// Repeated events, for example of every message, are logged in one line at once and then in one
// line a minute. The end of the producer logs the last of them.
func TestLinesAreBounded(t *testing.T) {
	const messages = 500
	panics := func(context.Context, transport.TransactionCheck) transport.Resolution { panic("by the test") }
	for text, tt := range map[string]struct {
		opts Options
		step func(t *testing.T, p *Producer)
	}{
		"transaction not resolved": {Options{Checker: panics, MaxAttempts: 1}, func(t *testing.T, p *Producer) {
			if _, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return nil }); err != nil {
				t.Error(err)
			}
		}},
		"Options.Checker panicked": {Options{Checker: panics}, func(t *testing.T, p *Producer) {
			_, _ = p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return errors.New("rolled back") })
		}},
		"OnAttempt panicked": {Options{OnAttempt: func(Attempt) { panic("by the test") }}, func(t *testing.T, p *Producer) {
			_, _ = p.Send(t.Context(), message())
		}},
		"the function given to SendAsync panicked": {Options{}, func(t *testing.T, p *Producer) {
			_ = p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { panic("by the test") })
		}},
		"draining the spool failed": {Options{Spool: brokenSpool{}}, func(*testing.T, *Producer) {}},
	} {
		for name, end := range map[string]func(p *Producer){
			"Close":    func(p *Producer) { _ = p.Close() },
			"Shutdown": func(p *Producer) { _, _ = p.Shutdown(context.Background()) },
		} {
			t.Run(text+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log logBuffer
					tt.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
					f := &txFake{end: func(context.Context, int, transport.Resolution) error { return codeError(tidegate.CodeBadRequest) }}
					p := newProducer(t, f, tt.opts)
					for range messages {
						tt.step(t, p)
						time.Sleep(time.Second / 2)
					}
					_, minutes := log.count(text)
					end(p)
					lines, with := log.count(text)
					if lines != with || with > 6 || with != minutes+1 {
						t.Errorf("%d of %d lines are about %d events in 250 s, and %d before the end; want at most 6, and the last at the end", with, lines, messages, minutes)
					}
				})
			})
		}
	}
}

// The lines of the debug level about throttled sends are bounded too: a throttled producer sends
// on, and its server may not have settings for as long.
func TestThrottledSendsWithoutSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			send: func(context.Context, int, *tidegate.Message) error { return throttled(0) },
			settings: func(context.Context) (transport.ProducerSettings, error) {
				return transport.ProducerSettings{}, errors.New("none")
			},
		}
		var log logBuffer
		p := newProducer(t, f, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		for range 100 {
			_, _ = p.Send(t.Context(), message())
		}
		_ = p.Close()
		sends, minutes := len(f.calls), int(time.Since(f.calls[0])/time.Minute)
		if _, with := log.count("continues without the settings"); with < 2 || with > minutes+2 {
			t.Errorf("%d lines about %d throttled sends within %d minutes, want one a minute", with, sends, minutes)
		}
	})
}

// A brokenSpool cannot be drained.
type brokenSpool struct{ readySpool }

func (brokenSpool) Drain(context.Context, func(context.Context, []*tidegate.Message) []error) error {
	return errors.New("by the test")
}
