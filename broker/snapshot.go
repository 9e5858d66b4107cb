package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// Snapshot writes a consistent copy of the data directory to dir, while the broker works. All
// requests that were acknowledged before the call are in the copy. To restore it, copy it to
// Options.Dir of a broker that is not running. A file copy of a running broker's directory is not
// supported: Open rejects it if its files are of different moments.
//
// dir must not exist, and must be on the file system of Options.Dir, because the copy has links to
// files of the broker. Sends and settlements wait while the logs are copied, some milliseconds.
// Other calls of Snapshot wait for this one. If the call fails, it removes the incomplete copy. The
// error of a broker without Options.Dir has code 40000.
func (b *Broker) Snapshot(ctx context.Context, dir string) error {
	return refusal.WithOp("Snapshot", b.snapshot(ctx, dir))
}

func (b *Broker) snapshot(ctx context.Context, dir string) error {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return err
	}
	defer end()
	if b.opts.Dir == "" {
		return &tidegate.Error{Code: tidegate.CodeBadRequest, Err: errors.New("the broker is in memory; a snapshot needs a data directory")}
	}
	if err := b.catalog.LockAdmin(ctx); err != nil {
		return err
	}
	defer b.catalog.UnlockAdmin()
	if err := b.store.Snapshot(ctx, dir); err != nil {
		return refusal.Store(fmt.Errorf("writing a snapshot to %s: %w", dir, err))
	}
	return nil
}
