package web

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// allFailed is the error of a request about several things all of which failed
// with one code.
type allFailed struct {
	error
	results any
}

// Unwrap returns the failure that the others are like.
func (e *allFailed) Unwrap() error { return e.error }

// Many returns the response of a request about several items with the errors errs: 200, or 207 if
// some failed, or the error itself if all failed with one code.
func Many[T any](results []T, errs []error) (int, any, error) {
	if err := Alike(errs); err != nil {
		return 0, nil, &allFailed{err, results}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return http.StatusMultiStatus, Results[T]{results}, nil
	}
	return http.StatusOK, Results[T]{results}, nil
}

// Results has a result for each thing that a request was about, in their order.
type Results[T any] struct {
	Results []T `json:"results"`
}

// Alike returns the error of a request, for middleware, if all items failed with one code, and nil
// otherwise.
func Alike(errs []error) error {
	return refusal.Common(len(errs), func(i int) error { return errs[i] })
}

// CheckCount rejects a number of entries that one request cannot have.
func CheckCount(field string, n int) error {
	if n < 1 || n > refusal.MaxMany {
		return refusal.New(tidegate.CodeBadRequest, field, fmt.Sprintf("%s has %d entries; give 1 to %d", field, n, refusal.MaxMany))
	}
	return nil
}
