package messages

import (
	"context"
	"net"
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/gate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/web"
)

// httpClient returns the client ID of a request: the header x-mq-client-id, as over gRPC, or else
// the client's address. With keys, the key precedes it.
func httpClient(r *http.Request) (string, error) { return gate.ClientOf(r, remoteHost(r)) }

func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // of a listener without ports
	}
	return host
}

// gone is the error of a request whose client does not read the whole response. The connection is
// closed, so that a partial response does not look complete.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return &refusal.Cut{Status: err}
}

// whileAllowed returns a context that ends with ctx, with session.ErrDraining as its
// cause when the server ends, or with session.ErrNewRules when other access rules hold.
// stop must be called.
func (h *Handlers) whileAllowed(ctx context.Context) (parked context.Context, stop func()) {
	parked, cancel := context.WithCancelCause(ctx)
	drained := context.AfterFunc(h.Life, func() { cancel(session.ErrDraining) })
	changed := context.AfterFunc(h.Gate.Regime().Over(), func() { cancel(session.ErrNewRules) })
	return parked, func() {
		drained()
		changed()
		cancel(nil)
	}
}

// readRequest is web.ReadJSON for a request about messages: the body is required, must be declared
// as JSON, and can be larger.
func (h *Handlers) readRequest(w http.ResponseWriter, r *http.Request, v any) error {
	if _, err := web.ContentType(r, web.TypeJSON); err != nil {
		return err
	}
	raw, err := web.ReadBody(w, r, h.maxRequest())
	if err != nil {
		return err
	}
	return web.Decode(raw, v)
}

// maxRequest bounds one request about messages, in bytes: base64 makes four of three.
func (h *Handlers) maxRequest() int64 {
	return min(max(16<<20, 2*int64(h.MaxBody)+web.MaxAdminBody), h.Bodies.Largest()/web.BodyFactor-web.FirstRead)
}
