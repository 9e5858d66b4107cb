//go:build unix

package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is the processor time of this process; 0 if it is not known.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
