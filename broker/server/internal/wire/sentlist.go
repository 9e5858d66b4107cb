package wire

import (
	"sync"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A sent is one message of a SendMessageRequest.
type sent struct {
	message rmqpb.Message
	system  rmqpb.SystemProperties
	head    []byte // the encoding of the message, except for the body
}

// A sentList is the memory of the messages of one request.
type sentList struct {
	request  *rmqpb.SendMessageRequest
	used     int    // messages of the request
	messages []sent // all zero from used on
	pointers []*rmqpb.Message
}

const (
	minReused = 16 // smaller requests would keep the memory of larger ones
	maxReused = 1 << 10
)

// Reusable reports whether other requests use the memory of a request with n messages again.
func Reusable(n int) bool { return n >= minReused && n <= maxReused }

var sentLists sync.Pool // of *sentList with used = 0

// newSent returns n messages, which are zero, and points the request to them. The caller ends their
// use by list.free; the collector frees them if list is nil.
func newSent(n int, request *rmqpb.SendMessageRequest) (list *sentList, messages []sent) {
	if !Reusable(n) {
		request.Messages = make([]*rmqpb.Message, n)
		return nil, make([]sent, n)
	}
	list, _ = sentLists.Get().(*sentList)
	if list == nil || len(list.messages) < n {
		list = &sentList{messages: make([]sent, n), pointers: make([]*rmqpb.Message, n)}
	}
	list.request, list.used, request.Messages = request, n, list.pointers[:n:n]
	return list, list.messages[:n]
}

// free ends the use of the messages. The request has none afterwards. The texts and the other
// values that its messages pointed to remain valid.
func (l *sentList) free() {
	clear(l.messages[:l.used])
	clear(l.pointers[:l.used])
	l.request.Messages = nil
	l.request, l.used = nil, 0
	sentLists.Put(l)
}
