package producer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// rejecting returns a server that responds to the first n requests with a code, and accepts all
// others. Programs use transport/rocketmq instead.
func rejecting(n int, code tidegate.Code) *transporttest.Fake {
	return &transporttest.Fake{OnSend: func(_ context.Context, request int, _ transport.Lane, msgs []*tidegate.Message) []error {
		if request > n {
			return nil
		}
		return []error{&tidegate.Error{Op: "SendMessage", Subject: msgs[0].Topic, Endpoint: "broker:8081", Code: code}}
	}}
}

func ExampleProducer_Send() {
	p, err := producer.New(rejecting(1, tidegate.CodeTooManyRequests), producer.Options{Backoff: backoff.Steps{10 * time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	fmt.Println(receipt.Attempts, err)
	// Output: 2 <nil>
}

// Messages of an outage wait on the local disk, and are sent when it is over.
func ExampleSpool() {
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
	defer s.Close() // after the producer

	var over atomic.Bool
	server := &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
		if over.Load() {
			return nil
		}
		return []error{tidegate.ErrUnavailable}
	}}
	p, err := producer.New(server, producer.Options{Spool: s})
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	fmt.Println("spooled:", receipt.Spooled, "error:", err)

	over.Store(true)
	for s.Stats().Pending > 0 {
		<-time.After(10 * time.Millisecond)
	}
	accounts, err := p.Shutdown(context.Background())
	fmt.Println("spooled:", accounts.Spooled, "sent from the spool:", accounts.Drained, "error:", err)
	// Output:
	// spooled: true error: <nil>
	// spooled: 1 sent from the spool: 1 error: <nil>
}

func ExampleProducer_SendAsync() {
	p, err := producer.New(&transporttest.Fake{}, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 3 {
		m := &tidegate.Message{Topic: "orders", MessageGroup: "customer-7", Body: fmt.Appendf(nil, "order %d", i)}
		err := p.SendAsync(context.Background(), m, func(_ tidegate.Receipt, err error) {
			fmt.Printf("%s: %v\n", m.Body, err)
		})
		if err != nil {
			fmt.Println("not accepted:", err)
		}
	}
	// Unlike Close, Shutdown waits for the messages that were accepted.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	accounts, err := p.Shutdown(ctx)
	fmt.Println(accounts.Accepted, accounts.Delivered, len(accounts.Undelivered), err)
	// Output:
	// order 0: <nil>
	// order 1: <nil>
	// order 2: <nil>
	// 3 3 0 <nil>
}

// Consumers receive the message if, and only if, the order is in the database. The directory
// examples/transaction has the whole program with an SQL database.
func ExampleProducer_Transact() {
	orders := map[string]string{} // the database: orders by message ID
	server := &transporttest.Fake{
		OnEndTransaction: func(_ context.Context, _ int, _ transport.Transaction, r transport.Resolution) error {
			fmt.Println("the server receives:", r)
			return nil
		},
	}
	p, err := producer.New(server, producer.Options{
		Checker: func(_ context.Context, check transport.TransactionCheck) transport.Resolution {
			if _, ok := orders[check.Transaction.MessageID]; ok {
				return transport.Commit
			}
			return transport.Rollback
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// From the start of the program: the checks can concern transactions of an earlier process.
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := p.ServeChecks(context.Background(), "orders"); err != nil && !errors.Is(err, tidegate.ErrClosed) {
			fmt.Println(err)
		}
	})
	defer serving.Wait()
	defer p.Close() // ends ServeChecks

	for _, order := range []string{"3 apples", "4 dragons"} {
		_, err := p.Transact(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte(order)},
			func(_ context.Context, msg *tidegate.Message) error {
				if order == "4 dragons" {
					return errors.New("not in stock")
				}
				orders[msg.ID] = order
				return nil
			})
		fmt.Printf("%s: %v\n", order, err)
	}
	// Output:
	// the server receives: commit
	// 3 apples: <nil>
	// the server receives: rollback
	// 4 dragons: not in stock
}

func ExampleProducer_SendBatch() {
	p, err := producer.New(&transporttest.Fake{}, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	results := p.SendBatch(context.Background(), []*tidegate.Message{
		{Topic: "orders", Body: []byte("3 apples")},
		{Topic: "orders", Tag: "a|b", Body: []byte("4 pears")},
	})
	for _, r := range results {
		fmt.Println(r.Err)
	}
	// Output:
	// <nil>
	// send to "orders": "tag": 40004 ILLEGAL_MESSAGE_TAG: "a|b" is blank, not UTF-8, or has '|' or a control character
}

func ExampleSendError_Fault() {
	p, err := producer.New(rejecting(1, tidegate.CodeTopicNotFound), producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	_, err = p.Send(context.Background(), &tidegate.Message{Topic: "odrers", Body: []byte("3 apples")})
	if e, ok := errors.AsType[*producer.SendError](err); ok {
		switch e.Fault() {
		case producer.MessageFault:
			fmt.Println("reject the order")
		case producer.SetupFault:
			fmt.Println("keep the order and alert:", err)
		case producer.PassingFault:
			fmt.Println("keep the order, and send it again in", tidegate.RetryAfter(err))
		}
	}
	// Output: keep the order and alert: send to "odrers": attempt 1 of 3 at broker:8081: 40402 TOPIC_NOT_FOUND
}

func ExampleOptions_Preview() {
	fmt.Println(producer.Options{MaxAttempts: 5}.Preview())
	// Output:
	// retry           after           total
	//     1   800ms to 1.2s   800ms to 1.2s
	//     2  1.28s to 1.92s  2.08s to 3.12s
	//     3  2.05s to 3.07s  4.13s to 6.19s
	//     4  3.28s to 4.92s  7.4s to 11.11s
	// 4 retries in 7.4s to 11.11s
}
