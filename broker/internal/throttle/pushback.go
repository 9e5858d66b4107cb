package throttle

import "time"

// Bounds of the push-back that is told to producers.
const (
	minPushBack = time.Millisecond
	maxPushBack = 2 * time.Minute // MAX_BACKOFF of "RocketMQ: sending retry and throttling"
)

// Bound returns the nearest to d of what producers may be told, 1 ms to 2 min.
func Bound(d time.Duration) time.Duration { return min(max(d, minPushBack), maxPushBack) }

// pushBack estimates how long it takes to drain excess at a rate per second.
// 0: nothing drains, so nothing can be said.
func pushBack(excess int64, rate float64) time.Duration {
	if excess <= 0 {
		return minPushBack
	}
	if !(rate > 0) {
		return 0
	}
	s := float64(excess) / rate
	if s >= maxPushBack.Seconds() {
		return maxPushBack
	}
	return max(minPushBack, time.Duration(s*float64(time.Second)))
}
