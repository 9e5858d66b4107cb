package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/tidegate/tidegate/internal/console"
)

// Options are the choices of [Run].
type Options struct {
	Name     string    // of the broker, for the user
	Port     uint16    // of 127.0.0.1; 0 for a free one
	ReadOnly bool      // forward only GET and HEAD
	Open     bool      // open the browser
	Out, Err io.Writer // for the link, and for notes
	JSON     bool      // print the link as JSON
}

// announce prints the link.
func (o Options) announce(url string) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(map[string]string{"url": url, "broker": o.Name})
	}
	_, err := fmt.Fprintf(o.Err, "The console of %q. The link works once; Ctrl-C ends the console.\n", o.Name)
	if err == nil {
		_, err = fmt.Fprintln(o.Out, url)
	}
	return err
}

// Run serves the console of a broker until ctx ends, which is no error. It prints the link. A
// browser that does not open is only a note, because the link is printed.
func Run(ctx context.Context, broker http.RoundTripper, o Options) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	_, port, _ := net.SplitHostPort(lis.Addr().String()) // a TCP address has a port
	f, token := New(broker, port, o.ReadOnly)
	url := "http://" + lis.Addr().String() + console.Path + "#token=" + token
	web := &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(lis) }()
	if err = o.announce(url); err == nil && o.Open {
		remove, opened := browse(ctx, url)
		defer remove()
		if opened != nil {
			_, err = fmt.Fprintf(o.Err, "--open: %v; open the printed link yourself\n", opened)
		}
	}
	if err == nil {
		select {
		case err = <-ended:
			return err
		case <-ctx.Done():
		}
	}
	err = errors.Join(err, web.Close())
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// browse opens a URL in the browser of the user. Other users can see the arguments of programs, so
// the URL with its token is in a file that only this user can read. remove removes the file, also
// after an error.
func browse(ctx context.Context, url string) (remove func(), err error) {
	file, err := os.CreateTemp("", "tidegate-console-*.html")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.Remove(file.Name()) }
	_, err = fmt.Fprintf(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", html.EscapeString(url))
	if err := errors.Join(err, file.Close()); err != nil {
		return remove, err
	}
	name, args := "xdg-open", []string{file.Name()}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", file.Name()}
	}
	return remove, exec.CommandContext(ctx, name, args...).Run()
}
