package transit

import "context"

type holdKey struct{}

// With returns a context that carries the hold of a request.
func With(ctx context.Context, h *Hold) context.Context { return context.WithValue(ctx, holdKey{}, h) }

// Of returns the hold of the request that a context belongs to, or one of an endless budget.
func Of(ctx context.Context) *Hold {
	if h, ok := ctx.Value(holdKey{}).(*Hold); ok {
		return h
	}
	h := endless.Hold(nil, nil)
	return &h
}

var endless = New("memory", 1<<62, 0)
