package transit

import "time"

const (
	// grace is how long a request or response may take in any case.
	grace = 10 * time.Second

	// leastPace is how many bytes a second must arrive or be read beyond that.
	leastPace = 64 << 10
)

// Pace returns how long a client may take to send a request or to read a response of that many
// bytes: 10 s, and 1 s more for each 64 KiB.
func Pace(bytes int64) time.Duration {
	return grace + time.Duration(bytes)*time.Second/leastPace
}
