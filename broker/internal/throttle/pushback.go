package throttle

import "time"

// The bounds of the wait that the broker announces to producers.
const (
	minPushBack = time.Millisecond
	maxPushBack = 2 * time.Minute // MAX_BACKOFF of "RocketMQ: sending retry and throttling"
)

// Bound returns d, but at least 1 ms and at most 2 min: the bounds of the wait that the broker
// announces to producers.
func Bound(d time.Duration) time.Duration { return min(max(d, minPushBack), maxPushBack) }

// maxDrainTime bounds estimates: it is as good as never.
const maxDrainTime = 10_000 * time.Hour

// drainTime estimates how long it takes to drain excess at a rate per second, at least 1 ms. It
// returns 0 if nothing drains, so that there is no estimate.
func drainTime(excess int64, rate float64) time.Duration {
	if excess <= 0 {
		return minPushBack
	}
	if !(rate > 0) {
		return 0
	}
	s := float64(excess) / rate
	if s >= maxDrainTime.Seconds() {
		return maxDrainTime
	}
	return max(minPushBack, time.Duration(s*float64(time.Second)))
}

// pushBack is drainTime within the bounds of the wait of producers.
func pushBack(excess int64, rate float64) time.Duration {
	return min(drainTime(excess, rate), maxPushBack)
}
