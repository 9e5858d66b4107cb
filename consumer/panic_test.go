package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// RocketMQ: consumption retry: "Unexpected exceptions are also captured by the SDK"
// RocketMQ: consumption retry: "A message fails to be consumed. In this case, the consumer returns
// a failure status or the system throws an exception"
func TestPanicsAreFailures(t *testing.T) {
	cause := errors.New("an error as a panic")
	var nothing any
	returns := func(err error) consumer.Handler {
		return func(context.Context, *tidegate.Delivery) error { return err }
	}
	panics := func(v any) consumer.Handler { return func(context.Context, *tidegate.Delivery) error { panic(v) } }
	for name, tt := range map[string]struct {
		handler consumer.Handler
		text    string
	}{
		"panic":  {panics(cause), "handler panicked: an error as a panic"},
		"nil":    {panics(nothing), "handler panicked: panic called with nil argument"},
		"Goexit": {func(context.Context, *tidegate.Delivery) error { runtime.Goexit(); return nil }, "handler panicked: runtime.Goexit was called"},
		"typed nil": {returns((*fs.PathError)(nil)),
			"handler panicked: the error returned, <nil> of type *fs.PathError, has no readable text: runtime error: invalid memory address"},
		"an error that panics": {returns(awkward{"boom"}),
			"handler panicked: the error returned, %!v(PANIC=Error method: boom) of type consumer_test.awkward, has no readable text: boom"},
		"an error that panics with itself": {returns(awkward{}),
			"handler panicked: the error returned, a consumer_test.awkward of type consumer_test.awkward, has no readable text: a consumer_test.awkward"},
		"panic with a typed nil":               {panics((*fs.PathError)(nil)), "handler panicked: <nil>"},
		"panic with an error that panics":      {panics(awkward{"boom"}), "handler panicked: %!v(PANIC=Error method: boom)"},
		"panic with one that panics on itself": {panics(awkward{}), "handler panicked: a consumer_test.awkward"},
		"an error that ends the goroutine": {returns(deadly{}),
			"handler panicked: the error returned, of type consumer_test.deadly, has no readable text: runtime.Goexit was called"},
		"panic with one that ends the goroutine": {panics(deadly{}), "handler panicked: a consumer_test.deadly"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.fill(1)
				var seen outcomes
				stop := start(t, s, consumer.Subscription{}, tt.handler, consumer.PushOptions{OnDelivery: seen.add})
				time.Sleep(15 * time.Second)
				stop()
				if len(seen.list) != 2 || !reflect.DeepEqual(s.retries[0], retryCall{"m0", 1, 10 * time.Second}) || seen.list[0].Disposition != consumer.Retried || seen.list[0].Delay != 10*time.Second {
					t.Fatalf("outcomes %+v", seen.list)
				}
				e, ok := seen.list[0].Err.(*consumer.PanicError)
				if !ok || !strings.HasPrefix(e.Error(), tt.text) || !strings.Contains(string(e.Stack), "worker.go") {
					t.Errorf("error %v", seen.list[0].Err)
				}
				if name == "panic" && (!errors.Is(e, cause) || !strings.Contains(string(e.Stack), "panic_test.go")) {
					t.Errorf("%v does not wrap the panic's error, or has not the handler's stack", e)
				}
			})
		})
	}
}

// An awkward error panics in its Error method, with itself if it has none.
type awkward struct{ text string }

func (e awkward) Error() string {
	if e.text == "" {
		panic(e)
	}
	panic(e.text)
}

// A deadly error ends the goroutine that asks it for its text, as a mock does
// that calls the FailNow of a test.
type deadly struct{}

func (deadly) Error() string { runtime.Goexit(); return "" }

// The text of an error is needed at the last attempt, and by DeadLetter.
func TestAwkwardErrorsAsDeadLetters(t *testing.T) {
	for _, err := range []error{(*fs.PathError)(nil), awkward{"boom"}, consumer.DeadLetterNow(awkward{"boom"}), consumer.DeadLetterNow((*fs.PathError)(nil))} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.settings.MaxAttempts = 2
			s.fill(1)
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return err }, consumer.PushOptions{})
			time.Sleep(time.Minute)
			stop()
			if text := s.dead["m0"]; !strings.Contains(text, "has no readable text") || len(s.retries) != 1 {
				t.Errorf("%T: dead letters %q after %d retries, want a failure like any other", err, s.dead, len(s.retries))
			}
		})
	}
}

// The delivery belongs to the handler: its changes, at any time, do not affect decisions,
// settlements or the log.
func TestHandlerMayChangeItsDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.settings.MaxAttempts = 3
		s.fill(1)
		s.onChange = func(*tidegate.Delivery) error { return errors.New("connection lost") } // which is logged
		var log bytes.Buffer
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			for range 25 {
				*d = tidegate.Delivery{Message: tidegate.Message{ID: "mine", Topic: "mine"}, Attempt: 99}
				time.Sleep(time.Second)
			}
			panic("mine it is")
		}, consumer.PushOptions{OnDelivery: seen.add, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(29 * time.Second)
		stop()
		if o := seen.all()[0]; o.Disposition != consumer.Retried || o.Delivery.Attempt != 1 || o.Delivery.ID != "m0" || len(s.dead) != 0 {
			t.Errorf("outcome %+v, dead letters %q", o, s.dead)
		}
		if text := log.String(); !strings.Contains(text, "connection lost") || strings.Contains(text, "<nil>") || strings.Contains(text, "message_id=mine") {
			t.Errorf("logged %s", text)
		}
	})
}

func TestObserverThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(30)
		var log bytes.Buffer
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Concurrency: 1, OnDelivery: func(consumer.Outcome) { panic(awkward{}) }, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		synctest.Wait()
		if err := stop(); err != nil || s.left() != 0 || !strings.Contains(log.String(), `"panic":"a consumer_test.awkward"`) {
			t.Errorf("Run: %v, %d messages left, logged %s", err, s.left(), log.String())
		}
	})
}
