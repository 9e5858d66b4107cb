package bench

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
)

// A message that is never delivered fails some time after the last delivery of another one, so that
// the benchmark ends and reports the loss.
func TestLostMessageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies := assert.Value(ParseBodies("64"))(t)
		l := &endToEnd{LoadOptions: LoadOptions{Bodies: bodies}, verifier: NewVerifier(), waiting: map[int64]chan struct{}{}}
		started := time.Now()
		go func() {
			for i := range int64(5) { // others arrive until 40 s
				time.Sleep(8 * time.Second)
				assert.NoError(t, l.handle(t.Context(), &tidegate.Delivery{Message: tidegate.Message{Body: l.Bodies.Body(i)}}))
			}
		}()
		if out := l.await(t.Context(), 2); out.Messages != 1 || time.Since(started) != 24*time.Second {
			t.Errorf("the third message: %+v after %v", out, time.Since(started))
		}
		out := l.await(t.Context(), 99)
		if len(out.Failures) != 1 || !strings.HasPrefix(out.Failures[0], "not delivered within 10s") || time.Since(started) != 50*time.Second {
			t.Errorf("the lost message: %+v after %v, want a failure after 50s", out, time.Since(started))
		}
	})
}
