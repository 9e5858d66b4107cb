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
	Every     time.Duration // in place of Pause: a sender has a send due this often
	InTime    time.Duration // of a schedule: the time that a send has after it was due
	Drain     time.Duration // after the sends: the limit for their deliveries
	FIFO      bool          // each sender has a message group of its own
	Size      int           // of a body, in bytes
	Handlers  int           // of the push consumer, which start at the same time
	Work      time.Duration // of a handler, for each message
	Total     int           // the messages of a backlog, after whose deliveries the run ends; 0: it ends on request
	Limit     time.Duration // of the deliveries of a backlog; 0 for none
	Retries   bool          // ours waits as the official client does after a throttle: 10 ms, doubled up to 1 s
	Logs      string        // a directory for the client's log; empty for none
}

// A result is the record of one side in one run.
type result struct {
	Began, Ended time.Time
	Sends        []send
	Deliveries   []delivery
	Undelivered  int           // accepted messages of a schedule without a delivery
	CPU          time.Duration // of the process, from Began to Ended
}

// A send is one call of the client's Send.
type send struct {
	At   time.Time
	Took time.Duration
	Err  string // empty if it was accepted
	Late bool   // by a schedule: it ended after its time
	Lost bool   // by a schedule: it was due and not made, because the send before it took too long
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
	r := newRecorder(s)
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
	r.began = began
	if s.Total > 0 {
		if err := c.consume(ctx); err != nil {
			return err
		}
		if !r.consumed(ctx, s.Limit) {
			return context.Cause(ctx)
		}
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
		send := r.sendAll
		if s.Every > 0 {
			send = r.sendBySchedule
		}
		for i := range s.Senders {
			senders.Go(func() { send(ctx, c, s, i, stop) })
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
	r.drain(ctx, s.Drain)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Every > 0 {
		r.addLost(s)
	}
	return json.NewEncoder(out).Encode(result{
		Began: began, Ended: r.ended, Sends: r.sends, Deliveries: r.deliveries, Undelivered: len(r.missing), CPU: r.cpu,
	})
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

// A message is one message of the load.
type message struct{ sender, seq int }

// A recorder notes sends and deliveries.
type recorder struct {
	total  int
	work   time.Duration
	inTime time.Duration // 0 without a schedule
	began  time.Time     // set before the senders
	probed chan struct{} // closed after the delivery of a probe
	done   chan struct{} // closed after total deliveries
	once   sync.Once

	mu         sync.Mutex
	ended      time.Time
	cpu        time.Duration
	sends      []send
	deliveries []delivery
	underWay   map[message]time.Time // starts of the sends under way
	made       map[message]bool      // sends that began
	delivered  map[message]bool
	missing    map[message]bool // of a schedule: accepted and not delivered
}

func newRecorder(s spec) *recorder {
	return &recorder{
		total: s.Total, work: s.Work, inTime: s.InTime, probed: make(chan struct{}), done: make(chan struct{}),
		underWay: map[message]time.Time{}, made: map[message]bool{}, delivered: map[message]bool{}, missing: map[message]bool{},
	}
}

func (r *recorder) deliver(b []byte) {
	d := delivery{At: time.Now()}
	d.Sender, d.Seq = parse(b)
	if d.Sender == probe {
		r.once.Do(func() { close(r.probed) })
		return
	}
	r.note(d)
	if r.work > 0 {
		<-time.After(r.work)
	}
}

func (r *recorder) note(d delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := message{d.Sender, d.Seq}
	r.delivered[m] = true
	delete(r.missing, m)
	if r.deliveries = append(r.deliveries, d); len(r.deliveries) == r.total {
		close(r.done)
	}
}

// consumed waits for the deliveries of a backlog, at most for a limit; 0 means none. It returns
// false if ctx ends before.
func (r *recorder) consumed(ctx context.Context, limit time.Duration) bool {
	var over <-chan time.Time
	if limit > 0 {
		over = time.After(limit)
	}
	select {
	case <-r.done:
	case <-over:
	case <-ctx.Done():
		return false
	}
	return true
}

// sendAll is one sender. Its sends have no deadline.
func (r *recorder) sendAll(ctx context.Context, c client, s spec, sender int, stop <-chan struct{}) {
	for seq := 0; ; seq++ {
		r.send(ctx, c, s, message{sender, seq}, time.Time{})
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

// due returns the time at which a send is due. The first sends of the senders are spread over the
// time Every.
func (s spec) due(began time.Time, m message) time.Time {
	return began.Add(s.Every*time.Duration(m.sender)/time.Duration(s.Senders) + s.Every*time.Duration(m.seq))
}

// sendBySchedule is one sender of a schedule, an open loop that offers both clients the same number
// of sends a second. If the send before it takes longer, the sender makes the due sends afterwards,
// one after the other, like a program that keeps the order of a message group. It does not make
// those whose time is over; they count as sends that were not accepted. So a client that hangs does
// not gain by the sends that it did not make.
//
// It returns after the sends that were due before the end of the run. They have no deadline: the
// client does not know the time that a send has.
func (r *recorder) sendBySchedule(ctx context.Context, c client, s spec, sender int, stop <-chan struct{}) {
	for seq := 0; ctx.Err() == nil; seq++ {
		m := message{sender, seq}
		due := s.due(r.began, m)
		if wait := time.Until(due); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-stop:
				timer.Stop()
			}
		}
		select {
		case <-stop: // r.ended is set
			if !due.Before(r.ended) {
				return
			}
		default:
		}
		if time.Since(due) < s.InTime {
			r.send(ctx, c, s, m, due)
		}
	}
}

// send makes a send and notes it. The time that it was due is zero without a schedule.
func (r *recorder) send(ctx context.Context, c client, s spec, m message, due time.Time) {
	at := time.Now()
	r.begin(m, at)
	err := c.send(ctx, s.Topic, groupOf(s, m.sender), body(m.sender, m.seq, s.Size))
	r.end(m, due, time.Since(at), err)
}

func (r *recorder) begin(m message, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.underWay[m], r.made[m] = at, true
}

// end notes the end of a send, unless await has noted it as failed.
func (r *recorder) end(m message, due time.Time, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.underWay[m]
	if !ok {
		return
	}
	delete(r.underWay, m)
	x := send{At: at, Took: took, Late: !due.IsZero() && at.Add(took).Sub(due) > r.inTime}
	switch {
	case err != nil:
		x.Err = err.Error()
	case !due.IsZero() && !r.delivered[m]: // a consumer can be faster than the response
		r.missing[m] = true
	}
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
	clear(r.underWay)
}

// drain waits until all accepted messages have been delivered, at most for a limit.
func (r *recorder) drain(ctx context.Context, limit time.Duration) {
	over := time.After(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		n := len(r.missing)
		r.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}

// addLost notes the sends that were due before the end of the run and not made. It is called with
// r.mu held.
func (r *recorder) addLost(s spec) {
	for sender := range s.Senders {
		for m := (message{sender: sender}); s.due(r.began, m).Before(r.ended); m.seq++ {
			if !r.made[m] {
				r.sends = append(r.sends, send{At: s.due(r.began, m), Lost: true, Err: "the send before it took until its time was over"})
			}
		}
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
