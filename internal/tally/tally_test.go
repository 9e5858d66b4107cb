package tally

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A buffer collects lines of several goroutines.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns the lines since the last call, without times.
func (b *buffer) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for line := range strings.Lines(b.text.String()) {
		lines = append(lines, strings.TrimSpace(regexp.MustCompile(`^time=\S+ `).ReplaceAllString(line, "")))
	}
	b.text.Reset()
	return lines
}

func group(name string) []slog.Attr { return []slog.Attr{slog.String("group", name)} }

func offset(n int) []slog.Attr { return []slog.Attr{slog.Int("offset", n)} }

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		l := New(slog.New(slog.NewTextHandler(&out, nil)))
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := out.take(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s:\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		for i := range 5 {
			l.Note(slog.LevelWarn, "died", group("a"), offset(i))
		}
		l.Note(slog.LevelWarn, "died", group("b"), offset(7))
		l.Note(slog.LevelDebug, "died", group("c"), offset(8))
		expect("at once", "level=WARN msg=died group=a offset=0", "level=WARN msg=died group=b offset=7")
		time.Sleep(Interval)
		expect("after an interval", "level=WARN msg=died group=a further=4 within=1m0s offset=4")
		l.Note(slog.LevelWarn, "died", group("a"), offset(5))
		l.Note(slog.LevelWarn, "died", group("b"), offset(9))
		expect("in the second interval", "level=WARN msg=died group=b offset=9")
		time.Sleep(Interval)
		expect("after the second", "level=WARN msg=died group=a further=1 within=1m0s offset=5")
		time.Sleep(2 * Interval)
		expect("in silence")
		if l.timer != nil || len(l.classes)+len(l.ofText) != 0 {
			t.Error("in silence a timer runs, or classes are kept")
		}
		l.Note(slog.LevelWarn, "died", group("a"), offset(10))
		l.Note(slog.LevelWarn, "died", group("a"), offset(11))
		l.Close()
		l.Note(slog.LevelWarn, "died", group("a"), offset(12))
		expect("at the end", "level=WARN msg=died group=a offset=10", "level=WARN msg=died group=a further=1 within=1m0s offset=11",
			"level=WARN msg=died group=a offset=12")
	})
}

// For random events, each event is in one line, and the number of lines in an interval is bounded.
func TestRandom(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			var out buffer
			l := New(slog.New(slog.NewTextHandler(&out, nil)))
			events, counted, lines := 0, 0, 0
			tell := func() {
				for _, line := range out.take() {
					lines++
					counted++
					if m := regexp.MustCompile(`further=(\d+)`).FindStringSubmatch(line); m != nil {
						n, _ := strconv.Atoi(m[1])
						counted += n - 1
					}
				}
			}
			intervals := 1 + r.IntN(5)
			for range intervals {
				for range r.IntN(2000) {
					l.Note(slog.LevelWarn, "died", group(fmt.Sprint(r.IntN(1+r.IntN(300)))), nil)
					events++
				}
				time.Sleep(time.Duration(r.Int64N(int64(Interval))))
			}
			l.Close()
			if tell(); counted != events {
				t.Errorf("seed %d: %d of %d events are in lines", seed, counted, events)
			}
			if most := 2 * (intervals + 1) * (maxClasses + 1); lines > most {
				t.Errorf("seed %d: %d lines in %d intervals, want %d or less", seed, lines, intervals, most)
			}
		})
	}
}
