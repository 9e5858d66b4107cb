package subscription

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// maxReceiveBytes bounds the bodies of one receive, in bytes; the first may be larger.
const maxReceiveBytes = 16 << 20

// A Request is a receive.
type Request struct {
	transport.ReceiveRequest

	Owner   string          // consume.Receive.Owner
	Holder  *consume.Holder // consume.Receive.Holder
	Encoder Encoder         // nil for none
	Memory  Memory          // nil: admits all
	Watch   *Watch          // stays behind if there are no further messages; nil for none
	Match   *filter.Filter  // of ReceiveRequest.Filter; nil matches all messages

	retry  bool // from the group's retry topic for Topic
	shared bool // the retry topic is one for other topics too
}

// An Encoder encodes the response to a receive.
type Encoder interface {
	// Prepare is called with the deliveries while they are written, and must not wait. The result
	// counts only if the receive returns these deliveries.
	Prepare([]*tidegate.Delivery)
}

// Memory is the memory for the bodies of a receive.
type Memory interface {
	// Admit is called with the size in bytes of all bodies that the receive is about to keep. An
	// error rejects the last of them. Admit must not wait.
	Admit(bytes int64) error
}

// wants reports whether the receive gets a message. The filter applies to messages of its topic. In
// a retry topic of several topics, the receive also takes the messages of other topics, because no
// other receive skips them. In a retry topic of one topic, messages of another topic belong to
// another group whose retry topic has the same name: topic-group-RETRY can be split in two ways.
func (p *Request) wants(m *store.Message) bool {
	if of := deadletter.RealTopic(m, ""); p.shared && of != p.Topic {
		return true
	} else if p.retry && of != "" && of != p.Topic {
		return false
	}
	return p.Match.Match(m.Tag, m.Properties)
}

// admit returns an error if the receive may not keep so many bytes of bodies.
func (p *Request) admit(bytes int64) error {
	if p.Memory == nil {
		return nil
	}
	return p.Memory.Admit(bytes)
}

// grantedBytes returns the size of the bodies of grants.
func grantedBytes(grants []consume.Grant) (n int64) {
	for i := range grants {
		n += grants[i].Lease.Size
	}
	return n
}

// budget returns how many bytes of bodies a receive may bring; the first message may have more.
func (p *Request) budget() int64 {
	if p.MaxBytes > 0 {
		return min(int64(p.MaxBytes), maxReceiveBytes)
	}
	return maxReceiveBytes
}

// A requestFilter is the filter of a receive.
type requestFilter Request

// Wants implements consume.Filter.
func (f *requestFilter) Wants(m *store.Message) bool { return (*Request)(f).wants(m) }
