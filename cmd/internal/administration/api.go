package administration

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// maxAPIResponse bounds the response of api in bytes.
const maxAPIResponse = 1 << 30

func newAPI(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use: "api", GroupID: call.OperateGroup,
		Short: "Make any request of the HTTP API, with the credentials of the context",
		Long: `Makes a request of the HTTP API with the credentials of the context, and prints
the response. The body is an argument, - for standard input, or @FILE. The API is
described by GET /v1/openapi.yaml.`,
		Example: `  tidegate api GET /v1/topics
  tidegate api PUT /v1/topics/invoices '{"type":"FIFO"}'`,
	}, []string{"METHOD", "PATH", "[BODY]"}, func(ctx context.Context, c *call.Call) error {
		r, err := apiRequest(c)
		if err != nil {
			return c.Usage(err)
		}
		s, err := c.Server()
		if err != nil {
			return err
		}
		client, err := s.Raw(ctx)
		if errors.Is(err, connection.ErrNoHTTP) {
			return c.Unsupported()
		}
		if err != nil {
			return err
		}
		defer client.Close()
		var body []byte
		r.Out, r.Timeout, r.MaxResponse = &body, c.Timeout, maxAPIResponse
		if err := client.Do(ctx, r, func(httpapi.Attempt) (time.Duration, bool) { return 0, false }); err != nil {
			return err
		}
		_, err = c.Out.Write(body)
		return err
	})
}

func apiRequest(c *call.Call) (*httpapi.Request, error) {
	method := strings.ToUpper(c.Args[0])
	if !slices.Contains([]string{"GET", "PUT", "POST", "PATCH", "DELETE"}, method) {
		return nil, errors.New("the methods are GET, PUT, POST, PATCH and DELETE")
	}
	path, query, _ := strings.Cut(c.Args[1], "?")
	if !strings.HasPrefix(path, "/") {
		return nil, errors.New("PATH begins with /, as in /v1/topics")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	r := &httpapi.Request{Op: "api " + method, Subject: path, Method: method, Path: path, Query: values, Reads: method == "GET"}
	if len(c.Args) < 3 {
		return r, nil
	}
	text := []byte(c.Args[2])
	switch file, isFile := strings.CutPrefix(c.Args[2], "@"); {
	case isFile:
		text, err = os.ReadFile(file)
	case c.Args[2] == "-":
		text, err = io.ReadAll(c.In)
	}
	if err == nil && !json.Valid(text) {
		err = errors.New("the body is not JSON")
	}
	r.Body = json.RawMessage(text)
	return r, err
}
