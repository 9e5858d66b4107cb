package pool

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPoolRunsAllJobsWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		p := New(3, goroutines.Go)
		var running, most, done atomic.Int64
		for range 20 {
			p.Do(func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				done.Add(1)
			})
		}
		begin := time.Now()
		goroutines.Wait() // they end when nothing is to be done
		if done.Load() != 20 || most.Load() != 3 || time.Since(begin) != 7*time.Second {
			t.Errorf("%d jobs, %d at a time, in %v; want 20, 3 and 7s", done.Load(), most.Load(), time.Since(begin))
		}
	})
}
