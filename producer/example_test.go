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
)

// A demo is a server that throttles the first attempt and knows the topic orders
// alone. Programs use transport/rocketmq instead.
type demo struct{ attempts int }

func (d *demo) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		d.attempts++
		switch {
		case m.Topic != "orders":
			results[i].Err = &tidegate.Error{Op: "SendMessage", Subject: m.Topic, Endpoint: "broker:8081", Code: tidegate.CodeTopicNotFound}
		case d.attempts == 1:
			results[i].Err = &tidegate.Error{Op: "SendMessage", Subject: m.Topic, Endpoint: "broker:8081", Code: tidegate.CodeTooManyRequests}
		default:
			results[i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Endpoint: "broker:8081"}
		}
	}
	return results
}

func (d *demo) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func ExampleProducer_Send() {
	p, err := producer.New(&demo{}, producer.Options{Backoff: backoff.Steps{10 * time.Millisecond}})
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

// An outage is a server that refuses connections for a while.
type outage struct {
	demo
	over atomic.Bool
}

func (o *outage) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if o.over.Load() {
		return o.demo.Send(ctx, msgs)
	}
	results := make([]transport.SendResult, len(msgs))
	for i := range results {
		results[i].Err = &tidegate.Error{Op: "SendMessage", Subject: msgs[i].Topic, Endpoint: "broker:8081", Err: tidegate.ErrUnavailable}
	}
	return results
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

	server := &outage{demo: demo{attempts: 1}}
	p, err := producer.New(server, producer.Options{Spool: s})
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	fmt.Println("spooled:", receipt.Spooled, "error:", err)

	server.over.Store(true)
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
	p, err := producer.New(&demo{attempts: 1}, producer.Options{})
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

// A transactional server adds half messages to the demo.
type transactional struct{ demo }

func (*transactional) SendHalf(_ context.Context, m *tidegate.Message) transport.SendResult {
	return transport.SendResult{Receipt: tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Endpoint: "broker:8081", TransactionID: "1"}}
}

func (*transactional) EndTransaction(_ context.Context, _ transport.Transaction, r transport.Resolution) error {
	fmt.Println("the server receives:", r)
	return nil
}

func (*transactional) ServeChecks(ctx context.Context, _ []string, _ func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	<-ctx.Done() // this server has no unresolved transactions
	return nil
}

// Consumers receive the message if, and only if, the order is in the database. The directory
// examples/transaction has the whole program with an SQL database.
func ExampleProducer_Transact() {
	orders := map[string]string{} // the database: orders by message ID
	p, err := producer.New(&transactional{}, producer.Options{
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
	p, err := producer.New(&demo{attempts: 1}, producer.Options{})
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
	p, err := producer.New(&demo{}, producer.Options{})
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
