package convert

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"testing"

	"github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// The conditions and texts are those of Artemis 2.37.
func TestOfOutcome(t *testing.T) {
	rejected := func(c amqp.ErrCond, text string) amqp.DeliveryState {
		return &amqp.StateRejected{Error: &amqp.Error{Condition: c, Description: text}}
	}
	for _, c := range []struct {
		state amqp.DeliveryState
		class tidegate.Class
		code  tidegate.Code
		maybe bool
	}{
		{&amqp.StateAccepted{}, tidegate.ClassOK, 0, false},
		{rejected("amqp:resource-limit-exceeded", `AMQ229102: Address "fail.a" is full.`), tidegate.ClassThrottled, 42900, false},
		{rejected("amqp:resource-limit-exceeded", "Address is full: reject.a"), tidegate.ClassThrottled, 42900, false},
		{rejected("amqp:unauthorized-access", "AMQ229032: User: a does not have permission='SEND' on address b"), tidegate.ClassPermanent, 40300, false},
		{rejected("amqp:decode-error", ""), tidegate.ClassPermanent, 40016, false},
		{rejected("amqp:internal-error", "out of order"), tidegate.ClassTransient, 50001, false},
		{rejected("failed", ""), tidegate.ClassTransient, 50001, false},
		{&amqp.StateRejected{}, tidegate.ClassTransient, 50001, false},
		{&amqp.StateReleased{}, tidegate.ClassTransient, 50001, false},
		{&amqp.StateModified{}, tidegate.ClassTransient, 50001, false},
		{nil, tidegate.ClassTransient, 50001, true},
	} {
		e := OfOutcome(c.state)
		if e == nil {
			assert.That(t, c.class == tidegate.ClassOK, "%v: no error, want %v", c.state, c.class)
			continue
		}
		if got := tidegate.Classify(e); got != c.class || e.Code != c.code || e.MaybeStored != c.maybe {
			t.Errorf("%v: %v, %v, MaybeStored %v; want %v, %d, %v", c.state, got, e, e.MaybeStored, c.class, int(c.code), c.maybe)
		}
	}
}

func TestOfLink(t *testing.T) {
	remote := func(c amqp.ErrCond) *amqp.Error { return described(c, "text") }
	for _, c := range []struct {
		err  error
		code tidegate.Code
	}{
		{remote("amqp:not-found"), 40402}, // AMQ119002 and AMQ119010, of an attach
		{&amqp.LinkError{RemoteErr: remote("amqp:not-found")}, 40402},
		{&amqp.LinkError{RemoteErr: remote("amqp:unauthorized-access")}, 40300},
		{&amqp.LinkError{RemoteErr: remote("amqp:link:message-size-exceeded")}, 41301},
		{remote("amqp:link:message-size-exceeded"), 41301}, // go-amqp's own check
		{&amqp.LinkError{RemoteErr: remote("amqp:link:detach-forced")}, 50001},
		{&amqp.LinkError{RemoteErr: remote("amqp:resource-deleted")}, 50001},
		{&amqp.SessionError{RemoteErr: remote("amqp:illegal-state")}, 50001},
		{&amqp.ConnError{RemoteErr: remote("amqp:connection:forced")}, 50001},
		{described("amqp:unauthorized-access", "AMQ229031: Unable to validate user from 127.0.0.1:60638. Username: null"), 40100},
		{described("amqp:internal-error", "AMQ229032: User: a does not have permission='CREATE_ADDRESS' on address b"), 40300},
		{&amqp.LinkError{}, 0},
		{&amqp.ConnError{}, 0},
		{context.DeadlineExceeded, 0}, // of the attach, not of the caller
		{nil, 0},
	} {
		e := OfLink(c.err)
		assert.That(t, e.Code == c.code && !e.MaybeStored && !e.NotConnected, "%v: %#v, want code %d", c.err, e, int(c.code))
		assert.That(t, c.code != 0 || errors.Is(e, tidegate.ErrUnavailable) && tidegate.Classify(e) == tidegate.ClassTransient,
			"%v: %v, want a transient error that matches ErrUnavailable", c.err, e)
	}
}

func described(c amqp.ErrCond, text string) *amqp.Error {
	return &amqp.Error{Condition: c, Description: text}
}

func TestOfDial(t *testing.T) {
	for _, c := range []struct {
		err          error
		code         tidegate.Code
		notConnected bool
	}{
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 0, true},
		{&net.DNSError{IsTemporary: true}, 0, true},
		{&net.DNSError{IsNotFound: true}, 0, false},
		{x509.UnknownAuthorityError{}, 40001, false},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, 40001, false},
		{errors.New("SASL PLAIN auth failed with code 0x1: []"), 40100, false},
		{errors.New("no supported auth mechanism ([PLAIN])"), 40100, false},
		{&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:unauthorized-access"}}, 40100, false},
		{&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:connection:forced"}}, 0, true},
		{context.DeadlineExceeded, 0, true},
	} {
		e := OfDial(c.err)
		assert.That(t, e.Code == c.code && e.NotConnected == c.notConnected && !e.MaybeStored,
			"%v: %#v, want code %d, NotConnected %v", c.err, e, int(c.code), c.notConnected)
	}
}

func TestNoCredit(t *testing.T) {
	own := &amqp.Error{Condition: "amqp:link:transfer-limit-exceeded"}
	assert.That(t, NoCredit(own) && !NoCredit(&amqp.LinkError{RemoteErr: own}) && !NoCredit(context.Canceled) && !NoCredit(nil),
		"only go-amqp's own error means that there was no credit")
}

// At an address that has worked, faults of TLS, the host name and the credentials are outages.
func TestOfOutage(t *testing.T) {
	for _, c := range []struct {
		err          error
		code         tidegate.Code
		notConnected bool
		lapsed       bool
	}{
		{&net.DNSError{IsNotFound: true}, 0, true, false},
		{x509.UnknownAuthorityError{}, 0, true, false},
		{errors.New("SASL PLAIN auth failed with code 0x1: []"), 40100, false, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 0, true, false},
	} {
		e := OfOutage(OfDial(c.err))
		if e.Code != c.code || e.NotConnected != c.notConnected || e.Lapsed != c.lapsed || e.MaybeStored ||
			tidegate.Classify(e) != tidegate.ClassTransient || !Awaitable(e) {
			t.Errorf("%v: %#v, want code %d, NotConnected %v, Lapsed %v", c.err, e, int(c.code), c.notConnected, c.lapsed)
		}
	}
	e := OfOutage(OfDial(&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:not-found"}}))
	assert.That(t, !Awaitable(e), "a missing host of the connection: %#v", e)
}
