package consumer

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Items that arrive during a request share the next request, within both limits. Each is sent once,
// and nothing runs afterwards.
func TestBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		var mu sync.Mutex
		var sent []int
		var sizes []int
		running := 0
		b := newBatch(4, 2, goroutines.Go, func(list []int) {
			mu.Lock()
			sent, sizes = append(sent, list...), append(sizes, len(list))
			if running++; running > 2 {
				t.Errorf("%d requests under way", running)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		})
		for i := range 15 {
			b.Add(i)
			synctest.Wait()
		}
		begin := time.Now()
		goroutines.Wait()
		slices.Sort(sent)
		if len(slices.Compact(sent)) != 15 || len(sent) != 15 || slices.Max(sizes) != 4 || time.Since(begin) != 3*time.Second {
			t.Errorf("sent %v in requests of %v within %v", sent, sizes, time.Since(begin))
		}
		b.Add(15)
		goroutines.Wait()
		if len(sizes) != 7 {
			t.Errorf("%d requests, want another one for the last item", len(sizes))
		}
	})
}
