package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
)

// A slowDeadline is a connection on which a read deadline that has passed takes
// until release is closed to be set.
type slowDeadline struct {
	*httptest.ResponseRecorder
	release chan struct{}
}

func (w *slowDeadline) SetReadDeadline(t time.Time) error {
	if !t.After(time.Now()) {
		<-w.release
	}
	return nil
}

// Nothing uses the connection once the handler has returned: over HTTP/2
// net/http has taken it away by then, and the process would end.
func TestHTTPSendStreamEndsAloneOnItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		body, lines := io.Pipe()
		defer body.Close()
		w := &slowDeadline{httptest.NewRecorder(), make(chan struct{})}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/topics/normal/messages", body)
		r.Header.Set("Content-Type", server.TypeNDJSON)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			e.s.Handler().ServeHTTP(w, r)
		}()
		synctest.Wait() // it waits for a line
		closed := make(chan error, 1)
		go func() { closed <- e.s.Close() }()
		synctest.Wait() // the server's end moves the deadline
		if _, err := io.WriteString(lines, "\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the stream has seen by itself that it ends
		select {
		case <-returned:
			t.Error("the handler returned while its connection was in use")
		default:
		}
		close(w.release)
		<-returned
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
