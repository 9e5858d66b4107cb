package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A demo is a server with one message in each topic. Programs use transport/rocketmq instead.
type demo struct {
	consumer.Transport // for the methods that the example does not call

	mu       sync.Mutex
	messages map[string]string
}

func (d *demo) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	return transport.ConsumerSettings{}, nil
}

func (d *demo) Queues(context.Context, string, string) ([]int, error) {
	return []int{transport.AnyQueue}, nil
}

func (d *demo) Capabilities(string) transport.Capabilities {
	return transport.Capabilities{RepeatReceive: true}
}

func (d *demo) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	d.mu.Lock()
	body, ok := d.messages[r.Topic]
	delete(d.messages, r.Topic)
	d.mu.Unlock()
	if ok {
		return []*tidegate.Delivery{{Message: tidegate.Message{Topic: r.Topic, Body: []byte(body)}, Attempt: 1}}, nil
	}
	if r.Repeat {
		return nil, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (d *demo) Settle(context.Context, *tidegate.Delivery, transport.Verdict) (transport.RetryResult, error) {
	return transport.RetryResult{}, nil
}

func (d *demo) Ack(_ context.Context, ds []*tidegate.Delivery) []error { return make([]error, len(ds)) }

// One consumer of several topics, each with its filter, as with several calls of
// subscribe(topic, expression) of a RocketMQ client. The handler finds the topic in the delivery.
func ExampleNewPush_topics() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t := &demo{messages: map[string]string{"orders": "3 apples", "returns": "1 apple"}}
	handled := make(chan string, 2)
	c, err := consumer.NewPush(t, consumer.Subscription{
		Group: "billing",
		Topics: map[string]tidegate.Filter{
			"orders":  consumer.Tags("paid", "refunded"),
			"returns": {}, // all messages
		},
	}, func(_ context.Context, d *tidegate.Delivery) error {
		handled <- fmt.Sprintf("%s: %s", d.Topic, d.Body)
		return nil
	}, consumer.PushOptions{Concurrency: 10}) // of both topics together
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		fmt.Println(<-handled)
		fmt.Println(<-handled)
		cancel()
	}()
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Unordered output:
	// orders: 3 apples
	// returns: 1 apple
}

// The lines of all messages of a batch are written at once. A message that cannot be read is the
// only one that fails.
func ExampleNewBatch() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t := &demo{messages: map[string]string{"orders": "3 apples", "returns": "no number"}}
	write := func(_ context.Context, lines []string) error { // such as one INSERT
		fmt.Println("wrote", lines)
		return nil
	}
	c, err := consumer.NewBatch(t, consumer.Subscription{
		Group: "billing", Topics: map[string]tidegate.Filter{"orders": {}, "returns": {}},
	}, func(ctx context.Context, ds []*tidegate.Delivery) error {
		defer cancel()
		var lines []string
		result := make(consumer.BatchResult, len(ds))
		for i, d := range ds {
			var n int
			if _, err := fmt.Sscan(string(d.Body), &n); err != nil {
				result[i] = consumer.DeadLetterNow(fmt.Errorf("%s: %q has no number", d.Topic, d.Body))
				fmt.Println(result)
				continue
			}
			lines = append(lines, string(d.Body))
		}
		if err := write(ctx, lines); err != nil {
			return err // all messages are retried
		}
		return result // nil for the messages that were written
	}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 2, MaxWait: 5 * time.Second}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1 of 2 messages of the batch failed, the first one with: returns: "no number" has no number
	// wrote [3 apples]
}
