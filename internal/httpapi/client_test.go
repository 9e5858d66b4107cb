package httpapi

import (
	"context"
	"errors"
	"testing"

	"github.com/tidegate/tidegate"
)

// A fast broker must not accept a request after Close.
func TestRequestsAfterCloseHaveEnded(t *testing.T) {
	c, err := New("127.0.0.1:1", Options{Op: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for range 100 {
		ctx, stop := c.within(context.Background())
		cause := context.Cause(ctx)
		stop()
		if !errors.Is(cause, tidegate.ErrClosed) {
			t.Fatalf("the context of a request after Close: %v, want ErrClosed", cause)
		}
	}
}
