package server

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
)

// The status over HTTP is that of the code where HTTP means the same by it.
func TestProblemStatus(t *testing.T) {
	for code, want := range map[tidegate.Code]int{
		40000: 400, 40018: 400, 40100: 401, 40200: 402, 40300: 403, 40402: 404, 40800: 408, 41301: 413, 42800: 412, 42900: 429, 42901: 429, 43101: 431,
		50001: 500, 50100: 501, 50401: 504,
		50500: 501, 50501: 501, 50502: 501, // HTTP's 505 is about HTTP itself
		60000: 500, 20001: 500,
	} {
		p := problemOf(&tidegate.Error{Code: code, Message: "x"})
		if p.Status != want || p.Code != int(code) {
			t.Errorf("code %d: status %d, code %d; want status %d", code, p.Status, p.Code, want)
		}
		if wait := p.RetryAfter; (wait != 0) != (want == 429) {
			t.Errorf("code %d: Retry-After %v", code, wait)
		}
	}
	if p := problemOf(&tidegate.Error{Code: 42900, RetryAfter: time.Minute}); p.RetryAfter != settings.Duration(time.Minute) {
		t.Errorf("an estimate of 1m is returned as %v", p.RetryAfter)
	}
}

// An error of readiness names its cause and matches it.
func TestNotReady(t *testing.T) {
	cause := errors.New("the log is broken")
	err := error(&notReady{cause})
	if err.Error() != "not ready: the log is broken" || !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if p := problemOf(err); p.Status != 503 {
		t.Errorf("problem %+v, want status 503", p)
	}
}
