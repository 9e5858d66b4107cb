package conn

import (
	"fmt"
	"sync/atomic"

	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The number of a queue belongs to one broker permanently; that of a broker that is gone means
// none.
func TestPlacesAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		var next atomic.Uint64
		see := func(names ...string) *Route {
			r := &Route{}
			for _, name := range names {
				r.Readers = append(r.Readers, Broker{PB: &rmqpb.Broker{Name: name}})
			}
			l.Note(r, time.Minute)
			return r
		}
		expect := func(r *Route, number int, want string) {
			t.Helper()
			if b, id, ok := l.Source(r, &next, number<<brokerShift|7); ok != (want != "") || b.PB.GetName() != want || ok && id != 7 {
				t.Errorf("place %d: broker %q, queue %d, want %q", number, b.PB.GetName(), id, want)
			}
		}
		r := see("a", "b")
		expect(r, 0, "a")
		expect(r, 1, "b")
		r = see("b")
		expect(r, 0, "")
		expect(r, 1, "b")
		time.Sleep(ForgetAfter * time.Minute)
		r = see("a", "b") // back, just in time
		expect(r, 0, "a")
		time.Sleep(time.Minute)
		see("b")
		time.Sleep(ForgetAfter * time.Minute)
		see("b")
		r = see("b", "c", "a") // a was away for too long
		expect(r, 0, "")
		expect(r, 1, "b")
		expect(r, 2, "c")
		expect(r, 3, "a")
	})
}

// The memory for brokers that appear and vanish, each with a name of its own, does not grow.
func TestPlacesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		for i := range 100 {
			l.Note(&Route{Readers: []Broker{{PB: &rmqpb.Broker{Name: fmt.Sprint("pod-", i)}}}}, time.Minute)
			time.Sleep(time.Minute)
		}
		n := len(l.byName)
		assert.That(t, n <= ForgetAfter+1, "%d places are kept after 100 brokers", n)
	})
}
