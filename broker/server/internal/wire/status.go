package wire

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// OK is the status of every successful response. It is shared and never changed.
var OK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

// MultipleResults is the status of a response whose entries have different statuses. It is shared
// and never changed.
var MultipleResults = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS, Message: "the entries have different statuses; see the status of each entry"}

// StatusOf returns the status of an error that has a code.
func StatusOf(e *tidegate.Error) *rmqpb.Status {
	return &rmqpb.Status{Code: rmqpb.Code(e.Code), Message: refusal.Text(e)}
}

// ErrorOf returns the error of a status, or nil if nothing or only a part failed.
func ErrorOf(st *rmqpb.Status) error {
	if c := tidegate.Code(st.GetCode()); c != protocol.CodeOK && c != protocol.CodeMultipleResults {
		return &tidegate.Error{Code: c, Message: st.GetMessage()}
	}
	return nil
}

// An End ends a Telemetry stream, after a command with its reason.
type End struct{ st *status.Status }

// Error implements error.
func (e *End) Error() string { return e.st.Err().Error() }

// GRPCStatus returns the status for gRPC.
func (e *End) GRPCStatus() *status.Status { return e.st }

// EndOf returns the gRPC status that ends a Telemetry stream for the reason of st. Official clients
// log a command without contents at most, and show the gRPC status. ResourceExhausted is never
// used: it would mean that a message is too large, and clients respond to it with waiting.
func EndOf(st *rmqpb.Status) *End {
	code := codes.Internal
	switch c := tidegate.Code(st.GetCode()); {
	case c == tidegate.CodeUnauthorized:
		code = codes.Unauthenticated
	case c == tidegate.CodeForbidden:
		code = codes.PermissionDenied
	case c == tidegate.CodeNotImplemented, c == protocol.CodeUnsupported, c == protocol.CodeVersionUnsupported:
		code = codes.Unimplemented
	case c == tidegate.CodeTooManyRequests, c == tidegate.CodeRequestTimeout:
		code = codes.Unavailable // it can end
	case c/100 == 404:
		code = codes.NotFound
	case c == protocol.CodePreconditionFailed:
		code = codes.FailedPrecondition
	case c/10000 == 4:
		code = codes.InvalidArgument
	}
	return &End{status.New(code, st.GetMessage())}
}
