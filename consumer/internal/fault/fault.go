// Package fault collects the faults of options, so that one error can list all of them.
package fault

import (
	"errors"
	"fmt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
)

// A List is a list of faults. The zero value is empty.
type List struct{ errs []error }

// Add adds a fault of a field.
func (l *List) Add(field, format string, args ...any) {
	l.Append(&tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)})
}

// Append adds an error that names its field.
func (l *List) Append(err error) { l.errs = append(l.errs, err) }

// Wrap adds an error under the name of its field.
func (l *List) Wrap(field string, err error) { l.Append(fmt.Errorf("%s: %w", field, err)) }

// NotNegative adds a fault if n, the number in value, is negative.
func (l *List) NotNegative(field string, n int64, value any) {
	if n < 0 {
		l.Add(field, "%v is negative; give a positive value, or 0 for the default", value)
	}
}

// Policy adds a fault if p has a method Validate that returns an error.
func (l *List) Policy(field string, p backoff.Policy) {
	if v, ok := p.(interface{ Validate() error }); ok {
		if err := guard.Error("Validate", nil, v.Validate); err != nil {
			l.Append(&tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Err: err})
		}
	}
}

// Empty reports whether there are no faults.
func (l *List) Empty() bool { return len(l.errs) == 0 }

// Err returns one error with all faults, nil if there are none.
func (l *List) Err() error {
	if l.Empty() {
		return nil
	}
	return fmt.Errorf("consumer: %w", errors.Join(l.errs...))
}
