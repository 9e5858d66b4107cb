// Package serve has the commands serve and config: it reads the configuration of a broker, runs
// the broker and reloads its settings.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/cmd/internal/cli"
)

// Commands returns the commands of this package. Results go to stdout and logs to stderr.
func Commands(stdout, stderr io.Writer) []*cobra.Command {
	return []*cobra.Command{serveCommand(stdout, stderr), configCommand(stdout)}
}

func serveCommand(stdout, stderr io.Writer) *cobra.Command {
	o := serveOptions{flags: values{}, stdout: stdout, stderr: stderr}
	printOnly, probeOnly := false, false
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker until SIGTERM or Ctrl-C",
		Long: `Runs a broker until SIGTERM or Ctrl-C. Then it rejects new requests, finishes
those in progress, and exits. All accepted messages are on disk.

When the broker is ready, it prints one line with the addresses:

    ready grpc=127.0.0.1:8081 http=127.0.0.1:8082

Clients connect to the gRPC address, with TLS or without. Create topics with
--topic, or over HTTP:

    curl -X PUT http://127.0.0.1:8082/v1/topics/orders -d '{"type":"FIFO"}'

The first receive creates the consumer group.

All settings can also be in a YAML file (--config) and in the environment:
max_backlog in the file is --max-backlog and TIDEGATE_MAX_BACKLOG. A flag
overrides the environment, and the environment overrides the file. An empty
variable counts as not set. The file can also declare topics and consumer
groups, which are created or changed at the start. SIGHUP reloads the file: some
settings change at once, and the log names those that need a restart. 'tidegate
config check FILE' lists the faults of a file, and --print-config prints each
value with its source.

Without access keys, every client has all permissions. Addresses other than
those of this machine need access keys, --tls-cert and --tls-key.`,
		Example: `  tidegate serve                                in memory, on the default ports
  tidegate serve --data ./data --topic orders   with messages in ./data
  tidegate serve --grpc 127.0.0.1:0 --http 127.0.0.1:0 --max-backlog 1000
  tidegate serve --config tidegate.yaml         with the settings of a file`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UsageError{Err: fmt.Errorf("serve takes no arguments, only flags; it got %q", args), Command: c.CommandPath()}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			o.env, o.hints = environment(os.Environ())
			if o.file == "" {
				o.file = os.Getenv(variable("config"))
			}
			cfg, err := load(o.file, o.env, o.flags)
			if probeOnly && cfg != nil { // a probe needs the address only, and not the flags that make it permitted
				return probe(c.Context(), cfg.settings.http)
			}
			if err != nil {
				return cli.UsageError{Err: err, Command: c.CommandPath()}
			}
			if printOnly {
				return cfg.show(stdout)
			}
			o.version = c.Root().Version
			return serve(c.Context(), cfg, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.file, "config", "", "YAML `file` with settings, topics and consumer groups")
	f.BoolVar(&o.acceptLoss, "accept-data-loss", false, "open a data directory in which acknowledged data is missing, and log the loss")
	f.BoolVar(&printOnly, "print-config", false, "print the configuration in effect, each value with its source, and exit")
	f.BoolVar(&probeOnly, "probe", false, "ask the broker of this configuration on this machine whether it is ready, and exit: with 0 if it is")
	for _, row := range defaultSettings().table() {
		name := flagName(row.key)
		_, boolean := row.at.(*bool)
		f.Var(&flagValue{row.key, name, text(row.at), boolean, o.flags}, name, row.help)
		if boolean {
			f.Lookup(name).NoOptDefVal = "true"
		}
	}
	return c
}

// A flagValue collects the values of one flag. They are parsed later, together with all other
// sources, so that all faults are found at once.
type flagValue struct {
	key, flag, preset string
	boolean           bool
	into              values
}

func (v *flagValue) String() string { return v.preset }

func (v *flagValue) Set(text string) error {
	v.into[v.key] = append(v.into[v.key], given{text, origin{Name: "--" + v.flag}})
	return nil
}

func (v *flagValue) Type() string {
	if v.boolean {
		return "bool"
	}
	return "value"
}

// serveOptions are the inputs of serve in addition to its configuration.
type serveOptions struct {
	file           string
	acceptLoss     bool
	version        string // of the program
	env, flags     values
	hints          []string // about the environment
	stdout, stderr io.Writer
}

func (s *configuration) logger(w io.Writer, level *slog.LevelVar) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// serve runs the broker until ctx ends.
func serve(ctx context.Context, cfg *config, o serveOptions) (err error) {
	s, level := cfg.settings, new(slog.LevelVar)
	if err := setLevel(level, s.logLevel); err != nil {
		return err
	}
	logger := s.logger(o.stderr, level)
	for _, h := range o.hints {
		logger.Warn(h)
	}
	hangUp := make(chan os.Signal, 1)
	if o.file != "" { // without one, SIGHUP ends the program as it ends others
		signal.Notify(hangUp, syscall.SIGHUP)
		defer signal.Stop(hangUp)
	}
	limitMemory(logger)
	defer paceCollector()()
	who, err := cfg.resolve(os.ReadFile, os.LookupEnv)
	if err != nil {
		return err
	}
	if text := cfg.openToAll(s); text != "" {
		logger.Warn(text)
	}
	certificates, err := s.certificates(logger)
	if err != nil {
		return err
	}
	bo, so := s.options()
	so.Version = o.version
	bo.Logger, so.Logger, so.Access, bo.AcceptDataLoss = logger, logger, who, o.acceptLoss
	b, err := broker.Open(bo)
	if err != nil {
		return err
	}
	ready := false
	defer func() {
		err = errors.Join(err, b.Close())
		if ready && err == nil {
			logger.Info("broker stopped")
		}
	}()
	if err := protect(s.broker.Dir, len(cfg.keys) > 0, s.noKeys); err != nil {
		return err
	}
	if err := refusals(cfg, b); err != nil {
		return err
	}
	if _, err := put(context.WithoutCancel(ctx), cfg, b); err != nil { // all or, where one is wrong, as many as can be
		return err
	}
	if ctx.Err() != nil {
		return nil // stopped before it was ready
	}
	if certificates != nil {
		so.TLS, so.RequireTLS = certificates.Config("h2"), !s.tls.allowPlainText
	}
	most := s.connectionsEach()
	so.MaxSilentConnections = mostSilent(most)
	srv, err := server.New(b, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	grpcLis, err := listen(ctx, s.grpc, most, logger, userTimeout)
	if err != nil {
		return fmt.Errorf("--grpc: %w", err)
	}
	httpLis, err := listen(ctx, s.http, most, logger, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("--http: %w", err), grpcLis.Close())
	}
	admin := adminServer(srv.Handler(), logger)
	admin.ConnContext = srv.ConnContext
	ended := make(chan error, 2)
	go func() { ended <- srv.Serve(grpcLis) }()
	go func() {
		if certificates == nil {
			ended <- admin.Serve(httpLis)
			return
		}
		admin.TLSConfig = certificates.Config("h2", "http/1.1")
		ended <- admin.ServeTLS(httpLis, "", "")
	}()
	fmt.Fprintf(o.stdout, "ready grpc=%s http=%s\n", grpcLis.Addr(), httpLis.Addr())
	ready = true
	logger.Info("broker ready", "grpc", grpcLis.Addr().String(), "http", httpLis.Addr().String(), "data", where(s.broker.Dir))

	reloader := reloader{
		file: o.file, env: o.env, flags: o.flags, broker: b, logger: logger, level: level, running: *s, declared: cfg.declared(),
		server: srv, certificates: certificates, access: who,
	}
	running := 2
	for stop := false; !stop; {
		select {
		case err = <-ended: // one of the two failed
			running--
			stop = true
		case <-ctx.Done():
			logger.Info("broker stopping", "reason", context.Cause(ctx).Error())
			stop = true
		case <-hangUp:
			reloader.reload(ctx)
		}
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout)
	defer cancel()
	if serr := stopBoth(stopping, srv, admin); serr != nil {
		logger.Warn("requests in progress aborted", "after", s.stopTimeout.String(), "error", serr)
		_ = admin.Close()
	}
	for range running {
		if e := <-ended; e != nil && !errors.Is(e, http.ErrServerClosed) && !errors.Is(e, tidegate.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// stopBoth ends both servers at once: each has all of the time that ctx leaves,
// and neither takes anything new meanwhile.
func stopBoth(ctx context.Context, srv *server.Server, admin *http.Server) error {
	ended := make(chan error, 1)
	go func() { ended <- admin.Shutdown(ctx) }()
	err := srv.Shutdown(ctx)
	return errors.Join(err, <-ended)
}

// adminServer serves HTTP. A deadline ends idle connections, so that a silent client cannot keep a
// connection and its goroutine. The handler removes the deadlines while it works, and streams
// extend theirs.
func adminServer(h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute, // as on the gRPC side
		MaxHeaderBytes:    64 << 10,        // likewise
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

func where(dir string) string {
	if dir == "" {
		return "in memory"
	}
	return dir
}

// probeTimeout bounds a probe. The health check of the image has a longer one.
const probeTimeout = 2 * time.Second

// probe asks the broker that listens on an address of this machine whether it is ready, with TLS if
// the port speaks TLS. It trusts any certificate, because the broker is a process of this machine
// and the response is no secret. A broker that requires a certificate of clients does not tell
// whether it is ready: probe then returns nil, because the broker works as far as the handshake.
func probe(ctx context.Context, listen string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("probe of %s: %w; give the address with --http HOST:PORT", listen, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	address := net.JoinHostPort(host, port)
	status, text, err := readyz(ctx, "http://"+address)
	if err != nil || status == http.StatusBadRequest && strings.Contains(text, "HTTPS server") {
		status, text, err = readyz(ctx, "https://"+address)
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "tls: certificate required"):
		return nil
	case err != nil:
		return fmt.Errorf("probe of %s: %w", address, err)
	case status != http.StatusOK:
		return fmt.Errorf("probe of %s: the broker is not ready: status %d: %s", address, status, strings.TrimSpace(text))
	}
	return nil
}

// readyz makes one request, and returns its status and the beginning of the response.
func readyz(ctx context.Context, url string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see probe
	}}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return resp.StatusCode, string(body), errors.Join(err, resp.Body.Close())
}

// protectedFile marks a data directory that was served with access keys.
const protectedFile = "PROTECTED"

// protect compares the configuration with the data directory. Without keys, every client has all
// permissions. A directory that was served with keys is therefore served without keys only if
// no_keys is set: a configuration that lost its keys, or the wrong configuration, must not open the
// broker to everyone. If dir is empty, the messages are in memory, and there is nothing to compare.
func protect(dir string, keys, noKeys bool) error {
	if dir == "" {
		return nil
	}
	file := filepath.Join(dir, protectedFile)
	_, err := os.Stat(file)
	switch marked := err == nil; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check whether %s was served with access keys: %w", dir, err)
	case keys && !marked:
		return mark(file)
	case keys || !marked:
		return nil
	case noKeys:
		return os.Remove(file)
	}
	return fmt.Errorf("%s was served with access keys, and the configuration has none, so every client would have all permissions; "+
		"give access.keys, or add --no-keys (in a file no_keys: true) if that is intended", dir)
}

// mark writes the file so that it survives a power failure.
func mark(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record that the data directory is served with access keys: %w", err)
	}
	_, err = f.WriteString("This data directory was served with access keys. tidegate serve needs --no-keys to serve it without.\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if dir, derr := os.Open(filepath.Dir(file)); derr != nil {
		err = errors.Join(err, derr)
	} else {
		err = errors.Join(err, dir.Sync(), dir.Close()) // or the file's name is lost
	}
	if err != nil {
		return fmt.Errorf("record that the data directory is served with access keys: %w", err)
	}
	return nil
}
