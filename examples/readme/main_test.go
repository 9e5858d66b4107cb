package main

import (
	"context"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/producer"
)

// What the README shows is what this program and this test do, word for word
// but for the address.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile("main_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := dedent(string(program) + string(test))
	blocks := regexp.MustCompile("(?s)<!-- example: (\\w+) -->\n```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 3 {
		t.Fatalf("the README has %d examples, want producer, consumer and brokertest", len(blocks))
	}
	for _, b := range blocks {
		shown := dedent(strings.ReplaceAll(b[2], `"127.0.0.1:8081"`, "endpoint"))
		if !strings.Contains(code, shown) {
			t.Errorf("example %s is not what runs here; write in the README what the program does:\n%s", b[1], b[2])
		}
	}
}

func dedent(s string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "")
}

func TestProgram(t *testing.T) {
	b, err := broker.Open(broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if _, err := b.PutTopic(t.Context(), "orders", broker.TopicConfig{}); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(b, server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(lis)
	t.Cleanup(func() { s.Close() })
	if err := produce(t.Context(), lis.Addr().String()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // ends the consumer once it has acknowledged
			if g, err := b.Group("billing"); err == nil && len(g.Topics) == 1 && g.Topics[0].Acked == 1 {
				cancel()
			}
			<-time.After(5 * time.Millisecond)
		}
	}()
	if err := consume(ctx, lis.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if g, err := b.Group("billing"); err != nil || g.Topics[0].Acked != 1 {
		t.Errorf("the group is %+v, %v", g, err)
	}
}

func TestBrokertest(t *testing.T) {
	b := brokertest.New(t)
	b.CreateTopic("orders", broker.TopicConfig{})
	p, err := producer.New(b.Client(), producer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
}
