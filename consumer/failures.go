package consumer

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// credentialsGrace is how long a server may refuse the credentials before that ends a consumer:
// servers that start, and proxies whose keys are being replaced, do so for a while.
const credentialsGrace = time.Minute

// An ending says whether a failure to receive ends a consumer.
type ending int

const (
	never  ending = iota // it passes, or somebody cures it
	graced               // if it lasts longer than credentialsGrace
	atOnce
)

// endingOf sorts a failure to receive. Only bad arguments, which the program has to change, and
// the transport's Close end a consumer at once. Every other code may pass: a paused RocketMQ
// proxy returns 40018, an ingress without a backend UNIMPLEMENTED, and missing topics are created.
func endingOf(err error) ending {
	if errors.Is(err, tidegate.ErrClosed) {
		return atOnce
	}
	switch code(err) {
	case tidegate.CodeIllegalTopic, tidegate.CodeIllegalConsumerGroup, tidegate.CodeIllegalFilterExpression, tidegate.CodeIllegalInvisibleTime:
		return atOnce
	case tidegate.CodeUnauthorized, tidegate.CodeForbidden:
		return graced
	}
	return never
}

// refusals decide when failures to receive end a consumer. The zero value is ready.
type refusals struct {
	since time.Time // when the credentials were refused first; zero while they are not
}

// failed notes a failure at now, and reports whether it ends the consumer.
func (r *refusals) failed(err error, now time.Time) (end bool) {
	switch endingOf(err) {
	case atOnce:
		return true
	case graced:
		if r.since.IsZero() {
			r.since = now
		}
		return r.lasting(now)
	}
	return false
}

// lasting reports whether the credentials have been refused for longer than the grace.
func (r *refusals) lasting(now time.Time) bool {
	return !r.since.IsZero() && now.Sub(r.since) >= credentialsGrace
}

// succeeded notes that the server accepted a request.
func (r *refusals) succeeded() { r.since = time.Time{} }

// canRepeat reports whether a failed settlement may be tried again; harmless if that does
// nothing more where the first one worked: a real RocketMQ makes a second dead letter of a
// repeated request.
func canRepeat(err error, harmless bool) bool {
	if errors.Is(err, tidegate.ErrInvalidHandle) || errors.Is(err, tidegate.ErrClosed) {
		return false
	}
	switch transport.Classify(err) {
	case transport.Throttled:
		return true // refused: nothing happened
	case transport.Transient, transport.Cancelled:
		return harmless
	}
	switch code(err) {
	case tidegate.CodeIllegalAccessPoint: // never sent, for example while the server's certificate is renewed
		return true
	case tidegate.CodeUnrecognizedClientType: // a server that lost the client's settings gets them with the next heartbeat
		return true
	case tidegate.CodeIllegalPollingTime: // of a RocketMQ proxy that was paused
		return harmless
	}
	return false
}

// perhaps reports whether a request that failed with err may have worked all the same. A
// [tidegate.Error] knows: a request that was never sent did nothing, nor did one that was
// refused, except where MaybeStored is set.
func perhaps(err error) bool {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.MaybeStored
	}
	c := transport.Classify(err)
	return c == transport.Transient || c == transport.Cancelled
}

func permanent(err error) bool {
	return transport.Classify(err) == transport.Permanent && !errors.Is(err, tidegate.ErrInvalidHandle)
}

func pushBack(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// code returns the server's code, 0 if there is none.
func code(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}
