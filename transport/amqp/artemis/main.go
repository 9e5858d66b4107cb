// Command artemis runs a real Apache ActiveMQ Artemis broker on 127.0.0.1, for tests and for
// trying package transport/amqp. It needs a JDK of version 17 or later and Maven, which downloads
// the broker once.
//
//	go run github.com/tidegate/tidegate/transport/amqp/artemis@latest -port 5672
//
// It prints one line, "amqp://127.0.0.1:PORT pid PID", once the broker serves. An interrupt stops
// the broker. If the program is killed, the broker stops too.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidegate/tidegate/internal/javaserver"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

func main() {
	o := artemis.Options{Properties: map[string]string{}, Acceptor: map[string]string{}, Users: map[string]artemis.User{}}
	flag.IntVar(&o.Port, "port", 5672, "port on 127.0.0.1; 0 for a free one")
	flag.StringVar(&o.Dir, "dir", "", "directory for data; empty for a temporary one, which is removed at the end")
	flag.StringVar(&o.Certificate, "certificate", "", "PEM file of the server's certificate and key; empty for no TLS")
	flag.StringVar(&o.ClientAuthority, "client-authority", "", "PEM file of the authority of client certificates; empty for none")
	datasync := flag.Bool("datasync", true, "sync the journal to the disk before a send is accepted")
	flag.Func("set", `a broker property, KEY=VALUE, for example 'addressSettings."orders".maxSizeBytes=100K'; can be repeated`, javaserver.Pair(o.Properties))
	flag.Func("acceptor", "a parameter of the AMQP acceptor, KEY=VALUE; can be repeated", javaserver.Pair(o.Acceptor))
	flag.Func("user", "a user with all permissions, NAME=PASSWORD; can be repeated; none for no authentication", func(s string) error {
		passwords := map[string]string{}
		if err := javaserver.Pair(passwords)(s); err != nil {
			return err
		}
		for name, password := range passwords {
			o.Users[name] = artemis.User{Password: password, Roles: []string{"all"}}
		}
		return nil
	})
	flag.Parse()
	o.Properties["journalDatasync"] = fmt.Sprint(*datasync)
	if len(o.Users) == 0 {
		o.Users = nil
	}
	for _, permission := range artemis.Permissions {
		if o.Users != nil {
			o.Properties[`securityRoles."#".all.`+permission] = "true"
		}
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "artemis:", err)
		os.Exit(1) //nolint:forbidigo // a program
	}
}

func run(o artemis.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := artemis.Start(ctx, o)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(os.Stdout, "amqp://%s pid %d\n", s.Address(), s.PID())
	return s.Run(ctx)
}
