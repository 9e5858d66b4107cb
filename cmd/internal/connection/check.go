package connection

import (
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
	for address := range strings.SplitSeq(n.GRPC, ";") {
		host, port, err := net.SplitHostPort(address)
		if number, perr := strconv.Atoi(port); n.GRPC != "" && (err != nil || host == "" || perr != nil || number < 1 || number > 65535) {
			return fmt.Errorf("--grpc is %q; it is HOST:PORT", n.GRPC)
		}
	}
	if u, err := url.Parse(n.HTTP); n.HTTP != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--http is %q; it is a URL such as http://127.0.0.1:8082", n.HTTP)
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
