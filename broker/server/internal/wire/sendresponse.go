package wire

import (
	"sync"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// sendResponses has responses of NewSendResponse. All their entries, up to the capacity, are zero.
var sendResponses sync.Pool

// NewSendResponse returns a response with n entries, which are zero. The caller fills them in and
// keeps no reference to them after [Codec] has encoded the response: others use their memory again.
func NewSendResponse(n int) *rmqpb.SendMessageResponse {
	if Reusable(n) {
		if r, _ := sendResponses.Get().(*rmqpb.SendMessageResponse); r != nil && cap(r.Entries) >= n {
			r.Entries = r.Entries[:n]
			return r
		}
	}
	entries, pointers := make([]rmqpb.SendResultEntry, n), make([]*rmqpb.SendResultEntry, n)
	for i := range entries {
		pointers[i] = &entries[i]
	}
	return &rmqpb.SendMessageResponse{Entries: pointers}
}

// freeSendResponse ends the use of a response of NewSendResponse.
func freeSendResponse(r *rmqpb.SendMessageResponse) {
	if !Reusable(len(r.Entries)) {
		return
	}
	for _, e := range r.Entries {
		*e = rmqpb.SendResultEntry{}
	}
	r.Status = nil
	sendResponses.Put(r)
}
