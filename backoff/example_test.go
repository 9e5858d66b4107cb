package backoff_test

import (
	"fmt"

	"github.com/tidegate/tidegate/backoff"
)

func ExamplePreview() {
	fmt.Println(backoff.Preview(backoff.RetryLadder(), 16))
	// Output:
	// retry  after   total
	//     1    10s     10s
	//     2    30s     40s
	//     3     1m   1m40s
	//     4     2m   3m40s
	//     5     3m   6m40s
	//     6     4m  10m40s
	//     7     5m  15m40s
	//     8     6m  21m40s
	//     9     7m  28m40s
	//    10     8m  36m40s
	//    11     9m  45m40s
	//    12    10m  55m40s
	//    13    20m   1h16m
	//    14    30m   1h46m
	//    15     1h   2h46m
	//    16     2h   4h46m
	// 16 retries in 4h46m
}

func ExampleExponential_Range() {
	policy := backoff.Default()
	for _, n := range []int{0, 1, 2, 30} {
		lo, hi := policy.Range(n)
		fmt.Printf("retry %d comes after %v to %v\n", n+1, lo, hi)
	}
	// Output:
	// retry 1 comes after 800ms to 1.2s
	// retry 2 comes after 1.28s to 1.92s
	// retry 3 comes after 2.048s to 3.072s
	// retry 31 comes after 1m36s to 2m24s
}

func ExampleSteps() {
	var ladder backoff.Steps
	if err := ladder.UnmarshalText([]byte("500ms 1m 1h30m")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ladder)
	fmt.Println("retry 100 comes after", ladder.Delay(99))
	// Output:
	// 500ms 1m 1h30m
	// retry 100 comes after 1h30m0s
}
