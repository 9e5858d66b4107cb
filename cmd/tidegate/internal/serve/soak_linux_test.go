package serve

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

var attackSoak = flag.Duration("attack.soak", 0, "attack one process with everything in turn for so long, and require that 99 of 100 requests of another client take at most a second")

// One process with 512 MiB survives all attacks, one after the other and again, while another
// client is served without a failure: its requests can be rejected, and succeed when they are
// repeated. Without the flag each attack has a few seconds, and the times are not judged, because
// the machine may be busy.
func TestAttackedProcessSurvives(t *testing.T) {
	t.Setenv("GOMEMLIMIT", attackGo)
	p := start(t, "--data", t.TempDir(), "--topic", "orders,large,quiet,bad", "--min-invisible-duration", "0", "--min-long-polling", "0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	assert.Must(t, makeLetters(ctx, t, p, min(25, scaled(250)), 3<<20))
	attacks := []struct {
		name string
		run  func(ctx context.Context, t *testing.T, p *process) error
	}{
		{"half bodies over gRPC", func(ctx context.Context, t *testing.T, p *process) error { return halfBodies(ctx, t, p, 10, 8) }},
		{"half bodies over HTTP", func(ctx context.Context, t *testing.T, p *process) error { return halfRequests(ctx, t, p, 20) }},
		{"unread receives", func(ctx context.Context, t *testing.T, p *process) error { return unreadReceives(ctx, t, p, 10) }},
		{"waiting receives", func(ctx context.Context, t *testing.T, p *process) error { return waitingReceives(ctx, t, p, 5, 1000) }},
		{"unread routes", func(ctx context.Context, t *testing.T, p *process) error { return unreadRoutes(ctx, t, p, 20, 1000) }},
		{"resets", func(ctx context.Context, t *testing.T, p *process) error { return rapidResets(ctx, t, p, 8) }},
		{"settings left behind", leaveSettings},
		{"dead letters with bodies", readLetters},
	}
	canary := newCanary(t, p)
	served := make(chan error, 1)
	go func() { served <- canary.sing(ctx) }()
	slice, most := 250*time.Millisecond, time.Now()
	if *attackPart <= 10 {
		slice = 2 * time.Second
	}
	if *attackSoak > 0 {
		slice, most = 15*time.Second, most.Add(*attackSoak)
	}
	for rounds := 0; rounds == 0 || time.Now().Before(most); rounds++ {
		for _, a := range attacks {
			attacking, end := context.WithTimeout(ctx, slice)
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				_ = a.run(attacking, t, p) // its result does not matter
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
func readLetters(ctx context.Context, _ *testing.T, p *process) error {
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
