package store

import (
	"context"
	"errors"
)

// Wait returns nil once the batch and all earlier ones are on disk, so that no power failure loses
// them. Otherwise it returns the reason. A nil PendingWrite was rejected: the Log is closed.
func (w *PendingWrite) Wait() error { return w.waitSynced(nil) }

// WaitContext is Wait, but returns the cause of ctx if ctx ends first. The batch is written in both
// cases.
func (w *PendingWrite) WaitContext(ctx context.Context) error {
	return causeOf(ctx, w.waitSynced(ctx.Done()))
}

// WaitWritten returns when the batch is readable and on its way to disk, or with the reason why it
// is not. It returns the cause of ctx if that ends first.
func (w *PendingWrite) WaitWritten(ctx context.Context) error {
	if w == nil {
		return errLogClosed
	}
	return causeOf(ctx, w.wait(w.written, &w.writeErr, ctx.Done()))
}

func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, errStopped) {
		return context.Cause(ctx)
	}
	return err
}

func (w *PendingWrite) waitSynced(stop <-chan struct{}) error {
	if w == nil {
		return errLogClosed
	}
	w = w.log.synced(w)
	return w.wait(w.done, &w.err, stop)
}

// wait waits for done and returns *err, or for the store to break (a batch may then be stuck in the
// database), or for stop.
func (w *PendingWrite) wait(done <-chan struct{}, err *error, stop <-chan struct{}) error {
	select {
	case <-done:
		return *err
	case <-stop:
		return errStopped
	case <-w.log.store.failed:
	}
	select {
	case <-done:
		return *err
	default:
		return w.log.store.Broken()
	}
}
