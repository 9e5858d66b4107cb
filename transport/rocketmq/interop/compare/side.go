package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A spec is the load of one side in one run. Both sides have the same, with names of their own.
type spec struct {
	Endpoint  string
	Topic     string        // of the senders
	PushTopic string        // of the push consumer; empty for none
	Group     string        // of the push consumer
	Senders   int           // each sends one message after the other
	Pause     time.Duration // of a sender, after each send
	FIFO      bool          // each sender has a message group of its own
	Size      int           // of a body, in bytes
	Handlers  int           // of the push consumer, which start at the same time
	Total     int           // the run ends after so many deliveries; 0: it ends on request
	Retries   bool          // ours waits as the official client does after a throttle: 10 ms, doubled up to 1 s
	Logs      string        // a directory for the client's log; empty for none
}

// A result is the record of one side in one run.
type result struct {
	Began, Ended time.Time
	Sends        []send
	Deliveries   []delivery
	CPU          time.Duration // of the process, from Began to Ended
}

// A send is one call of the client's Send.
type send struct {
	At   time.Time
	Took time.Duration
	Err  string // empty if it was accepted
}

// A delivery is one call of the handler.
type delivery struct {
	At          time.Time
	Sender, Seq int
}

// A client is one of the two that are compared.
type client interface {
	// start connects. The push consumer calls deliver for each delivery, after consume.
	start(ctx context.Context, s spec, deliver func(body []byte)) error
	// consume starts the push consumer.
	consume(ctx context.Context) error
	// send sends one message; group may be empty.
	send(ctx context.Context, topic, group string, body []byte) error
}

// The words of the protocol between the program and the process of a side, one in each line.
const (
	wordReady = "ready" // the client is connected
	wordGo    = "go"    // begin
	wordDone  = "done"  // spec.Total is reached
	wordStop  = "stop"  // end, and write the result
)

// grace is the time that the sends under way have after the end of the run.
const grace = 30 * time.Second

// probe is the sender of messages that are not part of the load.
const probe = -1

// runSide is the process of a side. It is a process of its own so that its CPU time can be read,
// and so that neither client's garbage collection delays the other.
func runSide(ctx context.Context, c client, s spec, in io.Reader, out io.Writer) error {
	r := &recorder{total: s.Total, probed: make(chan struct{}), done: make(chan struct{})}
	if err := c.start(ctx, s, r.deliver); err != nil {
		return err
	}
	if err := c.send(ctx, s.Topic, groupOf(s, probe), body(probe, 0, s.Size)); err != nil {
		return fmt.Errorf("the first send: %w", err)
	}
	if s.PushTopic != "" && s.Total == 0 { // a measured consumer begins with its backlog
		if err := warm(ctx, c, s, r.probed); err != nil {
			return err
		}
	}
	lines := bufio.NewScanner(in)
	if _, err := fmt.Fprintln(out, wordReady); err != nil {
		return err
	}
	if !lines.Scan() || lines.Text() != wordGo {
		return errors.New("no word to begin")
	}
	began, cpu := time.Now(), cpuTime()
	if s.Total > 0 {
		if err := c.consume(ctx); err != nil {
			return err
		}
		<-r.done
		r.mu.Lock()
		r.ended, r.cpu = time.Now(), cpuTime()-cpu
		r.mu.Unlock()
		if _, err := fmt.Fprintln(out, wordDone); err != nil {
			return err
		}
	}
	stop := make(chan struct{})
	var senders sync.WaitGroup
	if s.Total == 0 {
		for i := range s.Senders {
			senders.Go(func() { r.sendAll(ctx, c, s, i, stop) })
		}
	}
	if !lines.Scan() || lines.Text() != wordStop {
		return errors.New("no word to end")
	}
	if s.Total == 0 {
		r.ended, r.cpu = time.Now(), cpuTime()-cpu
	}
	close(stop)
	r.await(&senders)
	r.mu.Lock()
	defer r.mu.Unlock()
	return json.NewEncoder(out).Encode(result{Began: began, Ended: r.ended, Sends: r.sends, Deliveries: r.deliveries, CPU: r.cpu})
}

// warm waits until the push consumer has handled a message.
func warm(ctx context.Context, c client, s spec, probed <-chan struct{}) error {
	if err := c.consume(ctx); err != nil {
		return err
	}
	if err := c.send(ctx, s.PushTopic, groupOf(s, probe), body(probe, 0, s.Size)); err != nil {
		return fmt.Errorf("the first send to the consumer: %w", err)
	}
	select {
	case <-probed:
		return nil
	case <-time.After(time.Minute):
		return errors.New("the push consumer got no message within a minute")
	}
}

// A recorder notes sends and deliveries.
type recorder struct {
	total  int
	probed chan struct{} // closed after the delivery of a probe
	done   chan struct{} // closed after total deliveries
	once   sync.Once

	mu         sync.Mutex
	ended      time.Time
	cpu        time.Duration
	sends      []send
	deliveries []delivery
	underWay   map[int]time.Time // sender → start of its send
}

func (r *recorder) deliver(b []byte) {
	d := delivery{At: time.Now()}
	d.Sender, d.Seq = parse(b)
	if d.Sender == probe {
		r.once.Do(func() { close(r.probed) })
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deliveries = append(r.deliveries, d); len(r.deliveries) == r.total {
		close(r.done)
	}
}

// sendAll is one sender. Its sends have no deadline.
func (r *recorder) sendAll(ctx context.Context, c client, s spec, sender int, stop <-chan struct{}) {
	group := groupOf(s, sender)
	for seq := 0; ; seq++ {
		at := time.Now()
		r.begin(sender, at)
		err := c.send(ctx, s.Topic, group, body(sender, seq, s.Size))
		r.end(sender, at, time.Since(at), err)
		if s.Pause == 0 {
			select {
			case <-stop:
				return
			default:
				continue
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(s.Pause):
		}
	}
}

func (r *recorder) begin(sender int, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.underWay == nil {
		r.underWay = map[int]time.Time{}
	}
	r.underWay[sender] = at
}

func (r *recorder) end(sender int, at time.Time, took time.Duration, err error) {
	x := send{At: at, Took: took}
	if err != nil {
		x.Err = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.underWay, sender)
	r.sends = append(r.sends, x)
}

// await waits for the sends under way. One that outlives the grace has failed.
func (r *recorder) await(senders *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		senders.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-time.After(grace):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.underWay {
		r.sends = append(r.sends, send{At: at, Took: time.Since(at), Err: "no result " + grace.String() + " after the run"})
	}
}

func groupOf(s spec, sender int) string {
	if !s.FIFO {
		return ""
	}
	return "sender " + strconv.Itoa(sender)
}

// body returns a body that names its sender and number.
func body(sender, seq, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, max(size, 32)), "%d %d ", sender, seq)
	for len(b) < size {
		b = append(b, 'x')
	}
	return b
}

func parse(b []byte) (sender, seq int) {
	first, rest, _ := strings.Cut(string(b[:min(len(b), 32)]), " ")
	second, _, _ := strings.Cut(rest, " ")
	sender, err1 := strconv.Atoi(first)
	seq, err2 := strconv.Atoi(second)
	if err1 != nil || err2 != nil {
		return probe, 0
	}
	return sender, seq
}

// cpuTime returns the CPU time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A process is a running side.
type process struct {
	words io.Writer
	lines *bufio.Reader
	end   func() // kills it
}

// say sends a word, unless it is empty, and returns the next line.
func (p *process) say(word string) (string, error) {
	if word != "" {
		if _, err := fmt.Fprintln(p.words, word); err != nil {
			return "", err
		}
	}
	line, err := p.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}
