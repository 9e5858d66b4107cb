package connection

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var contextName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// Check checks the name and the addresses of a context, and makes the paths of its files
// absolute: commands run in any directory.
func (n *Context) Check(name string) error {
	if !contextName.MatchString(name) {
		return fmt.Errorf("the name %q has other characters than letters, digits, '.', '_' and '-'", name)
	}
	if amqpScheme(n.GRPC) {
		return fmt.Errorf("--grpc is %q, which is an address of AMQP: give it as --amqp", n.GRPC)
	}
	for address := range strings.SplitSeq(n.GRPC, ";") {
		host, port, err := net.SplitHostPort(address)
		if number, perr := strconv.Atoi(port); n.GRPC != "" && (err != nil || host == "" || perr != nil || number < 1 || number > 65535) {
			return fmt.Errorf("--grpc is %q; it is HOST:PORT", n.GRPC)
		}
	}
	if n.AMQP != "" {
		if u, err := url.Parse(n.AMQP); err != nil || u.Host == "" || u.User != nil || !amqpScheme(n.AMQP) {
			return errors.New("--amqp is amqp://HOST:PORT or amqps://HOST:PORT, without credentials")
		}
	}
	if u, err := url.Parse(n.HTTP); n.HTTP != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--http is %q; it is a URL such as http://127.0.0.1:8082", n.HTTP)
	}
	if err := n.checkKind(); err != nil {
		return err
	}
	for _, path := range []*string{&n.SecretFile, &n.CACert, &n.Cert, &n.CertKey} {
		if *path == "" || strings.HasPrefix(*path, "~/") {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	return nil
}

func amqpScheme(address string) bool {
	return strings.HasPrefix(address, "amqp://") || strings.HasPrefix(address, "amqps://")
}

// checkKind checks the kind of a context and that its addresses belong to it.
func (n *Context) checkKind() error {
	switch {
	case n.Kind != "" && n.Kind != Tidegate && n.Kind != RocketMQ && n.Kind != AMQP:
		return fmt.Errorf("the kind is %q; it is %s, %s or %s", n.Kind, Tidegate, RocketMQ, AMQP)
	case n.Kind == AMQP && n.AMQP == "", n.Kind != AMQP && n.AMQP != "":
		return fmt.Errorf("an amqp address and the kind %s belong together: give both or none", AMQP)
	case n.AMQP != "" && n.GRPC+n.HTTP != "":
		return errors.New("a context has either an amqp address or those of grpc and http")
	}
	return nil
}
