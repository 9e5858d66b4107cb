package producer_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The client's MaxAttempts wins over the server's.
//
// RocketMQ: sending retry and throttling: "You can specify the maximum number of retries on the
// producer when the producer initializes messages"
func TestEffectivePrecedence(t *testing.T) {
	pushed := transport.ProducerSettings{
		MaxAttempts: 7, MaxBodySize: 1000,
		Backoff: backoff.Exponential{Initial: 10 * time.Millisecond, Multiplier: 2, Jitter: backoff.NoJitter, Max: time.Second},
	}
	own := backoff.Steps{time.Minute}
	for _, tt := range []struct {
		name   string
		opts   producer.Options
		pushed transport.ProducerSettings
		want   producer.Settings
	}{
		{"default", producer.Options{}, transport.ProducerSettings{},
			producer.Settings{3, "default", backoff.Default(), "default", tidegate.MaxBodySize, "default"}},
		{"server", producer.Options{}, pushed,
			producer.Settings{7, "server", pushed.Backoff, "server", 1000, "server"}},
		{"client", producer.Options{MaxAttempts: 2, Backoff: own, MaxBodySize: 10}, pushed,
			producer.Settings{2, "client", own, "client", 10, "client"}},
		{"client, the rest by default", producer.Options{Backoff: backoff.Exponential{Max: time.Minute}}, transport.ProducerSettings{},
			producer.Settings{3, "default", backoff.Exponential{
				Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: time.Minute, MinConnectTimeout: 20 * time.Second,
			}, "client", tidegate.MaxBodySize, "default"}},
		{"mixed", producer.Options{MaxAttempts: 2}, transport.ProducerSettings{MaxBodySize: 1000},
			producer.Settings{2, "client", backoff.Default(), "default", 1000, "server"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &transporttest.Fake{OnProducerSettings: func(context.Context, int, string) (transport.ProducerSettings, error) {
				return tt.pushed, nil
			}}
			got, err := newProducer(t, f, tt.opts).Effective(t.Context(), "orders")
			if tt.want.BackoffFrom == "server" { // the producer wraps it
				for n := range 10 {
					if d, want := got.Backoff.Delay(n), tt.want.Backoff.Delay(n); d != want {
						t.Errorf("delay %d is %v, want %v", n, d, want)
					}
				}
				got.Backoff = tt.want.Backoff
			}
			assert.That(t, err == nil && reflect.DeepEqual(got, tt.want), "got %+v, %v\nwant %+v", got, err, tt.want)
		})
	}
}

func TestServerSettingsDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(throttled(0))
		f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
			return transport.ProducerSettings{MaxAttempts: 5, Backoff: backoff.Steps{10 * time.Millisecond, 20 * time.Millisecond}}, nil
		}
		_, err := newProducer(t, f, producer.Options{}).Send(t.Context(), message())
		e := sendError(t, err)
		assert.That(t, e.Attempts == 5 && e.MaxAttempts == 5, "got %+v", e)
		const ms = time.Millisecond
		if got, want := gaps(f), []time.Duration{10 * ms, 20 * ms, 20 * ms, 20 * ms}; !reflect.DeepEqual(got, want) {
			t.Errorf("gaps %v, want %v", got, want)
		}
		f = always(throttled(0))
		f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
			return transport.ProducerSettings{MaxAttempts: 1}, nil
		}
		_, err = newProducer(t, f, producer.Options{MaxAttempts: 4}).Send(t.Context(), message())
		assert.Equal(t, "the server's 1 beat the client's 4", sendError(t, err).Attempts, 4)
	})
}

// A caller that gives up gets an error of its own; the next one queries again.
func TestCallerThatGivesUpSpoilsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script()
		f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			select {
			case <-ctx.Done():
				return transport.ProducerSettings{}, context.Cause(ctx)
			case <-time.After(100 * time.Millisecond):
				return transport.ProducerSettings{MaxAttempts: 7}, nil
			}
		}
		p := newProducer(t, f, producer.Options{})
		ctx := within(t, 10*time.Millisecond)
		if s, err := p.Effective(ctx, "orders"); !errors.Is(err, context.DeadlineExceeded) || s.MaxAttempts != 3 {
			t.Errorf("Effective of a caller that gives up: %+v, %v", s, err)
		}
		s, err := p.Effective(t.Context(), "orders")
		assert.That(t, err == nil && s.MaxAttempts == 7, "Effective after it: %+v, %v", s, err)
	})
}

// If asking takes longer than the backoff, the next attempt comes as soon as that is over, and
// Attempt.Delay is the time that passed. The backoff has no jitter: half of the draws would hide a
// fault.
func TestAskingLongerThanTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(throttled(0), throttled(0))
		f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		var told []time.Duration
		p := newProducer(t, f, producer.Options{
			Backoff: backoff.Exponential{Initial: 400 * time.Millisecond, Multiplier: 1, Jitter: backoff.NoJitter, Max: 400 * time.Millisecond},
			OnAttempt: func(a producer.Attempt) {
				if a.Err != nil {
					told = append(told, a.Delay)
				}
			},
		})
		assert.Must(t, assert.Err(p.Send(t.Context(), message())))
		// A send waits at most a second for the settings. The producer does not request them again
		// for 5 s.
		want := []time.Duration{time.Second, 400 * time.Millisecond}
		if gaps := gaps(f); !slices.Equal(gaps, want) || !slices.Equal(told, want) {
			t.Errorf("gaps %v, reported %v; want %v", gaps, told, want)
		}
	})
}

func TestSettingsAreQueriedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail error
		f := always(codeError(tidegate.CodeInternalServerError))
		f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
			time.Sleep(100 * time.Millisecond)
			return transport.ProducerSettings{MaxAttempts: 2}, fail
		}
		p := newProducer(t, f, producer.Options{})
		burst := func(wantAttempts int) {
			t.Helper()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					_, err := p.Send(t.Context(), message())
					assert.Equal(t, "got attempts", sendError(t, err).Attempts, wantAttempts)
				})
			}
			wg.Wait()
			time.Sleep(time.Second) // for the response
		}
		burst(3) // after a failure nothing waits for a response
		burst(2)
		assert.Equal(t, "asked times", len(f.Calls("ProducerSettings")), 1)
		time.Sleep(30 * time.Second)
		fail = errors.New("gone")
		burst(2) // the settings that were read before still apply
		assert.Equal(t, "asked times", len(f.Calls("ProducerSettings")), 2)
		s, err := p.Effective(t.Context(), "orders")
		assert.That(t, errors.Is(err, fail) && s.MaxAttempts == 2 && s.MaxAttemptsFrom == "server", "Effective: %+v, %v", s, err)
		time.Sleep(5 * time.Second)
		fail = nil
		s, err = p.Effective(t.Context(), "orders")
		assert.That(t, err == nil && s.MaxAttempts == 2 && len(f.Calls("ProducerSettings")) == 3, "Effective: %+v, %v", s, err)
	})
}

func TestBodyAboveTheDefaultQueriesTheSettings(t *testing.T) {
	f := &transporttest.Fake{OnProducerSettings: func(context.Context, int, string) (transport.ProducerSettings, error) {
		return transport.ProducerSettings{MaxBodySize: 8 << 20}, nil
	}}
	for name, opts := range map[string]producer.Options{
		"nothing set": {},
		// Their settings need no server, the body's limit does.
		"attempts and backoff set": {MaxAttempts: 2, Backoff: backoff.Steps{time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProducer(t, f, opts)
			msg := message()
			msg.Body = make([]byte, 5<<20)
			assert.NoError(t, assert.Err(p.Send(t.Context(), msg)))
			msg.Body = make([]byte, 9<<20)
			if _, err := p.Send(t.Context(), msg); !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "8388608") {
				t.Errorf("got %v, want the server's limit", err)
			}
		})
	}
}

// The producer does not reject a message as invalid because the request for the settings fails:
// because the server is away, or because the caller or the producer ends meanwhile.
func TestBodyAboveTheDefaultInAnOutage(t *testing.T) {
	unavailable := &tidegate.Error{Op: "QueryRoute", Err: tidegate.ErrUnavailable}
	tooLarge := codeError(tidegate.CodeMessageBodyTooLarge)
	silent := func(ctx context.Context) (transport.ProducerSettings, error) {
		<-ctx.Done()
		return transport.ProducerSettings{}, context.Cause(ctx)
	}
	refuse := func(context.Context) (transport.ProducerSettings, error) {
		return transport.ProducerSettings{}, unavailable
	}
	for name, tt := range map[string]struct {
		settings func(context.Context) (transport.ProducerSettings, error)
		send     error
		msg      tidegate.Message
		ends     func(*producer.Producer, context.CancelFunc)
		reason   producer.StopReason
		attempts int
		is       error
	}{
		"away":              {settings: refuse, send: unavailable, reason: producer.StopExhausted, attempts: 3, is: tidegate.ErrUnavailable},
		"silent":            {settings: silent, send: unavailable, reason: producer.StopExhausted, attempts: 3, is: tidegate.ErrUnavailable},
		"back, and refuses": {settings: refuse, send: tooLarge, reason: producer.StopPermanent, attempts: 1, is: tidegate.ErrInvalid},
		"another fault":     {settings: refuse, msg: tidegate.Message{Tag: "a|b"}, reason: producer.StopInvalid, is: tidegate.ErrInvalid},
		"the caller ends":   {settings: silent, ends: func(_ *producer.Producer, cancel context.CancelFunc) { cancel() }, reason: producer.StopContext, is: context.Canceled},
		"the producer ends": {settings: silent, ends: func(p *producer.Producer, _ context.CancelFunc) { go p.Close() }, reason: producer.StopClosed, is: tidegate.ErrClosed},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := always(tt.send)
			f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
				return tt.settings(ctx)
			}
			p := newProducer(t, f, producer.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.ends != nil {
				time.AfterFunc(100*time.Millisecond, func() { tt.ends(p, cancel) })
			}
			tt.msg.Topic, tt.msg.Body = "orders", make([]byte, 5<<20)
			began := time.Now()
			_, err := p.Send(ctx, &tt.msg)
			if took := time.Since(began); tt.ends != nil && took != 100*time.Millisecond {
				t.Errorf("Send returned after %v, want it at the end of the caller or the producer", took)
			}
			if e := sendError(t, err); e.Reason != tt.reason || e.Attempts != tt.attempts || !errors.Is(err, tt.is) {
				t.Errorf("%v: reason %v after %d attempts, want %v after %d", err, e.Reason, e.Attempts, tt.reason, tt.attempts)
			}
		})
	}
}

// New reports the fault of each field of Options, alone and together with the others. The test
// reads the fields from the struct, so a new field needs a check.
func TestNewReportsAllFaults(t *testing.T) {
	var all producer.Options
	for f, field := range reflect.ValueOf(&all).Elem().Fields() {
		var one producer.Options
		v := reflect.ValueOf(&one).Elem().FieldByIndex(f.Index)
		switch {
		case f.Type == reflect.TypeFor[ratelimit.Priority]():
			continue // every value is valid
		case v.CanInt():
			v.SetInt(-9)
		case f.Type == reflect.TypeFor[backoff.Policy]():
			v.Set(reflect.ValueOf(backoff.Steps{-9}))
		case f.Type.Kind() == reflect.Interface || f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Func:
			continue // every value is valid
		default:
			t.Fatalf("Options.%s: the test knows no invalid %v", f.Name, f.Type)
		}
		field.Set(v)
		_, err := producer.New(each(nil), one)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), f.Name),
			"Options.%s = %v: %v, want an invalid field", f.Name, v, err)
	}
	_, err := producer.New(each(nil), all)
	for f := range reflect.TypeFor[producer.Options]().Fields() {
		v := reflect.ValueOf(all).FieldByIndex(f.Index)
		assert.That(t, v.IsZero() || strings.Contains(err.Error(), f.Name+`"`), "%q lacks %s", err, f.Name)
	}
	for _, o := range []producer.Options{{WhenFull: 8}, {WhenFull: producer.SpoolWhenFull}, {Backoff: backoff.Exponential{Initial: -1}}} {
		_, err := producer.New(each(nil), o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v does not match ErrInvalid", o, err)
	}
	assert.Is(t, "nil transport", assert.Err(producer.New(nil, producer.Options{})), tidegate.ErrInvalid)
}

// Effective requests the settings again when the last response is 30 s old, or 5 s after a failure.
func TestAgeOfSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error // of the first request
		age  time.Duration
	}{
		{"a response", nil, 30 * time.Second},
		{"a failure", errors.New("connection refused"), 5 * time.Second},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			f := each(nil)
			f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
				return transport.ProducerSettings{MaxAttempts: 7}, tt.err
			}
			p := newProducer(t, f, producer.Options{})
			begin := time.Now()
			for _, step := range []struct {
				at       time.Duration
				requests int
			}{{0, 1}, {tt.age - time.Millisecond, 1}, {tt.age, 2}} {
				time.Sleep(step.at - time.Since(begin))
				_, err := p.Effective(t.Context(), "orders")
				assert.That(t, errors.Is(err, tt.err), "Effective: %v, want %v", err, tt.err)
				n := len(f.Calls("ProducerSettings"))
				assert.That(t, n == step.requests, "%d requests after %v, want %d", n, step.at, step.requests)
			}
		})
	}
}

// Many sends that fail in one moment request the settings in one goroutine.
func TestOneGoroutineRenewsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		respond := make(chan struct{})
		f := always(codeError(tidegate.CodeInternalServerError))
		f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
			<-respond
			return transport.ProducerSettings{}, errors.New("connection refused")
		}
		p := newProducer(t, f, producer.Options{})
		before := bubbled()
		fail := func(sends int) {
			for range sends {
				assert.Must(t, p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {}))
			}
			synctest.Wait()
		}
		fail(100)
		n := bubbled() - before
		assert.That(t, n <= 1, "%d goroutines request the settings, want one", n)
		close(respond)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		fail(1)
		assert.Equal(t, "requests", len(f.Calls("ProducerSettings")), 2)
	})
}

func TestPreview(t *testing.T) {
	steps := backoff.Steps{time.Second, 2 * time.Second}
	for name, tt := range map[string]struct {
		opts    producer.Options
		retries int
		total   time.Duration
	}{
		"default attempts": {producer.Options{Backoff: steps}, 2, 3 * time.Second},
		"attempts":         {producer.Options{Backoff: steps, MaxAttempts: 5}, 4, 7 * time.Second},
		"throttles":        {producer.Options{Backoff: steps, MaxThrottles: 3}, 3, 5 * time.Second},
		"throttle time":    {producer.Options{Backoff: steps, MaxThrottleTime: 6 * time.Second}, 3, 5 * time.Second},
		"until ctx ends":   {producer.Options{Backoff: steps, MaxThrottles: producer.UntilContextEnds}, 10, 19 * time.Second},
		"one attempt":      {producer.Options{Backoff: steps, MaxAttempts: 1}, 0, 0},
		"no bounds known":  {producer.Options{Backoff: constant(time.Second)}, 2, 2 * time.Second},
	} {
		got := tt.opts.Preview()
		assert.That(t, len(got) == tt.retries && (len(got) == 0 || got[len(got)-1].TotalHi == tt.total),
			"%s: %v, want %d retries in %v", name, got, tt.retries, tt.total)
	}
}

// A preview has every retry that can be within MaxThrottleTime, also if that takes the shortest
// waits.
func TestPreviewCountsTheShortestWaits(t *testing.T) {
	o := producer.Options{MaxThrottleTime: 3 * time.Second, Backoff: backoff.Exponential{Initial: time.Second, Multiplier: 1, Jitter: 0.5}}
	got := o.Preview() // each wait takes 0.5 s to 1.5 s
	assert.That(t, len(got) == 6 && got[5].TotalLo == 3*time.Second && got[5].TotalHi == 9*time.Second,
		"%v, want 6 retries in 3 s to 9 s", got)
}
