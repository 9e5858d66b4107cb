package broker

import "testing"

// BenchmarkOpen is the cost of a broker in memory for a test.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		br, err := Open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := br.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
