package brokertest_test

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate/broker/brokertest"
)

// inBubbles measures the CPU time of f in bubbles of their own, as tests use it. A benchmark has no
// bubble.
func inBubbles(b *testing.B, f func(tb testing.TB, b *brokertest.Broker)) {
	test := testing.InternalTest{Name: b.Name(), F: func(t *testing.T) {
		brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) { f(t, b) })
	}}
	before := cpu(b)
	for b.Loop() {
		if !testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{test}) {
			b.Fatal("the test failed")
		}
	}
	b.ReportMetric((cpu(b)-before)*1000/float64(b.N), "cpu-ms/op")
}

// cpu returns the CPU time of the process in seconds.
func cpu(b *testing.B) float64 {
	var u unix.Rusage
	assert.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// The cost of three hours of virtual time with an idle consumer.
func BenchmarkIdleConsumer(b *testing.B) { inBubbles(b, consumeNothing) }

// The cost of the whole retry schedule, from the first attempt to the dead letter.
func BenchmarkRetrySchedule(b *testing.B) { inBubbles(b, failAlways) }
