package main

import (
	"strings"
	"testing"
)

// top shows the groups with their backlog, as table, as JSON lines and on a terminal.
func TestTop(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack")

	r := tl.must("top", "--every", "100ms", "--once", "--columns", "group,topic,backlog")
	if want := "GROUP    TOPIC   BACKLOG\nbilling  orders        2\n"; r.stdout != want {
		t.Errorf("top prints\n%s\nwant\n%s", r.stdout, want)
	}
	type frame struct {
		Subjects []struct {
			Topic   string
			Backlog int64   `json:"backlog_messages"`
			In      float64 `json:"in_rate"`
		}
	}
	fs := lines[frame](t, tl.must("top", "--topics", "--every", "100ms", "--once", "-o", "jsonl", "--match", "o*").stdout)
	if len(fs) != 1 || len(fs[0].Subjects) != 1 || fs[0].Subjects[0].Topic != "orders" || fs[0].Subjects[0].Backlog != 2 || fs[0].Subjects[0].In != 0 {
		t.Errorf("the line is %+v", fs)
	}

	tl.terminal = true
	screen := tl.input("sq", "top")
	if screen.code != 0 || !strings.Contains(screen.stdout, "billing  orders") || !strings.Contains(screen.stdout, "by in, the largest first") {
		t.Errorf("the screen: exit code %d\n%q", screen.code, screen.stdout)
	}
	if !strings.HasPrefix(screen.stdout, "\x1b[?1049h") || !strings.HasSuffix(screen.stdout, "\x1b[?1049l") {
		t.Errorf("the terminal is not restored: %q", screen.stdout)
	}
}

func TestTopRefusals(t *testing.T) {
	tl := newTool(t)
	for _, args := range [][]string{{"--by", "size"}, {"--match", "[a"}, {"--every", "1ms"}} {
		if r := tl.run(append([]string{"top"}, args...)...); r.code != 2 || r.stdout != "" {
			t.Errorf("%v: exit code %d, %q", args, r.code, r.stdout)
		}
	}
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	if r := tl.run("top", "--context", "rmq"); r.code != 2 || !strings.Contains(r.stderr, "mqadmin statsAll") {
		t.Errorf("on RocketMQ: exit code %d, %q", r.code, r.stderr)
	}
}
