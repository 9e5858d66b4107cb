package guard_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
)

type broken struct{}

func (broken) Delay(n int) time.Duration { return []time.Duration{time.Minute}[n] }

// Each kind of function has its result in place of a panic, and the panic is reported once.
func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		report := func(function string, value any, stack []byte) {
			if !strings.Contains(string(stack), "guard_test.go") {
				t.Errorf("the stack has not the place of the panic:\n%s", stack)
			}
			reports = append(reports, function)
		}
		p := guard.Policy("Retry", broken{}, report)
		if got := p.Delay(0); got != time.Minute {
			t.Errorf("Delay(0) = %v, want that of the policy", got)
		}
		if got := p.Delay(1); got != time.Second {
			t.Errorf("Delay(1) = %v, want 1 s", got)
		}
		start := time.Now()
		if err := guard.Wait(t.Context(), "Limiter", report, func() error { panic("no tokens") }); err != nil || time.Since(start) != time.Second {
			t.Errorf("Wait returned %v after %v, want nil after 1 s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.ErrUnsupported)
		defer cancel()
		if err := guard.Wait(ctx, "Limiter", report, func() error { panic("no tokens") }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Wait returned %v, want the cause of the end of ctx", err)
		}
		dial := guard.Dial("Dialer", func(context.Context, string) (net.Conn, error) { panic("no network") }, report)
		if conn, err := dial(t.Context(), "a:1"); conn != nil || err == nil || !strings.Contains(err.Error(), "Dialer panicked: no network") {
			t.Errorf("the dialer returned %v, %v", conn, err)
		}
		if got := strings.Join(reports, " "); got != "Retry Limiter Limiter Dialer" { //nolint:dupword // two reports of the limiter
			t.Errorf("reported %s", got)
		}
		if err := guard.Error("f", nil, func() error { return errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v, want the error of the function", err)
		}
	})
}

func TestNothingToGuard(t *testing.T) {
	if guard.Policy("", nil, nil) != nil || guard.Dial("", nil, nil) != nil {
		t.Error("nil has a guard")
	}
	if p, ok := guard.Policy("", backoff.Steps{1}, nil).(backoff.Steps); !ok || p[0] != 1 {
		t.Error("a policy of package backoff is not itself")
	}
}
