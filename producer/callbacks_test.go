package producer

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tidegate/tidegate"
)

// The functions of the messages of one message group are called in the order of the messages,
// also while other goroutines send and finish requests of the same topic.
func TestFunctionsOfAGroupAreCalledInOrder(t *testing.T) {
	p := newProducer(t, script(), Options{})
	const groups, messages = 8, 2000
	var mu sync.Mutex
	next := map[string]int{}
	wrong := 0
	var senders, done sync.WaitGroup
	for g := range groups {
		group := fmt.Sprint("group", g)
		senders.Go(func() {
			for n := range messages {
				done.Add(1)
				m := &tidegate.Message{Topic: "orders", MessageGroup: group, Body: []byte("x")}
				if err := p.SendAsync(context.Background(), m, func(_ tidegate.Receipt, err error) {
					defer done.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil || next[group] != n {
						wrong++
					}
					next[group] = n + 1
				}); err != nil {
					t.Error(err)
					done.Done()
				}
			}
		})
	}
	senders.Wait()
	done.Wait()
	if wrong > 0 {
		t.Errorf("%d of %d functions were called in the wrong order", wrong, groups*messages)
	}
}
