package settings_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
)

// WithDefaults shows the settings in effect, and Validate names each invalid field.
func Example() {
	group := settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, MaxAttempts: 5}
	fmt.Println(group.Validate(), group.WithDefaults().FIFORetryInterval)

	group.FIFO = false
	fmt.Println(group.Validate())

	// Output:
	// <nil> 3s
	// on_exhausted is "park" and fifo is false; set fifo, or give dead-letter
}

// The JSON of settings is that of the HTTP API and of the configuration file.
func ExampleGroup() {
	group := settings.Group{
		MaxAttempts: 3,
		Retry:       backoff.Steps{time.Second, time.Minute},
		NegativeAck: settings.NegativeAck{Delay: settings.Duration(5 * time.Second)},
	}
	text, err := json.Marshal(group)
	fmt.Println(string(text), err)

	// Output:
	// {"max_attempts":3,"retry":"1s 1m","negative_ack":{"delay":"5s"}} <nil>
}
