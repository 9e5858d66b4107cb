//go:build !unix

package bench

import "time"

// processorTime is the processor time of this process; 0 if it is not known.
func processorTime() time.Duration { return 0 }
