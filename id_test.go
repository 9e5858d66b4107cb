package tidegate

import (
	"fmt"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestMessageIDsAreUnique(t *testing.T) {
	form := regexp.MustCompile(`^01[0-9A-F]{32}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				id := NewMessageID()
				mu.Lock()
				if seen[id] || !form.MatchString(id) {
					t.Errorf("%s came twice, or is not of RocketMQ's form", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// The digits are those of RocketMQ's docs/message_id.md: version, host, process, seconds since
// 2021-01-01 and a sequence number.
func TestMessageIDHasTheDigitsOfItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where the time is 2000-01-01 at first
		time.Sleep(time.Until(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)))
		for range 300 { // all values of a byte
			id := NewMessageID()
			want := fmt.Sprintf("01%X%08X%08X", idHost, 2152*24*3600, idSequence.Load())
			if id != want {
				t.Fatalf("the ID is %s, want %s", id, want)
			}
		}
	})
}
