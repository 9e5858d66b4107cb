package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Each settlement calls the engine once, with the operation of the equivalent RPC for the
// middleware, and has the response of openapi.yaml.
func TestSettlements(t *testing.T) {
	t.Parallel()
	again := transport.RetryResult{Fate: transport.FateAgain, Delay: 30 * time.Second}
	for name, c := range map[string]struct {
		do      func(*env) messageHandler
		body    string
		settled transport.RetryResult
		call    string // to the engine
		op      string // for the middleware
		status  int
		want    string // the response
	}{
		"release":                 {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h","invisible_duration":"0s"}`, again, "change g h 0s", "ChangeInvisibleDuration", 200, `"handle":"next"`},
		"longer":                  {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h","invisible_duration":"1m"}`, again, "change g h 1m0s", "ChangeInvisibleDuration", 200, `"invisible_until":`},
		"snooze":                  {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h","delay":"5s"}`, again, "Snooze g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 204, `null`},
		"retry after":             {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s","reason":"r"}`, again, "Retry g h attempt 0 delay 5s: r", "ChangeInvisibleDuration", 200, `{"fate":"again","delay":"30s"}`},
		"retry by attempt":        {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","attempt":3}`, again, "Retry g h attempt 3 delay 30s: ", "ChangeInvisibleDuration", 200, `{"fate":"again","delay":"30s"}`},
		"last retry":              {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{Fate: transport.FateDeadLetter}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{"fate":"dead_letter"}`},
		"last retry of a group":   {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{Fate: transport.FateParked}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{"fate":"parked"}`},
		"retry of a finished one": {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{}`},
		"dead letter":             {func(e *env) messageHandler { return e.DeadLetter }, `{"handle":"h","reason":"bad","attempt":2}`, transport.RetryResult{Fate: transport.FateDeadLetter}, "DeadLetter g h attempt 2 delay 0s: bad", "ForwardMessageToDeadLetterQueue", 200, `{"fate":"dead_letter"}`},
		"negative":                {func(e *env) messageHandler { return e.NegativeAcknowledge }, `{"handle":"h","delay":"5s"}`, again, "NegativeAck g h attempt 0 delay 5s: ", "NegativeAck", 200, `{"fate":"again","delay":"30s"}`},
		"later by level":          {func(e *env) messageHandler { return e.ReconsumeLater }, `{"handle":"h","level":2}`, again, "later g h delay 0s level 2", "ReconsumeLater", 200, ""},
		"recall":                  {func(e *env) messageHandler { return e.RecallMessage }, `{"recall_handle":"r"}`, again, "recall t r", "RecallMessage", 200, `{"id":"id"}`},
	} {
		e := newEnv(t)
		e.engine.settled = c.settled
		status, body, err := e.call(c.do(e), c.body)
		if err != nil || status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, %v; want %d %s", name, status, body, err, c.status, c.want)
		}
		if got := strings.Join(e.engine.calls, ", "); got != c.call {
			t.Errorf("%s: the engine got %q, want %q", name, got, c.call)
		}
		if len(e.server.calls) != 1 || e.server.calls[0].Op != c.op {
			t.Errorf("%s: the middleware got %+v, want one call of %s", name, e.server.calls, c.op)
		}
	}
}

// An invalid request has the code of its fault and does not reach the engine.
func TestInvalidSettlements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(*env) messageHandler
		body string
		want tidegate.Code
	}{
		"no body":                     {func(e *env) messageHandler { return e.Retry }, ``, tidegate.CodeBadRequest},
		"an unknown key":              {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","x":1}`, tidegate.CodeBadRequest},
		"no invisible duration":       {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h"}`, tidegate.CodeIllegalInvisibleTime},
		"no delay of a snooze":        {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h"}`, tidegate.CodeIllegalInvisibleTime},
		"a delay and an attempt":      {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"1s","attempt":1}`, tidegate.CodeBadRequest},
		"a negative attempt":          {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","attempt":-1}`, tidegate.CodeBadRequest},
		"no handles":                  {func(e *env) messageHandler { return e.Acknowledge }, `{"handles":[]}`, tidegate.CodeBadRequest},
		"handles of the wrong type":   {func(e *env) messageHandler { return e.Acknowledge }, `{"handles":"h"}`, tidegate.CodeBadRequest},
		"a duration without its unit": {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h","delay":"5"}`, tidegate.CodeBadRequest},
	} {
		e := newEnv(t)
		if status, body, err := e.call(c.do(e), c.body); codeOfMessages(err) != c.want {
			t.Errorf("%s: %d %s, %v; want code %d", name, status, body, err, c.want)
		}
		if len(e.engine.calls)+len(e.server.calls) > 0 {
			t.Errorf("%s: it reached the engine: %q", name, e.engine.calls)
		}
	}
}

// A retry without a delay or an attempt is an error for an unknown group, which has no interval.
func TestRetryByTheIntervalNeedsTheGroup(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.engine.failing["group g"] = &tidegate.Error{Code: tidegate.CodeConsumerGroupNotFound}
	if _, _, err := e.call(e.Retry, `{"handle":"h"}`); codeOfMessages(err) != tidegate.CodeConsumerGroupNotFound {
		t.Errorf("%v, want code %d", err, tidegate.CodeConsumerGroupNotFound)
	}
	if _, _, err := e.call(e.Retry, `{"handle":"h","after":"1s"}`); err != nil {
		t.Errorf("with a delay: %v", err)
	}
}

// A negative or zero delay of a retry reaches the engine as a delay, which rejects it. It never
// means the group's interval.
func TestShortDelaysAreNotTheInterval(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"-1s", fmt.Sprint(int64(transport.BySchedule)) + "ns"} {
		e := newEnv(t)
		if _, _, err := e.call(e.Retry, `{"handle":"h","after":"`+after+`"}`); err != nil {
			t.Fatal(after, err)
		}
		if got := e.engine.calls[0]; strings.Contains(got, "delay "+transport.BySchedule.String()+":") {
			t.Errorf("%s: %s", after, got)
		}
	}
}

// Each handle of an acknowledgement has its own result: 200 if all succeeded, 207 if some failed,
// and the error of all if they have the same code.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failing []string
		status  int
		code    tidegate.Code
	}{
		"all succeeded": {nil, 200, 0},
		"one failed":    {[]string{"b"}, 207, 0},
		"all failed":    {[]string{"a", "b", "c"}, 200, tidegate.CodeInvalidReceiptHandle},
	} {
		e := newEnv(t)
		for _, h := range c.failing {
			e.engine.failing[h] = &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
		}
		status, body, err := e.call(e.Acknowledge, `{"handles":["a","b","c"]}`)
		if codeOfMessages(err) != c.code || err == nil && status != c.status {
			t.Errorf("%s: %d, %v; want %d, code %d", name, status, err, c.status, c.code)
		}
		if err == nil && strings.Count(body, `"error"`) != len(c.failing) {
			t.Errorf("%s: %s", name, body)
		}
		if got := strings.Join(e.engine.calls, ", "); got != "ack g a, ack g b, ack g c" {
			t.Errorf("%s: the engine got %q", name, got)
		}
	}
}
