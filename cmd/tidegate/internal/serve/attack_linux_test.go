package serve

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

var (
	// attackPart is 10 in the step "random tests" of .ci/run, whose attacks last longer.
	attackPart = flag.Int("attack.part", 50, "attack the process with this part of the requests that SECURITY-MODEL.md promises to survive; 1 for all")
	attackSoak = flag.Duration("attack.soak", 0, "attack one process with everything in turn for so long, and require that 99 of 100 requests of another client take at most a second")
)

const (
	// attackMemory is the memory of the attacked process in bytes, attackGo the part of it that Go
	// may use.
	attackMemory = 512 << 20
	attackGo     = "410MiB" // goPart
)

// scaled returns the part of n requests.
func scaled(n int) int { return max(n / *attackPart, 1) }

// Clients send half of their requests, do not read their responses, or wait in large numbers. One
// process with 512 MiB survives all attacks, one after the other and again, while another client is
// served without a failure: its requests can be rejected, and succeed when they are repeated. Without
// -attack.soak each attack has a few seconds, and the times are not judged, because the machine may
// be busy.
func TestAttackedProcessSurvives(t *testing.T) {
	t.Setenv("GOMEMLIMIT", attackGo)
	p := start(t, "--data", t.TempDir(), "--topic", "orders,large,quiet,bad", "--min-invisible-duration", "0", "--min-long-polling", "0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	assert.Must(t, makeLetters(ctx, t, p, min(25, scaled(250)), 3<<20))
	attacks := []struct {
		name string
		run  func(ctx context.Context) error
	}{
		{"half bodies over gRPC, one connection", func(ctx context.Context) error { return halfBodies(ctx, t, p, 1, scaled(80)) }},
		{"half bodies over gRPC, many connections", func(ctx context.Context) error { return halfBodies(ctx, t, p, max(scaled(200), 10), 8) }},
		{"half bodies over HTTP", func(ctx context.Context) error { return halfRequests(ctx, t, p, max(scaled(50), 20)) }},
		{"responses that are not read", func(ctx context.Context) error { return unreadReceives(ctx, t, p, max(scaled(100), 10)) }},
		{"receives that wait, few connections", func(ctx context.Context) error { return waitingReceives(ctx, t, p, 10, max(scaled(10_000), 1000)) }},
		{"receives that wait, many connections", func(ctx context.Context) error { return waitingReceives(ctx, t, p, scaled(500), 200) }},
		{"small responses that are not read", func(ctx context.Context) error { return unreadRoutes(ctx, t, p, max(scaled(200), 20), 1000) }},
		{"streams that are reset at once", func(ctx context.Context) error { return rapidResets(ctx, t, p, 8) }},
		{"settings left behind", func(ctx context.Context) error { return leaveSettings(ctx, t, p) }},
		{"dead letters with bodies", func(ctx context.Context) error { return readLetters(ctx, p) }},
	}
	canary := newCanary(t, p)
	served := make(chan error, 1)
	go func() { served <- canary.sing(ctx) }()
	slice, most := max(20*time.Second/time.Duration(*attackPart), 3*time.Second), time.Now()
	if *attackSoak > 0 {
		slice, most = 15*time.Second, most.Add(*attackSoak)
	}
	for rounds := 0; rounds == 0 || time.Now().Before(most); rounds++ {
		for _, a := range attacks {
			attacking, end := context.WithTimeout(ctx, slice)
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				_ = a.run(attacking) // its result does not matter
			}()
			select {
			case <-attacking.Done():
			case err := <-served:
				end()
				t.Fatalf("during %s, others are not served any more: %v\n%.3000s", a.name, err, p.stderr.String())
			}
			end()
			<-ran
			// Another client is served afterwards too, and the process lives.
			select {
			case <-canary.rounds:
			case err := <-served:
				t.Fatalf("after %s, others are not served any more: %v\n%.3000s", a.name, err, p.stderr.String())
			}
		}
	}
	stop()
	assert.Is(t, "others", <-served, context.Canceled)
	p99, requests := canary.p99()
	peak := peakMemory(t, p)
	t.Logf("at most %d MiB; %d requests of others, %d of them rejected at first, %d acknowledgements repeated after a lost response; 99 of 100 took at most %v, the slowest %v",
		peak>>20, requests, canary.refused.Load(), canary.repeated.Load(), p99.Round(time.Millisecond), time.Duration(canary.slowest.Load()).Round(time.Millisecond))
	assert.That(t, peak <= attackMemory || raceDetector, "the process had %d MiB", peak>>20)
	assert.That(t, *attackSoak <= 0 || p99 <= time.Second, "99 of 100 requests of others took up to %v", p99)
}

// peakMemory returns the most memory that the process had, in bytes.
func peakMemory(t *testing.T, p *process) int64 {
	t.Helper()
	text := assert.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))(t)
	for line := range strings.Lines(string(text)) {
		var kilobytes int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	t.Fatalf("there is no VmHWM in %s", text)
	return 0
}

// A canary is a client that does nothing wrong.
type canary struct {
	c        *rocketmq.Client
	http     string
	rounds   chan struct{}   // gets one for each round that ends while a test waits
	refused  atomic.Int64    // requests, which were tried again
	acked    map[string]bool // message IDs; used by sing
	repeated atomic.Int64    // acknowledgements that got 40013, after the response to the first one was lost
	slowest  atomic.Int64    // request, with its repetitions, in ns

	mu    sync.Mutex
	times []time.Duration // guarded by mu: of the requests, with their repetitions
}

// note records the time of a request.
func (c *canary) note(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, took)
}

// p99 returns the time that 99 of 100 requests did not exceed, and the number of requests.
func (c *canary) p99() (p99 time.Duration, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sorted := slices.Sorted(slices.Values(c.times))
	if len(sorted) == 0 {
		return 0, 0
	}
	return sorted[(len(sorted)*99+99)/100-1], len(sorted)
}

func newCanary(t *testing.T, p *process) *canary {
	return &canary{c: dial(t, p), http: p.http, rounds: make(chan struct{}), acked: map[string]bool{}}
}

// sing sends, receives and acknowledges until ctx ends, or a request fails for half a minute.
func (c *canary) sing(ctx context.Context) error {
	for n := 0; ; n++ {
		var got []*tidegate.Delivery
		var acks acknowledgements
		for _, step := range []func(ctx context.Context) error{
			func(ctx context.Context) error {
				return c.c.Send(ctx, []*tidegate.Message{{Topic: "orders", ID: fmt.Sprint("canary-", n), Body: make([]byte, 1<<10)}})[0].Err
			},
			func(ctx context.Context) (err error) {
				got, err = c.c.Receive(ctx, transport.ReceiveRequest{Group: "canary", Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute})
				for _, d := range got {
					if c.acked[d.ID] {
						return violation{fmt.Errorf("message %s was delivered after its acknowledgement, as attempt %d", d.ID, d.Attempt)}
					}
				}
				acks = acknowledgements{left: got}
				return err
			},
			func(ctx context.Context) error { return acks.send(ctx, c) },
			c.ready,
		} {
			if err := c.persist(ctx, step); err != nil {
				return err
			}
		}
		select {
		case c.rounds <- struct{}{}:
		default:
		}
	}
}

// A violation is an error that a repetition does not excuse.
type violation struct{ error }

// acknowledgements acknowledge the messages of one receive.
type acknowledgements struct {
	left  []*tidegate.Delivery
	maybe map[string]bool // by message ID: the response to an earlier attempt was lost
}

// send acknowledges the deliveries that are left. An acknowledgement ends the lease, and the broker
// does not remember the handles of ended leases. A repetition after a lost response therefore gets
// 40013. Without a lost response 40013 is a violation: the invisible duration is a minute, and
// persist gives up after half of it.
func (a *acknowledgements) send(ctx context.Context, c *canary) error {
	var left []*tidegate.Delivery
	var failed error
	for i, err := range c.c.Ack(ctx, a.left) {
		d := a.left[i]
		e, ok := errors.AsType[*tidegate.Error](err)
		switch invalid := ok && e.Code == tidegate.CodeInvalidReceiptHandle; {
		case invalid && !a.maybe[d.ID]:
			return violation{fmt.Errorf("the first acknowledgement of %s that the broker responded to: %w", d.ID, err)}
		case invalid:
			c.repeated.Add(1)
			c.acked[d.ID] = true
		case err == nil:
			c.acked[d.ID] = true
		default:
			if ok && e.MaybeStored {
				if a.maybe == nil {
					a.maybe = map[string]bool{}
				}
				a.maybe[d.ID] = true
			}
			left, failed = append(left, d), err
		}
	}
	a.left = left
	return failed
}

// persist repeats a step that is rejected, as clients do.
func (c *canary) persist(ctx context.Context, step func(context.Context) error) error {
	began := time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := step(attempt)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if v, ok := errors.AsType[violation](err); ok {
			return v
		}
		if took := time.Since(began); err == nil {
			if int64(took) > c.slowest.Load() {
				c.slowest.Store(int64(took))
			}
			c.note(took)
			return nil
		}
		if c.refused.Add(1); time.Since(began) > 30*time.Second {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (c *canary) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+c.http+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s, %w", resp.Status, err)
	}
	return nil
}

const rpcs = "/apache.rocketmq.v2.MessagingService/"

// attacker connects to the gRPC port.
func attacker(ctx context.Context, t *testing.T, p *process, window uint32) (*endtoend.Conn, error) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", p.grpc)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	context.AfterFunc(ctx, func() { c.Close() })
	return endtoend.New(c, window)
}

// halfBodies sends the larger part of a request of 20 MiB on each stream of each connection.
func halfBodies(ctx context.Context, t *testing.T, p *process, conns, streams int) error {
	half := endtoend.Message(20<<20, make([]byte, 19<<20))
	var wg sync.WaitGroup
	for range conns {
		c, err := attacker(ctx, t, p, 1<<20)
		if err != nil {
			return err
		}
		for range streams {
			wg.Go(func() {
				if id, err := c.Open(rpcs+"SendMessage", "x-mq-client-id", "attacker"); err == nil {
					_ = c.Write(id, half, false) // as much as it gets
				}
			})
		}
	}
	return within(&wg, time.Minute, "half of the bodies")
}

// halfRequests sends the larger part of a JSON body of 15 MiB over each connection.
func halfRequests(ctx context.Context, t *testing.T, p *process, conns int) error {
	half := bytes.Repeat([]byte{'A'}, 14<<20)
	var wg sync.WaitGroup
	for range conns {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", p.http)
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		context.AfterFunc(ctx, func() { c.Close() })
		wg.Go(func() {
			if _, err := fmt.Fprintf(c, "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"body\":\"", 15<<20); err == nil {
				_, _ = c.Write(half)
			}
		})
	}
	return within(&wg, time.Minute, "half of the requests")
}

// unreadReceives receives four messages of 4 MiB in each of many groups and reads nothing.
func unreadReceives(ctx context.Context, t *testing.T, p *process, groups int) error {
	large := newCanary(t, p)
	for i := range 4 {
		m := []*tidegate.Message{{Topic: "large", ID: fmt.Sprint("large-", i), Body: make([]byte, 4<<20)}}
		if err := large.persist(ctx, func(ctx context.Context) error { return large.c.Send(ctx, m)[0].Err }); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	for i := range groups {
		c, err := attacker(ctx, t, p, 0)
		if err != nil {
			return err
		}
		wg.Go(func() { receive(c, "large", fmt.Sprint("unread-", i)) })
	}
	return within(&wg, time.Minute, "the receives")
}

// unreadRoutes requests the route of a topic again and again and reads nothing.
func unreadRoutes(ctx context.Context, t *testing.T, p *process, conns, streams int) error {
	raw, err := proto.Marshal(&rmqpb.QueryRouteRequest{Topic: &rmqpb.Resource{Name: "orders"}})
	if err != nil {
		return err
	}
	return flood(ctx, t, p, conns, streams, 0, func(c *endtoend.Conn) {
		if id, err := c.Open(rpcs+"QueryRoute", "x-mq-client-id", "attacker"); err == nil {
			_ = c.Write(id, endtoend.Message(len(raw), raw), true)
		}
	})
}

// rapidResets opens streams and cancels them at once, as fast as the server reads, until ctx ends.
// It connects again when the server closes a connection (CVE-2023-44487).
func rapidResets(ctx context.Context, t *testing.T, p *process, conns int) error {
	for range conns {
		go func() {
			for ctx.Err() == nil {
				raw, err := new(net.Dialer).DialContext(ctx, "tcp", p.grpc)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { raw.Close() })
				c, err := endtoend.New(raw, 1<<20)
				for err == nil {
					var id uint32
					if id, err = c.Open(rpcs+"QueryRoute", "x-mq-client-id", "attacker"); err == nil {
						err = c.Reset(id)
					}
				}
				stop()
				raw.Close()
			}
		}()
	}
	return nil
}

// flood has many connections with many requests each.
func flood(ctx context.Context, t *testing.T, p *process, conns, streams int, window uint32, request func(c *endtoend.Conn)) error {
	var wg sync.WaitGroup
	for range conns {
		c, err := attacker(ctx, t, p, window)
		if err != nil {
			return err
		}
		wg.Go(func() {
			for range streams {
				request(c)
			}
		})
	}
	return within(&wg, time.Minute, "the requests")
}

// waitingReceives parks receives on a topic without messages.
func waitingReceives(ctx context.Context, t *testing.T, p *process, conns, streams int) error {
	return flood(ctx, t, p, conns, streams, 1<<20, func(c *endtoend.Conn) { receive(c, "quiet", "waiting") })
}

// receive begins a receive.
func receive(c *endtoend.Conn, topic, group string) {
	raw, err := proto.Marshal(&rmqpb.ReceiveMessageRequest{
		Group:        &rmqpb.Resource{Name: group},
		MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}, Id: -1}, BatchSize: 32,
		InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(20 * time.Second),
	})
	if err != nil {
		panic(err)
	}
	if id, err := c.Open(rpcs+"ReceiveMessage", "x-mq-client-id", "attacker"); err == nil {
		_ = c.Write(id, endtoend.Message(len(raw), raw), true)
	}
}

// within waits until all goroutines have written their requests, at most for d. A goroutine that
// waits for the server continues until the end of the test closes its connection.
func within(wg *sync.WaitGroup, d time.Duration, what string) error {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(d):
		return fmt.Errorf("%s were not sent within %v", what, d)
	}
}

// makeLetters makes dead letters of the group bad.
func makeLetters(ctx context.Context, t *testing.T, p *process, n, size int) error {
	c := newCanary(t, p)
	for i := range n {
		m := []*tidegate.Message{{Topic: "bad", ID: fmt.Sprint("bad-", i), Body: make([]byte, size)}}
		if err := c.persist(ctx, func(ctx context.Context) error { return c.c.Send(ctx, m)[0].Err }); err != nil {
			return err
		}
		if err := c.persist(ctx, func(ctx context.Context) error {
			ds, err := c.c.Receive(ctx, transport.ReceiveRequest{Group: "bad", Topic: "bad", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
			if err != nil || len(ds) == 0 {
				return errors.Join(err, errors.New("nothing was received"))
			}
			_, err = c.c.Settle(ctx, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// readLetters requests all dead letters with their bodies, eight requests at a time, until ctx
// ends.
func readLetters(ctx context.Context, p *process) error {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, "GET", "http://"+p.http+"/v1/groups/bad/dead-letters?bodies=true&limit=25", nil)
				if err != nil {
					return
				}
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// leaveSettings has clients send settings of almost 64 KiB and go, until ctx ends.
func leaveSettings(ctx context.Context, t *testing.T, p *process) error {
	settings := &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{}}}
	for i := range 1000 {
		topics := &settings.GetPublishing().Topics
		*topics = append(*topics, &rmqpb.Resource{Name: fmt.Sprintf("%05d%s", i, bytes.Repeat([]byte{'t'}, 45))})
	}
	raw, err := proto.Marshal(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}})
	if err != nil {
		return err
	}
	for n := 0; ctx.Err() == nil; {
		c, err := attacker(ctx, t, p, 1<<20)
		if err != nil {
			return err
		}
		for range 100 {
			n++
			id, err := c.Open(rpcs+"Telemetry", "x-mq-client-id", fmt.Sprint("leaves-", time.Now().UnixNano(), "-", n))
			if err != nil {
				break
			}
			if err := c.Write(id, endtoend.Message(len(raw), raw), true); err != nil {
				break
			}
		}
		c.Close()
	}
	return nil
}
