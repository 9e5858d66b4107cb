package interop

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

var (
	rounds   = flag.Int("figures", 0, "rounds of a comparison with a bare go-amqp program; 0: none")
	duration = flag.Duration("figures.time", 5*time.Second, "time of each measurement of sends")
	only     = flag.String("figures.only", "", "measure only names with this text")
	backlog  = flag.Int("figures.backlog", 20000, "messages of each measurement of receives")
)

const workers = 64

// TestFigures compares producer and consumer with a program that uses go-amqp alone: sends of 64
// callers and receives of 64 workers, of messages of 1 KiB, in turns on the same server.
func TestFigures(t *testing.T) {
	if *rounds == 0 {
		t.Log("-figures gives the number of rounds")
		return
	}
	s := start(t, artemis.Options{Properties: map[string]string{
		`addressSettings."#".autoCreateAddresses`: "true", `addressSettings."#".maxSizeBytes`: "-1", "globalMaxSize": "-1",
	}})
	a, err := connect(t.Context(), s.Address())
	if err != nil {
		t.Fatal(err)
	}
	measures := []struct {
		name string
		run  func(topic string) float64
		got  []float64
	}{
		{name: "sends, go-amqp", run: func(topic string) float64 { return bareSends(t, s.Address(), topic) }},
		{name: "sends, tidegate", run: func(topic string) float64 { return ourSends(t, s.Address(), topic) }},
		{name: "receives, go-amqp", run: func(topic string) float64 { return bareReceives(t, s.Address(), topic) }},
		{name: "receives, tidegate", run: func(topic string) float64 { return ourReceives(t, s.Address(), topic) }},
	}
	for round := range *rounds {
		for i := range measures {
			m := &measures[i]
			if !strings.Contains(m.name, *only) {
				continue
			}
			topic := fmt.Sprintf("figures-%d-%d", round, i)
			if err := a.createGroup(t.Context(), topic, "billing"); err != nil {
				t.Fatal(err)
			}
			if i >= 2 {
				fill(t, s.Address(), topic)
			}
			m.got = append(m.got, m.run(topic))
			if _, err := a.do(t.Context(), "queue."+topic+".billing", "removeAllMessages"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range measures {
		m := &measures[i]
		if len(m.got) == 0 {
			continue
		}
		sorted := slices.Sorted(slices.Values(m.got))
		t.Logf("%-20s median %6.0f/s of %.0f", m.name, sorted[len(sorted)/2], m.got)
	}
}

func body() []byte { return make([]byte, 1024) }

// during calls send in 64 goroutines and returns the calls in a second.
func during(t *testing.T, d time.Duration, send func(ctx context.Context) error) float64 {
	t.Helper()
	var wg sync.WaitGroup
	var n atomic.Int64
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for time.Since(begin) < d {
				if err := send(t.Context()); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(begin).Seconds()
}

func dial(t *testing.T, address string) *goamqp.Session {
	t.Helper()
	conn, err := goamqp.Dial(t.Context(), "amqp://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	session, err := conn.NewSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func bareSends(t *testing.T, address, topic string) float64 {
	t.Helper()
	s, err := dial(t, address).NewSender(t.Context(), topic, nil)
	if err != nil {
		t.Fatal(err)
	}
	return during(t, *duration, func(ctx context.Context) error {
		m := goamqp.NewMessage(body())
		m.Header = &goamqp.MessageHeader{Durable: true}
		id := tidegate.NewMessageID()
		m.Properties = &goamqp.MessageProperties{MessageID: id}
		m.ApplicationProperties = map[string]any{"_AMQ_DUPL_ID": id}
		return s.Send(ctx, m, nil)
	})
}

func ourSends(t *testing.T, address, topic string) float64 {
	t.Helper()
	p := sends(t, clientOf(t, address), producer.Options{})
	return during(t, *duration, func(ctx context.Context) error {
		_, err := p.Send(ctx, &tidegate.Message{Topic: topic, Body: body()})
		return err
	})
}

// fill sends the backlog of a group.
func fill(t *testing.T, address, topic string) {
	t.Helper()
	c := client(t, address, amqp.Options{RequestTimeout: time.Minute})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			var msgs []*tidegate.Message
			for range *backlog / workers {
				msgs = append(msgs, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: body()})
			}
			for part := range slices.Chunk(msgs, 100) {
				for _, r := range c.Send(t.Context(), part) {
					if r.Err != nil {
						t.Error(r.Err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func bareReceives(t *testing.T, address, topic string) float64 {
	t.Helper()
	r, err := dial(t, address).NewReceiver(t.Context(), topic+"::"+topic+".billing", &goamqp.ReceiverOptions{
		Credit: 1024, SourceCapabilities: []string{"topic"},
	})
	if err != nil {
		t.Fatal(err)
	}
	total := int64(*backlog / workers * workers)
	messages := make(chan *goamqp.Message)
	var wg sync.WaitGroup
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for m := range messages {
				if err := r.AcceptMessage(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range total {
		m, err := r.Receive(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		messages <- m
	}
	close(messages)
	wg.Wait()
	return float64(total) / time.Since(begin).Seconds()
}

func ourReceives(t *testing.T, address, topic string) float64 {
	t.Helper()
	total := int64(*backlog / workers * workers)
	var n atomic.Int64
	done := make(chan struct{})
	begin := time.Now()
	stop := consume(t, clientOf(t, address), consumer.Subscription{Group: "billing", Topic: topic}, func(context.Context, *tidegate.Delivery) error {
		if n.Add(1) == total {
			close(done)
		}
		return nil
	}, consumer.PushOptions{Concurrency: workers})
	<-done
	elapsed := time.Since(begin)
	stop()
	return float64(total) / elapsed.Seconds()
}
