package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause waits in the kernel, which ends a wait within about 60 µs. A timer of Go on an idle
// processor ends up to 1 ms late.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal ends it early, and the caller waits again
}
