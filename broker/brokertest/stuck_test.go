package brokertest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

// A log is a buffer for several goroutines.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// The clock of the watch is the real time here.
func TestWatchReportsSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out log
		w := newWatch(time.Second, 30*time.Second, &out)
		defer w.start()()
		quick := w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "quick", Topic: "orders"}, Attempt: 1})
		slow := w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "slow", Topic: "orders"}, Attempt: 3})
		time.Sleep(25 * time.Second)
		quick()
		time.Sleep(10 * time.Minute)
		slow()
		time.Sleep(time.Minute)
		const want = "brokertest: the handler has not returned for 30s of real time: message slow of topic orders (group billing, attempt 3)\n"
		if got := out.String(); got != want {
			t.Errorf("the watch wrote %q, want %q", got, want)
		}
		// It works again after a time without handlers.
		defer w.begin("broker", "billing", &tidegate.Delivery{Message: tidegate.Message{ID: "later", Topic: "orders"}, Attempt: 1})()
		time.Sleep(time.Minute)
		if got := out.String(); !strings.Contains(got, "message later") {
			t.Errorf("the watch wrote %q, want the later handler in it", got)
		}
	})
}

func TestRunningHandlersAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(time.Second, 30*time.Second, &log{})
		defer w.start()()
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			d := &tidegate.Delivery{Message: tidegate.Message{ID: id, Topic: "orders"}, Attempt: 1}
			defer w.begin("a", "billing", d)()
			defer w.begin("b", "billing", d)()
			defer w.begin("a", "other", d)()
			time.Sleep(time.Minute)
		}
		const want = "; the handler has not returned for 5m0s: message 1 of topic orders (group billing, attempt 1)" +
			"; the handler has not returned for 4m0s: message 2 of topic orders (group billing, attempt 1)" +
			"; the handler has not returned for 3m0s: message 3 of topic orders (group billing, attempt 1)" +
			"; and 2 more handlers"
		if got := w.of("a", "billing"); got != want {
			t.Errorf("handlers of a/billing: %q, want %q", got, want)
		}
		if got := w.of("c", "billing"); got != "" {
			t.Errorf("handlers of c/billing: %q, want none", got)
		}
	})
}
