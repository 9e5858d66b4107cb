package verdict

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// maxReason bounds the reason of a dead letter, in bytes. The reason travels with the message, so
// it must not grow with stack traces and quoted input.
const maxReason = 1024

// A Failure is the content of a handler's error. Methods of the error can panic, for example those
// of a typed nil, or end the goroutine. The error is therefore read once, on the handler's
// goroutine, and all decisions use the Failure.
type Failure struct {
	Reason     string // of the dead letter
	DeadLetter bool   // the handler returned DeadLetterNow
	RetryIn    bool   // the handler returned RetryIn; see Delay
	Snooze     bool   // the handler returned Snooze; see Delay
	Delay      time.Duration
	Reconsume  *transport.Verdict // the handler returned Reconsume: a RetryTopic or a NegativeAck
}

// Read returns the content of err, nil if err is nil.
func Read(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Reason: reason(err)}
	_, f.DeadLetter = errors.AsType[*DeadLetter](err)
	if ra, ok := errors.AsType[*RetryIn](err); ok {
		f.RetryIn, f.Delay = true, ra.Delay
	}
	if sn, ok := errors.AsType[*Snooze](err); ok {
		f.Snooze, f.Delay = true, sn.Delay
	}
	if re, ok := errors.AsType[*Reconsume](err); ok && re.Verdict.Kind > transport.Snooze && bits.OnesCount(uint(re.Verdict.Kind)) == 1 {
		f.Reconsume = &re.Verdict
	}
	return f
}

// Show is fmt.Sprint of a value whose methods may panic.
func Show(v any) (text string) {
	defer func() {
		if recover() != nil { // fmt recovers too, but prints the panic
			text = fmt.Sprintf("a %T", v)
		}
	}()
	return fmt.Sprint(v)
}

// reason is the text of err as the property of a dead letter: bounded, valid UTF-8, one line.
func reason(err error) string {
	text := err.Error()
	if len(text) > 2*maxReason {
		text = text[:2*maxReason] // before the work on each rune
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if text = strings.TrimSpace(text); text == "" {
		return "the handler returned an error without a text"
	}
	if len(text) > maxReason {
		cut := maxReason
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}

// Goexit is the failure of a handler whose goroutine ended without a panic. No function can prevent
// that.
const Goexit = "runtime.Goexit was called"

// Unreadable describes an error whose methods panicked with v, or ended the
// goroutine if that is nil.
func Unreadable(err error, v any) string {
	if v == nil {
		return fmt.Sprintf("the error returned, of type %T, has no readable text: %s", err, Goexit)
	}
	return fmt.Sprintf("the error returned, %s of type %T, has no readable text: %s", Show(err), err, Show(v))
}

// CredentialsGrace is the time for which a server may reject the credentials before that ends a
// consumer. Servers that start, and proxies whose keys are being replaced, reject them for a while.
const CredentialsGrace = time.Minute

// An Ending is the effect of a failure to receive on a consumer.
type Ending int

// The endings.
const (
	never  Ending = iota // the failure passes, or an operator cures it
	graced               // it ends the consumer if it lasts longer than CredentialsGrace
	AtOnce
)

// EndingOf returns the effect of a failure to receive. Only bad arguments, which the program has to
// change, and the transport's Close end a consumer at once. Every other code may pass: a paused
// RocketMQ proxy returns 40018, an ingress without a backend UNIMPLEMENTED, and missing topics are
// created.
func EndingOf(err error) Ending {
	if errors.Is(err, tidegate.ErrClosed) {
		return AtOnce
	}
	switch code := Code(err); {
	case code == protocol.CodeIllegalTopic, code == protocol.CodeIllegalConsumerGroup,
		code == protocol.CodeIllegalFilterExpression, code == protocol.CodeIllegalInvisibleTime:
		return AtOnce
	case code/100 == 401, code/100 == 403: // those of ErrUnauthorized and ErrForbidden
		return graced
	}
	return never
}

// Refusals decide when failures to receive end a consumer. The zero value is ready. The grace
// begins anew after a success and after a failure of another kind.
type Refusals struct {
	since time.Time // when the credentials were rejected first; zero while they are not
}

// Failed notes a failure at now, and reports whether it ends the consumer.
func (r *Refusals) Failed(err error, now time.Time) (end bool) {
	switch EndingOf(err) {
	case AtOnce:
		return true
	case graced:
		if r.since.IsZero() {
			r.since = now
		}
		return r.Lasting(now)
	}
	r.since = time.Time{} // during an outage it is not known whether the credentials are accepted
	return false
}

// Lasting reports whether the credentials have been rejected for longer than the grace.
func (r *Refusals) Lasting(now time.Time) bool {
	return !r.since.IsZero() && now.Sub(r.since) >= CredentialsGrace
}

// Succeeded notes that the server accepted a request.
func (r *Refusals) Succeeded() { r.since = time.Time{} }

// canRepeat reports whether a failed settlement may be repeated. harmless means that a repetition
// has no effect if the first attempt took effect. RocketMQ creates a second dead letter for a
// repeated request, for example.
func canRepeat(err error, harmless bool) bool {
	if errors.Is(err, tidegate.ErrInvalidHandle) || errors.Is(err, tidegate.ErrClosed) {
		return false
	}
	if e, ok := errors.AsType[*tidegate.Error](err); ok && (e.NotConnected || e.Lapsed) {
		return true // not carried out
	}
	switch tidegate.Classify(err) {
	case tidegate.ClassThrottled:
		return true // rejected: nothing happened
	case tidegate.ClassTransient, tidegate.ClassCancelled:
		return harmless
	}
	switch Code(err) {
	case tidegate.CodeIllegalAccessPoint: // never sent, for example while the server's certificate is renewed
		return true
	case protocol.CodeUnrecognizedClientType: // a server that lost the client's settings gets them with the next heartbeat
		return true
	case protocol.CodeIllegalPollingTime: // of a RocketMQ proxy that was paused
		return harmless
	}
	return false
}

// Perhaps reports whether a request that failed with err may have taken effect nevertheless. A
// [tidegate.Error] knows: a request that was never sent did nothing, nor did one that was
// rejected, except where MaybeStored is set.
func Perhaps(err error) bool {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.MaybeStored
	}
	c := tidegate.Classify(err)
	return c == tidegate.ClassTransient || c == tidegate.ClassCancelled
}

// permanent reports whether a settlement cannot succeed.
func permanent(err error) bool {
	return tidegate.Classify(err) == tidegate.ClassPermanent && !errors.Is(err, tidegate.ErrInvalidHandle)
}

// PushBack returns the wait that the server asks for, 0 if there is none.
func PushBack(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// Unanswered reports whether a request failed because no server responded.
func Unanswered(err error) bool {
	return tidegate.Classify(err) == tidegate.ClassTransient && Code(err) == 0
}

// Code returns the server's code, 0 if there is none.
func Code(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}
