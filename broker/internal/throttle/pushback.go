package throttle

import "time"

// Bounds of the push-back that is told to producers.
const (
	MinPushBack = time.Millisecond
	MaxPushBack = 2 * time.Minute // MAX_BACKOFF of seed 004
)

// Bound returns a push-back that may be told, the nearest to d.
func Bound(d time.Duration) time.Duration { return min(max(d, MinPushBack), MaxPushBack) }

// PushBack estimates how long it takes to drain excess at a rate per second.
// 0: nothing drains, so nothing can be said.
func PushBack(excess int64, rate float64) time.Duration {
	if excess <= 0 {
		return MinPushBack
	}
	if !(rate > 0) {
		return 0
	}
	s := float64(excess) / rate
	if s >= MaxPushBack.Seconds() {
		return MaxPushBack
	}
	return max(MinPushBack, time.Duration(s*float64(time.Second)))
}
