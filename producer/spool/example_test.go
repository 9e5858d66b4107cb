package spool_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer/spool"
)

// A program inspects its spool: messages that wait, and messages that a server rejected. A producer
// with Options.Spool calls PutBatch and Drain; programs call the other methods.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	s, err := spool.Open(filepath.Join(dir, "orders.spool"), spool.Options{MaxBytes: 1 << 30})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, body := range []string{"3 apples", "4 pears"} {
		if err := s.Put(ctx, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", MessageGroup: "customer-7", Body: []byte(body)}); err != nil {
			fmt.Println(err)
			return
		}
	}
	sends := 0
	err = s.Drain(ctx, func(context.Context, []*tidegate.Message) []error {
		if sends++; sends == 2 {
			cancel() // the program ends
			return []error{tidegate.ErrUnavailable}
		}
		return []error{&tidegate.Error{Op: "SendMessage", Subject: "orders", Code: protocol.CodeMessagePropertyConflict}}
	})
	fmt.Println("drained until ctx ended:", err)

	stats := s.Stats()
	fmt.Println("pending:", stats.Pending, "rejected:", stats.Rejected)
	for _, rejected := range []bool{true, false} {
		entries, err := s.Entries(rejected, 0, 100)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range entries {
			fmt.Printf("%s: %s %s\n", e.Message.Topic, e.Message.Body, e.Reason)
			if rejected {
				n, err := s.Discard(e.Sequence) // or Requeue, if the cause is cured
				fmt.Println("discarded:", n, err)
			}
		}
	}
	// Output:
	// drained until ctx ended: <nil>
	// pending: 1 rejected: 1
	// orders: 3 apples SendMessage "orders": 40014 MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
	// discarded: 1 <nil>
	// orders: 4 pears
}
