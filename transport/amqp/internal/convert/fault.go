package convert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
)

// Codes of RocketMQ's protocol without a constant in package tidegate.
const (
	codeMessageCorrupted   tidegate.Code = 40016
	CodeIllegalPropertyKey tidegate.Code = 40007
)

// codes are the codes of the conditions that another attempt cannot cure, and of throttles. All
// other conditions are transient.
var codes = map[amqp.ErrCond]tidegate.Code{
	amqp.ErrCondResourceLimitExceeded: tidegate.CodeTooManyRequests,
	amqp.ErrCondNotFound:              tidegate.CodeTopicNotFound,
	amqp.ErrCondUnauthorizedAccess:    tidegate.CodeForbidden,
	amqp.ErrCondNotAllowed:            tidegate.CodeBadRequest,
	amqp.ErrCondPreconditionFailed:    tidegate.CodeBadRequest,
	amqp.ErrCondInvalidField:          codeMessageCorrupted,
	amqp.ErrCondDecodeError:           codeMessageCorrupted,
	amqp.ErrCondMessageSizeExceeded:   tidegate.CodeMessageBodyTooLarge,
	amqp.ErrCondNotImplemented:        tidegate.CodeNotImplemented,
}

// Artemis gives some errors of security other conditions than amqp:unauthorized-access, or the same
// for both faults. Its texts begin with the number of the error.
const (
	notValidated = "AMQ229031" // Unable to validate user
	notPermitted = "AMQ229032" // User: … does not have permission='CREATE_ADDRESS' on address …
)

// OfOutcome returns the error of a send by the server's outcome; nil if the server accepted the
// message. Every other outcome means that the server stored nothing.
func OfOutcome(state amqp.DeliveryState) *tidegate.Error {
	switch s := state.(type) {
	case *amqp.StateAccepted:
		return nil
	case *amqp.StateRejected:
		if s.Error != nil {
			return ofCondition(s.Error)
		}
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the server rejected the message without a reason"}
	case *amqp.StateReleased:
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the server released the message"}
	case *amqp.StateModified:
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the server did not take the message"}
	}
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the server responded with an unknown outcome", MaybeStored: true}
}

func ofCondition(e *amqp.Error) *tidegate.Error {
	code, ok := codes[e.Condition]
	switch {
	case strings.HasPrefix(e.Description, notValidated):
		code = tidegate.CodeUnauthorized
	case strings.HasPrefix(e.Description, notPermitted):
		code = tidegate.CodeForbidden
	case !ok:
		code = tidegate.CodeInternalServerError
	}
	return &tidegate.Error{Code: code, Message: fmt.Sprintf("%s (%s)", e.Description, e.Condition)}
}

// OfLink returns the error of a link, session or connection that the server refused or ended, or
// that broke. MaybeStored is false; the caller knows whether it wrote a transfer.
func OfLink(err error) *tidegate.Error {
	if remote, ok := errors.AsType[*amqp.Error](err); ok {
		return ofCondition(remote)
	}
	return &tidegate.Error{Err: join(err)}
}

// OfDial returns the error of an attempt to connect. NotConnected is false for faults that another
// attempt does not cure.
func OfDial(err error) *tidegate.Error {
	if remote, ok := errors.AsType[*amqp.Error](err); ok {
		e := ofCondition(remote)
		switch e.Code {
		case tidegate.CodeForbidden: // of the open of a connection
			e.Code = tidegate.CodeUnauthorized
		case tidegate.CodeInternalServerError:
			e.Code, e.NotConnected = 0, true
		}
		return e
	}
	switch {
	case isTLS(err):
		return &tidegate.Error{Code: tidegate.CodeIllegalAccessPoint, Err: err,
			Message: "the connection cannot be encrypted; check the address, Options.TLS and the certificate"}
	case isSASL(err):
		return &tidegate.Error{Code: tidegate.CodeUnauthorized, Err: err, Message: "the server rejected the credentials"}
	}
	dns, ok := errors.AsType[*net.DNSError](err)
	return &tidegate.Error{Err: join(err), NotConnected: !ok || !dns.IsNotFound}
}

// OfOutage returns e, the error of an attempt to connect to an address that has worked before with
// the same credentials: a fault of TLS, of the host name or of the credentials is an outage there.
func OfOutage(e *tidegate.Error) *tidegate.Error {
	outage := *e
	switch {
	case e.Code == tidegate.CodeIllegalAccessPoint:
		outage.Code, outage.Err, outage.NotConnected = 0, join(e.Err), true
		outage.Message += " (the address has worked before, so this counts as an outage)"
	case e.Code == tidegate.CodeUnauthorized:
		outage.Lapsed = true
	case e.Code == 0:
		outage.NotConnected = true
	}
	return &outage
}

// Awaitable reports whether a later attempt to connect can succeed.
func Awaitable(e *tidegate.Error) bool { return e.NotConnected || e.Lapsed }

// join adds ErrUnavailable to the tree of err, except if the caller's context ended.
func join(err error) error {
	if err == nil {
		return tidegate.ErrUnavailable
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return tidegate.ErrUnavailable // a context of the transport, which is not the caller's
	}
	return unavailable{err}
}

// unavailable is an error that also matches tidegate.ErrUnavailable.
type unavailable struct{ error }

func (u unavailable) Unwrap() []error { return []error{tidegate.ErrUnavailable, u.error} }

// isSASL reports whether the server rejected the credentials. go-amqp has no type for it.
func isSASL(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "SASL") || strings.Contains(err.Error(), "auth mechanism"))
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err) // crypto/tls exports no type for an alert
	return ok && (op.Op == "remote error" || op.Op == "local error")
}

// NoCredit reports whether err is go-amqp's error for a transfer that waited for credit until its
// context ended.
func NoCredit(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok || e.Condition != amqp.ErrCondTransferLimitExceeded {
		return false
	}
	_, link := errors.AsType[*amqp.LinkError](err)
	return !link // a LinkError holds the server's own error
}
