package ratelimit_test

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/ratelimit"
	"golang.org/x/time/rate"
)

// A server permits each client one send a minute and two at once, and returns the time to wait to
// clients that it rejects.
func ExampleKeyed() {
	quota, err := ratelimit.NewKeyed[string](rate.Every(time.Minute), 2, time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, client := range []string{"billing", "billing", "billing", "stock"} {
		if quota.AllowN(client, 1) {
			fmt.Println(client, "may send")
			continue
		}
		wait, _ := quota.DelayN(client, 1)
		fmt.Println(client, "may send in", wait.Round(time.Minute))
	}
	// Output:
	// billing may send
	// billing may send
	// billing may send in 1m0s
	// stock may send
}
