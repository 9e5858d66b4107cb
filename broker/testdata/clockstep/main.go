// Command clockstep is a broker whose wall clock the commands on standard input set. TestClockSteps
// builds it with a time.Now that adds time.WallStep to the wall clock.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

const (
	topic, group = "orders", "billing"

	// invisible is the invisible duration of the deliveries, and expiry the expiry-delay. The
	// retention is the default of three days.
	invisible = time.Second
	expiry    = time.Hour
)

func main() {
	b, err := open(os.Args[1])
	fmt.Println("open", err)
	if err != nil {
		return
	}
	ctx := context.Background()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f := strings.Fields(in.Text())
		n := 0
		if len(f) > 1 {
			n, _ = strconv.Atoi(f[1])
		}
		switch f[0] {
		case "step": // by so many seconds
			time.WallStep.Add(int64(n))
			fmt.Println("ok")
		case "send":
			sent := 0
			for i := range n {
				m := &tidegate.Message{ID: fmt.Sprint(time.Now().UnixNano(), "-", i), Topic: topic, Body: []byte("x")}
				if r := b.Send(ctx, []*tidegate.Message{m})[0]; r.Err == nil {
					sent++
				}
			}
			fmt.Println("sent", sent)
		case "receive", "consume": // waits for so many milliseconds; consume acknowledges the messages
			ds, err := b.Receive(ctx, transport.ReceiveRequest{
				Group: group, Topic: topic, Max: 32, Wait: time.Duration(n) * time.Millisecond, InvisibleDuration: invisible,
			})
			if err == nil && f[0] == "consume" {
				err = errors.Join(b.Ack(ctx, ds)...)
			}
			fmt.Println("received", len(ds), err)
		case "stored":
			t, err := b.Topic(topic)
			fmt.Println("stored", t.StoredMessages, err)
		case "clock":
			if c := b.Engine().Survey().Clock; c != nil {
				fmt.Println("distrusted", c.Kept, c.Postponed)
			} else {
				fmt.Println("trusted")
			}
		case "close":
			fmt.Println("closed", b.Close())
			return
		}
	}
}

// open opens the broker with the wall clock of the environment, which is that of the start.
func open(dir string) (*broker.Broker, error) {
	step, _ := strconv.ParseInt(os.Getenv("WALL_STEP"), 10, 64)
	time.WallStep.Store(step)
	b, err := broker.Open(broker.Options{Dir: dir, MinInvisibleDuration: invisible, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return nil, err
	}
	if os.Getenv("EXPIRY") != "" {
		delay := settings.Milliseconds(expiry.Milliseconds())
		if _, err := b.PutAddressSettings(context.Background(), topic, settings.Address{ExpiryDelay: &delay}); err != nil {
			return nil, err
		}
	}
	if _, err := b.Topic(topic); err != nil {
		_, err = b.PutTopic(context.Background(), topic, settings.Topic{Queues: 1})
		return b, err
	}
	return b, nil
}
