// Command standalone runs a real Apache Pulsar on 127.0.0.1, for tests and for trying package
// transport/pulsar. It needs a JDK of version 17 or later and Maven, which downloads Pulsar once.
//
//	go run github.com/tidegate/tidegate/transport/pulsar/standalone@latest -port 6650
//
// It prints one line, "pulsar://127.0.0.1:PORT http://127.0.0.1:WEBPORT pid PID", once the broker
// serves; with -certificate the scheme is pulsar+ssl. A line "token ROLE TOKEN" follows for each
// -token. An interrupt stops the broker. If the program is killed, the broker stops too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/tidegate/tidegate/internal/javaserver"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

func main() {
	o := standalone.Options{Properties: map[string]string{}}
	flag.IntVar(&o.Port, "port", 6650, "port of the broker on 127.0.0.1; 0 for a free one")
	flag.IntVar(&o.WebPort, "web-port", 8080, "port of the HTTP API on 127.0.0.1; 0 for a free one")
	flag.StringVar(&o.Dir, "dir", "", "directory for data; empty for a temporary one, which is removed at the end")
	flag.IntVar(&o.Heap, "heap", 512, "maximum of Java's heap, and of its memory outside the heap, in MiB")
	flag.StringVar(&o.Certificate, "certificate", "", "PEM file of the server's certificate and key; empty for no TLS")
	flag.StringVar(&o.ClientAuthority, "client-authority", "", "PEM file of the authority of client certificates; empty for none")
	flag.Func("quota-check", "how often the broker compares backlogs with their quotas, in whole seconds, for example 1s; Pulsar's default is 60s", func(s string) error {
		seconds, err := wholeSeconds(s)
		o.Properties["backlogQuotaCheckIntervalInSeconds"] = seconds
		return err
	})
	flag.Func("set", "a setting of standalone.conf, KEY=VALUE, for example journalSyncData=true; can be repeated", javaserver.Pair(o.Properties))
	flag.Func("token", "a role with all permissions, for which a token is printed; can be repeated; none for no authentication", func(role string) error {
		o.SuperUsers = append(o.SuperUsers, role)
		return nil
	})
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "standalone:", err)
		os.Exit(1) //nolint:forbidigo // a program
	}
}

func wholeSeconds(s string) (string, error) {
	d, err := time.ParseDuration(s)
	if err == nil && (d < time.Second || d%time.Second != 0) {
		err = errors.New("use whole seconds, at least 1s")
	}
	return strconv.Itoa(int(d / time.Second)), err
}

func run(o standalone.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := standalone.Start(ctx, o)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(os.Stdout, "%s %s pid %d\n", s.URL(), s.AdminURL(), s.PID())
	for _, role := range o.SuperUsers {
		token, err := s.Token(role, time.Time{})
		if err != nil {
			return errors.Join(err, s.Close())
		}
		_, _ = fmt.Fprintf(os.Stdout, "token %s %s\n", role, token)
	}
	return s.Run(ctx)
}
