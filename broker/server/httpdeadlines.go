package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tidegate/tidegate/broker/server/internal/routes"
)

// net/http counts its deadlines from a request's header on: a response that takes longer is lost,
// with the connection or the HTTP/2 stream. They protect against clients that do not send or do not
// read. So they apply while the body is read and while the response is written, and not to the work
// between.

// untimed returns the request with a body that takes both deadlines off when it has
// been read; if there is none, they are off already.
func untimed(r *http.Request, w *answered) *http.Request {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		w.off()
		return r
	}
	out := *r // a handler may not change the one that it got
	out.Body = &lastRead{r.Body, w}
	return &out
}

// A lastRead takes the deadlines off when all was read.
type lastRead struct {
	io.ReadCloser
	response *answered
}

// Read implements io.Reader.
func (b *lastRead) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.response.off()
	}
	return n, err
}

// off takes the deadlines off the connection. If there are no deadlines, for example in a test,
// there is none to remove.
func (a *answered) off() {
	rc := http.NewResponseController(a.ResponseWriter)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
}

// allow extends the deadline for the client to read the next write.
func (a *answered) allow() {
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(routes.AnswerTime))
}
