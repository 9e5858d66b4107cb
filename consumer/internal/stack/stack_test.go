package stack

import (
	"strings"
	"testing"
)

func TestStackOfAnotherGoroutine(t *testing.T) {
	numbers, release := make(chan string), make(chan struct{})
	defer close(release)
	for range 3 {
		go parkedForTheTest(numbers, release)
	}
	for range 3 {
		number := <-numbers
		got := Of(number)
		if !strings.HasPrefix(got, number) || !strings.Contains(got, "parkedForTheTest") || strings.Contains(got, "TestStackOfAnotherGoroutine(") {
			t.Errorf("the stack of %q is %q", number, got)
		}
	}
	for _, number := range []string{"", "goroutine 999999999 "} {
		if got := Of(number); got != "" {
			t.Errorf("%q has the stack %q", number, got)
		}
	}
}

func parkedForTheTest(numbers chan<- string, release <-chan struct{}) {
	numbers <- Goroutine()
	<-release
}
