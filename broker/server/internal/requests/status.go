package requests

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

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
	case c == tidegate.CodeTooManyRequests, c == protocol.CodeRequestTimeout:
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

// A Codec is that of package wire, but also takes a *Placed. Goroutines may share it.
type Codec struct{ wire.Codec }

// A Placed is a message of a response, which keeps the request's place until gRPC has written it.
type Placed struct {
	Message any
	Place   *admission.Place
	Last    bool // it comes in place of the handler, which has returned
}

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(*Placed)
	if !ok {
		return c.Codec.Marshal(v)
	}
	if p.Last {
		defer p.Place.End()
	}
	data, err := c.Codec.Marshal(p.Message)
	if err != nil {
		return nil, err
	}
	p.Place.Begin()
	if r, ok := p.Message.(*rmqpb.SendMessageResponse); ok && p.Last {
		p.Message = nil // gRPC's traces show p later
		wire.FreeSendResponse(r)
	}
	return append(slices.Clip(data), mem.NewBuffer(&placed, p.Place)), nil
}

// placed is the content of the empty buffer that shows when gRPC has written a message: gRPC
// frees the buffers of a message then, the last one last. It ignores the pool of a buffer with
// less capacity.
var placed = make([]byte, 0, 4<<10)
