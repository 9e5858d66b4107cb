package browsertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/chromedp/cdproto/page"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The subjects of a large broker, as the specification has them.
const (
	manyTopics = 10_000
	manyGroups = 1_000
	tabs       = 10
)

// A process is tidegate serve, whose CPU time can be read.
type process struct {
	b         *testing.B
	url, grpc string
	pid       int
}

// serve builds and starts tidegate serve with a data directory.
func serve(b *testing.B) *process {
	b.Helper()
	program := filepath.Join(b.TempDir(), "tidegate")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", program, "./cmd/tidegate")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(b.Context(), program, "serve", "--data", b.TempDir(), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--topic", "sends", "--log-level", "error", "--max-backlog", "0")
	out := assert.Value(cmd.StdoutPipe())(b)
	assert.Must(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := &process{b: b, pid: cmd.Process.Pid}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		for word := range strings.FieldsSeq(lines.Text()) {
			if at, ok := strings.CutPrefix(word, "grpc="); ok {
				s.grpc = at
			}
			if at, ok := strings.CutPrefix(word, "http="); ok {
				s.url = "http://" + at
				go func() {
					for lines.Scan() {
					}
				}()
				return s
			}
		}
	}
	b.Fatal("tidegate serve ended before it was ready")
	return nil
}

// fill creates topics, and groups with a subscription to each topic.
func (s *process) fill() {
	s.b.Helper()
	do := func(method, path, body string) error {
		r, err := http.NewRequestWithContext(s.b.Context(), method, s.url+"/v1/"+path, bytes.NewBufferString(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode >= 300 {
			return fmt.Errorf("%s %s: %s", method, path, resp.Status)
		}
		return nil
	}
	var wg sync.WaitGroup
	const workers = 16
	for w := range workers {
		wg.Go(func() {
			for i := w; i < manyTopics; i += workers {
				topic, group := fmt.Sprintf("orders-%05d", i), fmt.Sprintf("billing-%04d", i%manyGroups)
				err := do("PUT", "topics/"+topic, `{"queues":1}`)
				if err == nil {
					err = do("POST", "groups/"+group+"/topics/"+topic+"/receive", `{}`)
				}
				if err != nil {
					s.b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if s.b.Failed() {
		s.b.FailNow()
	}
}

// cpu returns the CPU time of the process.
func (s *process) cpu() time.Duration {
	s.b.Helper()
	stat := assert.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid)))(s.b)
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:])) // from field 3 of proc_pid_stat(5)
	var ticks int64
	for _, field := range f[11:13] {
		n := assert.Value(strconv.ParseInt(field, 10, 64))(s.b)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// readers are ten browsers, each with cookies and storage of its own and so a stream of its own.
// Tabs of one browser share one stream and cost less.
type readers []*tab

func newReaders(b *testing.B, s *process) (r readers) {
	b.Helper()
	for range tabs {
		r = append(r, open(b, s.url))
	}
	return r
}

// look shows a page in each of them.
func (r readers) look() {
	fragments := []string{"#/overview", "#/topics", "#/topics?sort=-backlog", "#/topics/orders-00001", "#/groups", "#/groups?sort=-backlog", "#/groups/billing-0001", "#/dead-letters", "#/limits", "#/parked"}
	for i, t := range r {
		t.load(fragments[i%len(fragments)])
		var hidden bool
		t.eval(`document.hidden`, &hidden)
		assert.MustThat(t.t, !hidden, "a tab is hidden, so it asks for nothing")
	}
}

// leave shows the empty page in each of them.
func (r readers) leave() {
	for _, t := range r {
		t.run(navigate("about:blank"))
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkTabs measures the CPU time of a broker with 10 000 topics, 1 000 groups and 10 000
// subscriptions for ten open tabs, in percent of a core, in turns with the time without tabs.
func BenchmarkTabs(b *testing.B) {
	const window = 10 * time.Second
	s := serve(b)
	s.fill()
	r := newReaders(b, s)
	used := func() float64 {
		before, began := s.cpu(), time.Now()
		<-time.After(window)
		return 100 * float64(s.cpu()-before) / float64(time.Since(began))
	}
	var with, without []float64
	for b.Loop() {
		r.leave()
		<-time.After(time.Second) // the streams end
		without = append(without, used())
		r.look()
		with = append(with, used())
	}
	b.Logf("CPU of the broker in %% of a core: with tabs %.1f, without %.1f", with, without)
	b.ReportMetric(median(with)-median(without), "cpu-%")
	b.ReportMetric(median(without), "idle-%")
}

// pause pauses the updates of each page, or resumes them.
func (r readers) pause(on bool) {
	for _, t := range r {
		t.eval(fmt.Sprintf(`{ const e = document.querySelector('[data-action=pause]'); if ((e.ariaPressed === 'true') !== %t) e.click(); }`, on), nil)
		t.wait(fmt.Sprintf(`document.querySelector('[data-action=pause]').ariaPressed === '%t'`, on))
	}
}

// yield gives the threads of the browsers the lowest priority, because in practice they are on
// other machines than the broker.
func yield(b *testing.B, s *process) {
	b.Helper()
	parents := assert.Value(filepath.Glob("/proc/[0-9]*/stat"))(b)
	ours := map[string]bool{strconv.Itoa(os.Getpid()): true}
	for range 5 { // generations: the browser, its zygotes, its renderers
		for _, name := range parents {
			stat, err := os.ReadFile(name)
			if err != nil {
				continue // it has ended
			}
			pid := filepath.Base(filepath.Dir(name))
			if parent := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))[1]; ours[parent] && pid != strconv.Itoa(s.pid) {
				ours[pid] = true
			}
		}
	}
	delete(ours, strconv.Itoa(os.Getpid()))
	for pid := range ours {
		threads := assert.Value(filepath.Glob("/proc/" + pid + "/task/[0-9]*"))(b)
		for _, thread := range threads {
			if id, err := strconv.Atoi(filepath.Base(thread)); err == nil {
				_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, 19) // it fails only if the thread has ended
			}
		}
	}
}

// A script is what one tab asks for after it was opened: a stream, and the other requests of a
// while, which begin at a time after its start.
type script struct {
	stream string
	polls  []poll
}

type poll struct {
	at  time.Duration
	url string
}

// record returns the scripts of open tabs.
func (r readers) record(b *testing.B, length time.Duration) (scripts []script) {
	b.Helper()
	const step = 100 * time.Millisecond
	scripts = make([]script, len(r))
	urls := func(t *tab, f func(url string, stream bool)) {
		for _, line := range t.sent() {
			if url, ok := strings.CutPrefix(line, "GET "); ok {
				f(url, strings.Contains(url, "/v1/live"))
			}
		}
	}
	for i, t := range r { // the stream of the page is the last one; the others were for fewer names
		urls(t, func(url string, stream bool) {
			if stream {
				scripts[i].stream = url
			}
		})
	}
	for at := time.Duration(0); at < length; at += step {
		<-time.After(step)
		for i, t := range r {
			urls(t, func(url string, stream bool) {
				if !stream {
					scripts[i].polls = append(scripts[i].polls, poll{at, url})
				}
			})
		}
	}
	return scripts
}

// play makes the requests of scripts again and again, and reads the responses, without a browser.
// Each script has connections of its own and begins at a time after its start. The result ends it.
func play(b *testing.B, scripts []script, from, length time.Duration) (end func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	for _, s := range scripts {
		client := &http.Client{Transport: &http.Transport{}}
		read := func(url string) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			resp, err := client.Do(r)
			if err != nil {
				assert.That(b, ctx.Err() != nil, "%v", err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || err != nil && ctx.Err() == nil {
				b.Errorf("%s: %s, %v", url, resp.Status, err)
			}
		}
		if s.stream != "" {
			wg.Go(func() { read(s.stream) })
		}
		wg.Go(func() {
			defer client.CloseIdleConnections()
			polls := []poll{{at: length}} // the end of a turn
			for _, p := range s.polls {
				polls = append(polls, poll{(p.at - from + length) % length, p.url})
			}
			slices.SortStableFunc(polls, func(x, y poll) int { return cmp.Compare(x.at, y.at) })
			for began := time.Now(); ; began = began.Add(length) {
				for _, p := range polls {
					select {
					case <-time.After(time.Until(began.Add(p.at))):
					case <-ctx.Done():
						return
					}
					if p.url != "" {
						read(p.url)
					}
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// BenchmarkSendsWithTabs measures sends of 64 callers to a broker with 10 000 topics in turns:
//   - without tabs: they are open, but paused, so that they make no requests and draw nothing;
//   - with the requests of ten tabs, which a program makes that draws nothing. This is the cost of
//     the broker, because a browser normally runs on another machine;
//   - with the ten tabs, which also draw, on the same cores. What they request at once when they
//     are resumed comes before the measurement.
func BenchmarkSendsWithTabs(b *testing.B) {
	const callers = 64
	const window = 2 * time.Second                       // of the interval of updates
	const settle, length = time.Second, 10 * time.Second // length: each page makes all its requests
	s := serve(b)
	s.fill()
	t := assert.Value(rocketmq.New(s.grpc, rocketmq.Options{}))(b)
	p := assert.Value(producer.New(t, producer.Options{}))(b)
	b.Cleanup(func() {
		_ = p.Close()
		_ = t.Close()
	})
	body := make([]byte, 1024)
	rate := func() float64 {
		ctx, cancel := context.WithTimeout(b.Context(), window)
		defer cancel()
		var n atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := p.Send(b.Context(), &tidegate.Message{Topic: "sends", Body: body}); err != nil {
						b.Error(err)
						return
					}
					n.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(n.Load()) / time.Since(began).Seconds()
	}
	r := newReaders(b, s)
	r.look()
	scripts := r.record(b, length)
	for i, c := range scripts {
		b.Logf("tab %d: stream %.100s, %d other requests in %v", i, c.stream, len(c.polls), length)
	}
	yield(b, s)
	r.pause(true)
	rate() // the first sends meet an idle broker
	with := map[string][]float64{}
	ratios := map[string][]float64{}
	kinds := []string{"none", "requests", "tabs"}
	for round := 0; b.Loop(); round++ {
		for i := range kinds {
			kind := kinds[(i+round)%len(kinds)]
			end := func() {}
			switch kind {
			case "requests":
				end = play(b, scripts, time.Duration(round)*window%length, length)
			case "tabs":
				r.pause(false)
				end = func() { r.pause(true) }
			}
			<-time.After(settle)
			with[kind] = append(with[kind], rate())
			end()
		}
		for _, kind := range kinds[1:] {
			ratios[kind] = append(ratios[kind], with[kind][round]/with["none"][round])
		}
	}
	for _, kind := range kinds {
		b.Logf("%s: messages per second %.0f; ratios %.3f", kind, with[kind], ratios[kind])
	}
	b.ReportMetric(median(ratios["requests"]), "requests/ratio")
	b.ReportMetric(median(ratios["tabs"]), "tabs/ratio")
	b.ReportMetric(median(with["none"]), "msg/s")
}

// painted records when the page has its first data.
const painted = `new MutationObserver((_, o) => { if (document.querySelector('main[data-ready]')) { window.readyAt = performance.now(); o.disconnect(); } }).observe(document, {subtree: true, childList: true, attributes: true})`

// BenchmarkFirstPaint measures the time from the navigation to the first paint, and to the first
// data, with an empty cache.
func BenchmarkFirstPaint(b *testing.B) {
	s := serve(b)
	s.fill()
	var paint, ready []float64
	for b.Loop() {
		t := open(b, s.url)
		t.run(command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: painted}))
		t.load("")
		t.wait(`window.readyAt && performance.getEntriesByName('first-contentful-paint').length`)
		var ms float64
		t.eval(`performance.getEntriesByName('first-contentful-paint')[0].startTime`, &ms)
		paint = append(paint, ms)
		t.eval(`window.readyAt`, &ms)
		ready = append(ready, ms)
		t.end()
	}
	b.Logf("first paint %.0f ms, data %.0f ms", paint, ready)
	b.ReportMetric(median(paint), "paint-ms")
	b.ReportMetric(slices.Min(paint), "least-ms")
	b.ReportMetric(slices.Max(paint), "max-ms")
	b.ReportMetric(median(ready), "data-ms")
}
