package verdict

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
	if re, ok := errors.AsType[*Reconsume](err); ok && re.Verdict.Kind > transport.Snooze {
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
