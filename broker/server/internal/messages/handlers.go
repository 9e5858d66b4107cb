package messages

import (
	"context"
	"net/http"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server/internal/gate"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// An Engine is the part of a *broker.Broker that requests about messages need.
type Engine interface {
	transport.Settler
	Append(ctx context.Context, msgs []serving.Incoming) []transport.SendResult
	Poll(ctx context.Context, p serving.Poll) ([]*tidegate.Delivery, error)
	InvisibleBounds() (least, most time.Duration)
	Recall(ctx context.Context, topic, recallHandle string) (id string, err error)
	TopicOf(handle string) (topic, original string, err error)
	Group(name string) (status.Group, error)
	ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.ReconsumeMode) (serving.Reconsumed, error)
	RetryInterval(d *tidegate.Delivery) (time.Duration, error)
}

// Handlers carry out the requests about messages. Each one is called when the gate has
// admitted the request. It returns the status and the JSON value of the response, or an error;
// or status 0 if it has written the response. All fields are set before the first call, and not
// changed afterwards.
type Handlers struct {
	Engine Engine
	Gate   *gate.Gate

	Life           context.Context //nolint:containedctx // the server's own: it ends when the server begins to end
	Bodies         *transit.Budget // of requests and responses under way
	MaxBody        int             // the largest body of a message, in bytes
	MaxLongPolling time.Duration   // of a receive
	IdleTimeout    time.Duration   // how long a stream may bring no line

	Server Server
}

// A Server is the server as the handlers see it.
type Server interface {
	// Through calls do, around which the middleware is called if there is one. Its error may be
	// a *refusal.Cut: then there is no response.
	Through(ctx context.Context, call Call, do func(context.Context) error) error

	// Park holds the memory of a receive that waits.
	Park(r *http.Request) (transit.Hold, error)

	// Enlist adds a receive to those of its client. The context that it returns ends with ctx, or
	// when the client or the server ends. The caller calls delist, with whether the receive
	// succeeded.
	Enlist(ctx context.Context, r *http.Request, client string, p *serving.Poll) (parked context.Context, holder *serving.Holder, delist func(served bool), err error)

	// Release returns messages to their queues that the client did not get.
	Release(ctx context.Context, ds []*tidegate.Delivery)
}

// A Call describes a request to the middleware; its fields are those of the server's Call.
type Call struct {
	Op, ClientID, Topic, Group string
	Messages                   int
	MessageIDs                 []string
}

// isDraining reports whether the server has begun to end.
func (h *Handlers) isDraining() bool { return h.Life.Err() != nil }
