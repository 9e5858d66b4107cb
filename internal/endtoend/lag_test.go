package endtoend

import (
	"context"
	"net"
	"time"

	"github.com/tidegate/tidegate/broker/brokertest"
)

// A lag is a network to a broker that takes a while, in both directions.
type lag struct {
	b     *brokertest.Broker
	delay time.Duration
}

// dial has the form of rocketmq.Options.Dialer.
func (l *lag) dial(ctx context.Context, addr string) (net.Conn, error) {
	far, err := l.b.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	near, middle := net.Pipe()
	go l.carry(middle, far)
	go l.carry(far, middle)
	return near, nil
}

// carry copies bytes in their order, each as late as the network was slow when it was read.
func (l *lag) carry(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1<<10)
	go func() {
		for c := range chunks {
			if wait := time.Until(c.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		from.Close()
		to.Close()
		for range chunks { // they are lost
		}
	}()
	defer close(chunks)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{append([]byte(nil), buf[:n]...), time.Now().Add(l.delay)}
		}
		if err != nil {
			return
		}
	}
}
