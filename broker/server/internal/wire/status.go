package wire

import (
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
