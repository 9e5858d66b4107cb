package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A scripted client sends in the time and with the result of a function, and delivers each message
// that it accepts unless the function says otherwise.
type scripted struct {
	send1   func(m message) (took time.Duration, dropped bool, err error)
	deliver func(body []byte)
}

func (c *scripted) start(context.Context, spec, func([]byte)) error { return nil }
func (c *scripted) consume(context.Context) error                   { return nil }
func (c *scripted) send(_ context.Context, _, _ string, body []byte) error {
	var m message
	m.sender, m.seq = parse(body)
	took, dropped, err := c.send1(m)
	<-time.After(took)
	if err == nil && !dropped {
		c.deliver(body)
	}
	return err
}

// offer runs a schedule against a client for a time and returns the run.
func offer(t *testing.T, s spec, d time.Duration, send1 func(message) (time.Duration, bool, error)) run {
	t.Helper()
	r := newRecorder(s)
	c := &scripted{send1: send1, deliver: r.deliver}
	r.began = time.Now()
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i := range s.Senders {
		senders.Go(func() { r.sendBySchedule(t.Context(), c, s, i, stop) })
	}
	<-time.After(d)
	r.ended = time.Now()
	close(stop)
	r.await(&senders)
	r.drain(t.Context(), s.Drain)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLost(s)
	return run{result: result{Began: r.began, Ended: r.ended, Sends: slices.Clone(r.sends), Deliveries: r.deliveries, Undelivered: len(r.missing)}}
}

// Two senders have a send due every second for 9.9 s, the second one half a second after the first.
// Send 2 of the first sender takes 5.5 s. It is accepted at 7.5 s, 2.5 s too late. At that time 3
// and 4 have been due for more than 3 s; 5 to 7 follow at once. Send 1 of the second sender fails.
// Of the accepted messages, number 4 of the second sender is not delivered.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := spec{Senders: 2, Every: time.Second, InTime: 3 * time.Second, Drain: time.Minute, Size: 32}
		r := offer(t, s, 9900*time.Millisecond, func(m message) (time.Duration, bool, error) {
			switch m {
			case message{0, 2}:
				return 5500 * time.Millisecond, false, nil
			case message{1, 1}:
				return 0, false, errors.New("refused")
			}
			return 0, m == message{1, 4}, nil
		})
		if got, want := r.fate(), (fate{due: 20, failed: 1, late: 1, lost: 2}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got := time.Since(r.Ended); got != time.Minute {
			t.Errorf("the drain took %v, want %v", got, time.Minute)
		}
		for c, want := range map[*cell]float64{
			&notAccepted: 4, &accepted: 17, &boundedSend: 5.5, &acceptance: 10, &acceptedGap: 1.5, &undelivered: 1, &duplicates: 0, &outOfOrder: 0,
		} {
			if got := c.value(r); got != want {
				t.Errorf("%s is %v, want %v", c.name, got, want)
			}
		}
		if got, want := notAccepted.detail(r), "4 of 20 (1 failed, 1 late, 2 not made)"; got != want {
			t.Errorf("in words %q, want %q", got, want)
		}
	})
}

// A client hangs in the send that was due at 4 s. Of the 10 sends 4 are accepted, one has no
// result, and 5 are not made. The longest send lasts until the end of the grace, from 4 s to 10 s
// and grace.
func TestScheduleOfAHangingClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		s := spec{Senders: 1, Every: time.Second, InTime: 3 * time.Second, Drain: time.Minute, Size: 32}
		r := offer(t, s, 10*time.Second, func(m message) (time.Duration, bool, error) {
			if m.seq == 4 {
				<-hang
			}
			return 0, false, nil
		})
		if got, want := r.fate(), (fate{due: 10, failed: 1, lost: 5}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got, want := boundedSend.value(r), (6*time.Second + grace).Seconds(); got != want {
			t.Errorf("the longest send is %v, want %v", got, want)
		}
		if got := acceptedGap.value(r); got != 7 { // from 3 s to the end
			t.Errorf("the longest gap is %v, want 7", got)
		}
		close(hang)
	})
}

func TestClusterCells(t *testing.T) {
	r := run{result: result{Began: at(0), Ended: at(2000), Deliveries: []delivery{
		{at(100), 0, 0}, {at(200), 0, 1}, {at(300), 0, 0}, {at(400), 1, 0}, {at(500), 0, 0},
	}}}
	if got := duplicates.value(r); got != 2 {
		t.Errorf("%v duplicates, want 2", got)
	}
	if got := backlogRate.value(r); got != 1.5 { // 3 messages in 2 s
		t.Errorf("%v messages a second, want 1.5", got)
	}
}

// steps notes what a row does to the servers, with the seconds since its begin.
type steps struct {
	fake
	began time.Time
	list  []string
}

func (s *steps) note(what string) error {
	s.list = append(s.list, fmt.Sprintf("%s %.0f", what, time.Since(s.began).Seconds()))
	return nil
}

func (s *steps) kill(_ context.Context, process string) error { return s.note("kill " + process) }
func (s *steps) stop(_ context.Context, process string) error { return s.note("stop " + process) }
func (s *steps) restart(_ context.Context, process string) error {
	<-time.After(10 * time.Second)
	return s.note("serves " + process)
}

// Each server is back before the next one ends, and the fault lasts from the first end to the last
// return. A start takes 10 s here.
func TestFaultsOfACluster(t *testing.T) {
	for name, want := range map[string]string{
		"proxy-killed":  "kill proxy-1 5, serves proxy-1 35, kill proxy-2 60, serves proxy-2 90",
		"broker-killed": "kill broker-b 5, serves broker-b 55",
		"rolling":       "stop proxy-1 5, serves proxy-1 15, stop proxy-2 40, serves proxy-2 50, stop broker-a 75, serves broker-a 85, stop broker-b 110, serves broker-b 120",
	} {
		for _, name := range []string{name, name + "-fifo"} {
			synctest.Test(t, func(t *testing.T) {
				chosen, err := choose(name, false)
				if err != nil {
					t.Fatal(err)
				}
				r := chosen[0]
				s := &steps{began: time.Now()}
				st := &stage{server: s}
				if err := r.run(t.Context(), st); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(s.list, ", "); got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
				if r.on != paired || r.load.FIFO != strings.HasSuffix(name, "-fifo") || r.load.FIFO != slices.ContainsFunc(r.cells, func(c cell) bool { return c.name == outOfOrder.name }) {
					t.Errorf("%s: setting %v, load %+v, %d cells", name, r.on, r.load, len(r.cells))
				}
				if got := st.ended.Sub(st.began); got != time.Since(s.began)-before-after {
					t.Errorf("%s: the fault lasts %v of %v", name, got, time.Since(s.began))
				}
			})
		}
	}
}

// The rows of a fault meet it together, once, and each has its times.
func TestJointRows(t *testing.T) {
	var names []string
	for _, batch := range batches(clusterRows()) {
		var list []string
		for _, r := range batch {
			list = append(list, r.name)
		}
		names = append(names, strings.Join(list, "+"))
	}
	if got, want := strings.Join(names, " "), "proxy-killed+proxy-killed-fifo broker-killed+broker-killed-fifo rolling+rolling-fifo backlog-fifo"; got != want {
		t.Errorf("batches %s, want %s", got, want)
	}
	synctest.Test(t, func(t *testing.T) {
		began, faults := time.Now(), 0
		run := jointly(2, func(_ context.Context, s *stage) error {
			faults++
			s.began = time.Now()
			<-time.After(time.Minute)
			s.ended = time.Now()
			return nil
		})
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				<-time.After(time.Duration(i) * time.Second)
				var s stage
				if err := run(t.Context(), &s); err != nil || s.began.Sub(began) != time.Second || s.ended.Sub(began) != 61*time.Second {
					t.Errorf("row %d: %v, from %v to %v, want 1s to 1m1s", i, err, s.began.Sub(began), s.ended.Sub(began))
				}
			})
		}
		all.Wait()
		if faults != 1 {
			t.Errorf("%d faults, want 1", faults)
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("ended")
	cancel(ended)
	if err := jointly(2, nil)(ctx, &stage{}); err != ended {
		t.Errorf("a row that waits in vain: %v", err)
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		names   string
		cluster bool
		want    string
	}{
		{"", false, "rst lost throttled blackhole late fifo send push overloaded"},
		{"", true, "proxy-killed proxy-killed-fifo broker-killed broker-killed-fifo rolling rolling-fifo backlog-fifo"},
		{"backlog-fifo,rst", false, "rst backlog-fifo"},
	} {
		chosen, err := choose(c.names, c.cluster)
		var got []string
		for _, r := range chosen {
			got = append(got, r.name)
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%q, %v: %v, %v, want %s", c.names, c.cluster, got, err, c.want)
		}
	}
	if _, err := choose("rst,none", false); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("an unknown row: %v", err)
	}
	if _, err := choose("rst", true); err == nil || !strings.Contains(err.Error(), "omit -cluster") {
		t.Errorf("-rows and -cluster: %v", err)
	}
}

// The places of the bounds are those of the tables of the sign test, two-sided, 5 %: the 2nd
// smallest and largest of 10 values, the 6th of 20.
func TestMedian(t *testing.T) {
	for n, k := range map[int]int{1: 1, 2: 1, 5: 1, 6: 1, 8: 1, 9: 2, 10: 2, 12: 3, 15: 4, 20: 6, 25: 8, 30: 10} {
		var values []float64
		for i := range n {
			values = append(values, float64((i*7)%n+1)) // 1 to n, not in order; 7 divides no n
		}
		middle, low, high := median(values)
		if want := float64(n+1) / 2; middle != want || low != float64(k) || high != float64(n+1-k) {
			t.Errorf("%d values: %v (%v to %v), want %v (%d to %d)", n, middle, low, high, want, k, n+1-k)
		}
	}
	if middle, low, high := median([]float64{3, 1000, 1, 2, 2, math.Inf(1)}); middle != 2.5 || low != 1 || !math.IsInf(high, 1) {
		t.Errorf("with outliers: %v (%v to %v), want 2.5 (1 to infinity)", middle, low, high)
	}
}

// A cell is not good either if the median of ours is above its bound, though it is the better one.
func TestBound(t *testing.T) {
	m := measured{cell: boundedSend, row: "rolling", ours: []float64{6, 7, 5}, official: []float64{40, 42, 39}}
	table, good := format([]measured{m})
	want := "| rolling | longest send | 6.0 s (5.0 s to 7.0 s) | 40.0 s (39.0 s to 42.0 s) | better, ABOVE 5.0 s |"
	if good || !strings.Contains(table, want) {
		t.Errorf("good %v, the table lacks %q:\n%s", good, want, table)
	}
	m.ours = []float64{5, 7, 4}
	if _, good := format([]measured{m}); !good {
		t.Error("a median of 5 s is above the bound of 5 s")
	}
}
