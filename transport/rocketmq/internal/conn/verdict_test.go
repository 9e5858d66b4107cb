package conn

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestVerdict(t *testing.T) {
	answered := func(c tidegate.Code) *tidegate.Error { return &tidegate.Error{Code: c} }
	errGone := errors.New("the caller has gone")
	lost := &tidegate.Error{Err: tidegate.ErrUnavailable}
	share := fmt.Errorf("the attempt's share: %w", tidegate.ErrUnavailable)
	for name, tt := range map[string]struct {
		err   *tidegate.Error
		cause error
		took  time.Duration
		want  Verdict
	}{
		"accepted":                  {want: Healthy},
		"throttled":                 {err: answered(tidegate.CodeTooManyRequests), want: Healthy},
		"broken connection":         {err: lost, want: failing},
		"attempt's share over":      {err: lost, cause: share, took: time.Millisecond, want: failing},
		"internal error":            {err: answered(tidegate.CodeInternalServerError), want: failing},
		"proxy timeout":             {err: answered(protocol.CodeProxyTimeout), want: failing},
		"wrong message":             {err: answered(tidegate.CodeMessageBodyTooLarge), want: Nothing},
		"wrong keys":                {err: answered(tidegate.CodeUnauthorized), want: Nothing},
		"no topic":                  {err: answered(tidegate.CodeTopicNotFound), want: Nothing},
		"not implemented":           {err: answered(tidegate.CodeNotImplemented), want: Nothing},
		"lane changed":              {err: &tidegate.Error{Err: transport.ErrLaneChanged}, want: Nothing},
		"closed":                    {err: &tidegate.Error{Err: tidegate.ErrClosed}, want: Nothing},
		"cancelled":                 {err: &tidegate.Error{Err: context.Canceled}, cause: context.Canceled, took: time.Hour, want: Nothing},
		"cancelled with a reason":   {err: &tidegate.Error{Err: errGone}, cause: errGone, took: time.Hour, want: Nothing},
		"short deadline":            {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience - 1, want: Nothing},
		"deadline after some while": {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience, want: failing},
	} {
		got := VerdictOf(tt.err, tt.cause, tt.took)
		assert.That(t, got == tt.want, "%s: %d, want %d", name, got, tt.want)
	}
}
