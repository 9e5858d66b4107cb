package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// A node is a server in a process of its own. When the server accepts connections, the process
// prints a line "ADDRESS pid PID".
type node struct {
	name    string
	command func(ctx context.Context, address string) *exec.Cmd // address is empty at the first start
	address string                                              // the same for all starts
	server  *os.Process
	ended   chan struct{} // closed after the process has ended
}

// newArtemis builds the program that starts Artemis.
func newArtemis(ctx context.Context, dir string) (*node, error) {
	program := filepath.Join(dir, "artemis")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/tidegate/tidegate/transport/amqp/artemis")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the program that starts Artemis cannot be built: %w; run switch in its directory\n%s", err, text)
	}
	return &node{name: "Artemis", command: func(ctx context.Context, address string) *exec.Cmd {
		port := "0"
		if address != "" {
			port = address[strings.LastIndexByte(address, ':')+1:]
		}
		return exec.CommandContext(ctx, program, "-port", port, "-dir", filepath.Join(dir, "primary"), "-datasync=true",
			"-set", `addressSettings."#".autoDeleteQueues=false`, // or a group without consumers loses messages
			"-set", `addressSettings."#".autoDeleteAddresses=false`,
			"-set", `addressSettings."#".redeliveryDelay=0`,
			"-set", `addressSettings."#".maxDeliveryAttempts=-1`) // the consumer counts
	}}, nil
}

// newTidegate returns the node that runs this program with -serve.
func newTidegate(dir string) *node {
	return &node{name: "tidegate", command: func(ctx context.Context, address string) *exec.Cmd {
		if address == "" {
			address = "127.0.0.1:0"
		}
		program, err := os.Executable()
		if err != nil {
			program = os.Args[0]
		}
		return exec.CommandContext(ctx, program, "-serve", filepath.Join(dir, "secondary"), "-address", address)
	}}
}

// start starts the server and waits until it accepts connections. The end of ctx ends it.
func (n *node) start(ctx context.Context) error {
	cmd := n.command(ctx, n.address)
	var faults bytes.Buffer
	cmd.Stderr = &faults
	input, err := cmd.StdinPipe() // which ends with this process, and the server with it
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(output)
	line, err := lines.ReadString('\n')
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(line, "%s pid %d\n", &n.address, &pid)
	}
	if err == nil {
		n.server, err = os.FindProcess(pid)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended before
		_ = cmd.Wait()
		return fmt.Errorf("%s did not start: %w\n%s", n.name, err, faults.Bytes())
	}
	n.ended = make(chan struct{})
	go func() {
		defer close(n.ended)
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait() // the status of a killed process
		_ = input.Close()
	}()
	return nil
}

// kill ends the server as kill -9 does.
func (n *node) kill() {
	if n.server == nil {
		return
	}
	_ = n.server.Kill() // it may have ended before
	<-n.ended
	n.server = nil
}

// serve is the tidegate broker, with its data in a directory.
func serve(ctx context.Context, dir, address string) error {
	b, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		return err
	}
	if _, err := b.PutTopic(ctx, topic, settings.Topic{}); err != nil {
		return errors.Join(err, b.Close())
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	s, err := server.New(b, server.Options{Advertise: lis.Addr().String()})
	if err != nil {
		return errors.Join(err, lis.Close(), b.Close())
	}
	fmt.Printf("%s pid %d\n", lis.Addr(), os.Getpid())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the program that started this one
		_ = s.Close()
	}()
	return errors.Join(s.Serve(lis), b.Close())
}
