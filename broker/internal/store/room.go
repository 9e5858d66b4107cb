package store

import (
	"context"
	"time"
)

// roomLook is the interval at which Room checks whether to continue to wait.
const roomLook = 50 * time.Millisecond

// Full reports whether the Log holds as many bytes as it may, 64 MiB or less on a small disk: Room
// would wait.
func (l *Log) Full() bool { return l.held.Load()+l.reserved.Load() >= l.store.maxHeld }

// Room waits until the Log can hold more, and reserves n bytes for the caller. The caller calls
// Release after it has added them, or if it does not add them. The bound can be exceeded by the
// bytes of one caller, but not by those of several. An error reserves nothing: it is the cause of
// ctx or the result of refused. refused, if not nil, is called before and during the wait; its
// error ends the wait.
func (l *Log) Room(ctx context.Context, n int64, refused func() error) error {
	waited := false
	for ; !l.reserve(n); waited = true {
		if refused != nil {
			if err := refused(); err != nil {
				return err
			}
		}
		select {
		case <-l.freed:
		case <-time.After(roomLook):
		case <-l.done:
			l.reserved.Add(n) // Add reports that the Log is closed
			return nil
		case <-l.store.failed:
			l.reserved.Add(n) // likewise
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if waited {
		signal(l.freed) // for the next one
	}
	return nil
}

func (l *Log) reserve(n int64) bool {
	for {
		reserved := l.reserved.Load()
		if l.held.Load()+reserved >= l.store.maxHeld {
			return false
		}
		if l.reserved.CompareAndSwap(reserved, reserved+n) {
			return true
		}
	}
}

// Release ends a reservation of Room. The bytes that were added by then count as held.
func (l *Log) Release(n int64) {
	l.reserved.Add(-n)
	signal(l.freed)
}
