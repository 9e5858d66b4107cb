package store

import (
	"context"
	"errors"
)

// Wait returns when the batch, and all before it, is on disk, or with the reason why it is not: no
// power failure takes it back. A nil Flight was rejected: the Log is closed.
func (f *Flight) Wait() error { return f.waitSynced(nil) }

// WaitContext is Wait, but returns the cause of ctx if that ends first; the batch comes to
// disk all the same.
func (f *Flight) WaitContext(ctx context.Context) error {
	return causeOf(ctx, f.waitSynced(ctx.Done()))
}

// WaitWritten returns when the batch is readable and on its way to disk, or with the reason why it
// is not. It returns the cause of ctx if that ends first.
func (f *Flight) WaitWritten(ctx context.Context) error {
	if f == nil {
		return errLogClosed
	}
	return causeOf(ctx, f.wait(f.written, &f.writeErr, ctx.Done()))
}

func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, errStopped) {
		return context.Cause(ctx)
	}
	return err
}

func (f *Flight) waitSynced(stop <-chan struct{}) error {
	if f == nil {
		return errLogClosed
	}
	f = f.log.synced(f)
	return f.wait(f.done, &f.err, stop)
}

// wait waits for done and returns *err, or for the store to break (a batch may then be stuck in the
// database), or for stop.
func (f *Flight) wait(done <-chan struct{}, err *error, stop <-chan struct{}) error {
	select {
	case <-done:
		return *err
	case <-stop:
		return errStopped
	case <-f.log.store.failed:
	}
	select {
	case <-done:
		return *err
	default:
		return f.log.store.Broken()
	}
}
