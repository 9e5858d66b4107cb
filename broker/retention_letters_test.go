package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Dead letters that were redriven or purged take no space of their topic's retention, in any place.
func TestRetentionByBytesOfDeadLettersWithHoles(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{1, 3} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
				putTopic(t, b, "back", settings.Topic{})
				putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
				putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues, DuplicateWindow: -1, Retention: settings.Retention{Bytes: 1000}})
				next := 0
				letters := func(n int) {
					t.Helper()
					for range n {
						mustSend(t, b, &tidegate.Message{ID: fmt.Sprint("m", next), Topic: "t", Body: make([]byte, 100)})
						next++
						if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
							t.Fatal(err)
						}
						elapse(1500 * time.Millisecond)
					}
				}
				sel := func(from, to int) (s status.DeadLetterSelection) {
					for i := from; i < to; i++ {
						s.MessageIDs = append(s.MessageIDs, fmt.Sprint("m", i))
					}
					s.To = "back"
					return s
				}
				has := func(when string, want ...int) {
					t.Helper()
					elapse(5 * time.Second)
					found := map[string]bool{}
					for _, d := range receiveAll(t, b, "%DLQ%g") {
						found[d.Properties[protocol.PropertyDeadLetterMessageID]] = true
					}
					var missing []string
					for _, i := range want {
						if id := fmt.Sprint("m", i); !found[id] {
							missing = append(missing, id)
						}
					}
					if info, err := b.Topic("%DLQ%g"); err != nil || len(missing) > 0 || len(found) != len(want) || info.StoredBytes != int64(len(want))*100 {
						t.Fatalf("%s: %d letters, %d bytes, without %s; want %v; %v", when, len(found), info.StoredBytes, strings.Join(missing, " "), want, err)
					}
				}
				letters(9)
				if done, err := b.RedriveDeadLetters(t.Context(), "g", sel(2, 9)); err != nil || done.Redriven != 7 {
					t.Fatal(done, err)
				}
				letters(3)
				has("500 bytes", 0, 1, 9, 10, 11)
				b = reopen(t, b, fs)
				letters(5)
				has("1000 bytes", 0, 1, 9, 10, 11, 12, 13, 14, 15, 16)
				letters(1)
				has("one too many", 1, 9, 10, 11, 12, 13, 14, 15, 16, 17)
				if done, err := b.PurgeDeadLetters(t.Context(), "g", sel(10, 12)); err != nil || done.Purged != 2 {
					t.Fatal(done, err)
				}
				letters(2)
				has("purged", 1, 9, 12, 13, 14, 15, 16, 17, 18, 19)
				letters(4) // the oldest go, with the removed ones between them
				has("four too many", 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
				putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues, DuplicateWindow: -1, Retention: settings.Retention{Bytes: 250}})
				has("a lower bound", 22, 23)
			})
		})
	}
}
