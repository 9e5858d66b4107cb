package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

const (
	// answerTime is how long writing an answer, or a part of a stream, may take
	// when the client does not read.
	answerTime = time.Minute
)

// httpClient returns who sends a request: the header x-mq-client-id, as over
// gRPC, or else the client's address; with keys, the key before it.
func httpClient(r *http.Request) (string, error) {
	id := r.Header.Get(headerClientID)
	if id == "" {
		id = remoteHost(r)
	}
	if len(id) > maxClientID {
		return "", refusal.TooLong(tidegate.CodeClientIDRequired, "header "+headerClientID, len(id), maxClientID)
	}
	return scoped(identityOf(r), id), nil
}

func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // of a listener without ports
	}
	return host
}

// through carries a request about messages out, through the middleware if
// there is one. Its error may be a *grpcError: then there is no answer.
func (s *Server) through(ctx context.Context, call Call, do func(context.Context) error) error {
	if s.o.Intercept == nil {
		return do(ctx)
	}
	var done bool
	var failure error
	err := s.intercept(ctx, call, func(ctx context.Context) error {
		done = true
		failure = do(ctx)
		return failure
	}, &done)
	if err == nil {
		err = failure
	}
	return err
}

// gone is the error of a request whose client reads no answer, or not all of
// it: the connection is cut, so that what it has got does not look complete.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return &grpcError{err}
}

// whileAllowed returns a context that ends with ctx, with errDraining as its
// cause when the server ends, or with errNewRules when other access rules hold.
// stop must be called.
func (s *Server) whileAllowed(ctx context.Context) (parked context.Context, stop func()) {
	parked, cancel := context.WithCancelCause(ctx)
	drained := context.AfterFunc(s.life, func() { cancel(errDraining) })
	changed := context.AfterFunc(s.gate.current.Load().over, func() { cancel(errNewRules) })
	return parked, func() {
		drained()
		changed()
		cancel(nil)
	}
}

// allFailed is the error of a request about several things all of which failed
// with one code.
type allFailed struct {
	error
	results any
}

// Unwrap returns the failure that the others are like.
func (e *allFailed) Unwrap() error { return e.error }

// many returns the answer of a request about several things: 200, or 207 if
// some failed, or the failure itself if all failed with one code.
func many[T any](results []T, errs []error) (int, any, error) {
	if err := alike(errs); err != nil {
		return 0, nil, &allFailed{err, results}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return http.StatusMultiStatus, manyResults[T]{results}, nil
	}
	return http.StatusOK, manyResults[T]{results}, nil
}

// manyResults has a result for each thing that a request was about, in their order.
type manyResults[T any] struct {
	Results []T `json:"results"`
}

// alike returns the failure of a request if all of it failed with one code,
// which is what a middleware is told, and nil otherwise.
func alike(errs []error) error {
	return refusal.Common(len(errs), func(i int) error { return errs[i] })
}

// asProblem returns the problem of one of several things, or nil if it has none.
func asProblem(err error) *problem {
	if err == nil {
		return nil
	}
	p := problemOf(err)
	return &p
}

// countOf refuses a number of things that one request cannot have.
func countOf(field string, n int) error {
	if n < 1 || n > refusal.MaxMany {
		return refusal.New(tidegate.CodeBadRequest, field, fmt.Sprintf("%s has %d entries; give 1 to %d", field, n, refusal.MaxMany))
	}
	return nil
}
