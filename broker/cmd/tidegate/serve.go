package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

// settings are the flags of serve.
type settings struct {
	grpc, http, data, advertise string
	topics                      []string
	backlog                     broker.Limit
	quota                       broker.Quota
	minInvisible                time.Duration
	minPoll                     time.Duration
	insecure                    bool
	logLevel, logFormat         string
	stopTimeout                 time.Duration
}

func serveCommand(stdout, stderr io.Writer) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker until it is told to stop (SIGTERM or Ctrl-C)",
		Long: `Runs a broker until SIGTERM or Ctrl-C, which stop it in order: new requests are
refused, those under way are finished, everything accepted is on disk.

When it is ready it prints one line with the addresses:

    ready grpc=127.0.0.1:8081 http=127.0.0.1:8082

Clients connect to the gRPC address, with TLS or without. Topics are made with
--topic, or over HTTP:

    curl -X PUT http://127.0.0.1:8082/v1/topics/orders -d '{"type":"FIFO"}'

Consumer groups are made on their first receive.`,
		Example: `  tidegate serve                                in memory, on the default ports
  tidegate serve --data ./data --topic orders   keeping messages in ./data
  tidegate serve --grpc 127.0.0.1:0 --http 127.0.0.1:0 --max-backlog 1000`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("serve takes no arguments, only flags; it got %q", args), c.CommandPath()}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return usageError{err, c.CommandPath()}
			}
			return serve(c.Context(), s, stdout, stderr)
		},
	}
	f := c.Flags()
	f.StringVar(&s.grpc, "grpc", "127.0.0.1:8081", "`address` for clients (gRPC, with TLS or without); port 0 for a free one")
	f.StringVar(&s.http, "http", "127.0.0.1:8082", "`address` for administration (HTTP); port 0 for a free one")
	f.StringVar(&s.data, "data", "", "`directory` that keeps everything; without it the broker is in memory and forgets")
	f.StringVar(&s.advertise, "advertise", "", "`host:port` that clients are told to connect to (default: the address they used)")
	f.StringArrayVar(&s.topics, "topic", nil, "`name` of a topic to make if it is not there, or name:FIFO; can be repeated")
	f.Int64Var(&s.backlog.Messages, "max-backlog", 0, "throttle sends to a topic while this many `messages` wait to be consumed (0: no limit)")
	f.Int64Var(&s.backlog.Bytes, "max-backlog-bytes", 0, "throttle sends to a topic while this many `bytes` wait to be consumed (0: no limit)")
	f.Float64Var(&s.quota.MessagesPerSecond, "max-client-rate", 0, "throttle a client that sends more `messages` a second than this (0: no limit)")
	f.DurationVar(&s.minInvisible, "min-invisible-duration", broker.DefaultMinInvisibleDuration, "shortest invisible `duration` that a consumer may ask for")
	f.DurationVar(&s.minPoll, "min-long-polling", server.DefaultMinLongPolling, "shortest `duration` that a receive waits for a message")
	f.BoolVar(&s.insecure, "insecure", false, "allow addresses other than this machine's own, although there are no keys and no verified TLS")
	f.StringVar(&s.logLevel, "log-level", "info", "lowest `level` that is logged: debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "`format` of the log: text or json")
	f.DurationVar(&s.stopTimeout, "stop-timeout", 10*time.Second, "how long requests under way may take once told to stop")
	return c
}

// check returns everything that is wrong with the flags.
func (s settings) check() error {
	var errs []error
	for _, a := range []struct{ flag, value string }{{"--grpc", s.grpc}, {"--http", s.http}} {
		host, _, err := net.SplitHostPort(a.value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q: give host:port, as in 127.0.0.1:8081", a.flag, a.value))
			continue
		}
		if ip := net.ParseIP(host); !s.insecure && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			errs = append(errs, fmt.Errorf("%s is %q: other machines could use it without keys or verified TLS; "+
				"give a loopback address such as 127.0.0.1, or add --insecure", a.flag, a.value))
		}
	}
	if s.backlog.Messages < 0 || s.backlog.Bytes < 0 {
		errs = append(errs, errors.New("--max-backlog and --max-backlog-bytes may not be negative; 0 is no limit"))
	}
	if !(s.quota.MessagesPerSecond >= 0) {
		errs = append(errs, fmt.Errorf("--max-client-rate is %g: it may not be negative; 0 is no limit", s.quota.MessagesPerSecond))
	}
	if s.minInvisible < 0 || s.minPoll < 0 || s.stopTimeout < 0 {
		errs = append(errs, errors.New("--min-invisible-duration, --min-long-polling and --stop-timeout may not be negative"))
	}
	if s.advertise != "" {
		host, port, err := net.SplitHostPort(s.advertise)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
			errs = append(errs, fmt.Errorf("--advertise is %q: give host:port with a port of 1 to 65535", s.advertise))
		}
	}
	for _, t := range s.topics {
		name, kind, typed := strings.Cut(t, ":")
		if err := tidegate.ValidateTopic(name); err != nil {
			errs = append(errs, fmt.Errorf("--topic is %q: %w", t, err))
		}
		if typed && kind != string(broker.TopicFIFO) && kind != string(broker.TopicNormal) {
			errs = append(errs, fmt.Errorf("--topic is %q: after the colon comes NORMAL or FIFO", t))
		}
	}
	if _, err := s.logger(io.Discard); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s settings) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level is %q: give debug, info, warn or error", s.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
	switch s.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("--log-format is %q: give text or json", s.logFormat)
}

// atLeastOne turns the wish for no minimum into the smallest duration: in the
// options of broker and server, 0 stands for their default.
func atLeastOne(d time.Duration) time.Duration { return max(d, 1) }

// serve runs the broker until ctx ends.
func serve(ctx context.Context, s settings, stdout, stderr io.Writer) (err error) {
	logger, err := s.logger(stderr)
	if err != nil {
		return err
	}
	b, err := broker.Open(broker.Options{
		Dir: s.data, Logger: logger, MaxBacklog: s.backlog, ClientQuota: s.quota, MinInvisibleDuration: atLeastOne(s.minInvisible),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := makeTopics(ctx, b, s.topics); err != nil {
		return err
	}
	srv, err := server.New(b, server.Options{Advertise: s.advertise, Logger: logger, MinLongPolling: atLeastOne(s.minPoll)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	grpcLis, err := net.Listen("tcp", s.grpc)
	if err != nil {
		return fmt.Errorf("--grpc: %w", err)
	}
	httpLis, err := net.Listen("tcp", s.http)
	if err != nil {
		return errors.Join(fmt.Errorf("--http: %w", err), grpcLis.Close())
	}
	admin := adminServer(srv.Handler(), logger)
	ended := make(chan error, 2)
	go func() { ended <- srv.Serve(grpcLis) }()
	go func() { ended <- admin.Serve(httpLis) }()
	fmt.Fprintf(stdout, "ready grpc=%s http=%s\n", grpcLis.Addr(), httpLis.Addr())
	logger.Info("the broker is ready", "grpc", grpcLis.Addr().String(), "http", httpLis.Addr().String(), "data", where(s.data))

	running := 2
	select {
	case err = <-ended: // one of the two failed
		running--
	case <-ctx.Done():
		logger.Info("the broker stops", "reason", context.Cause(ctx).Error())
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout)
	defer cancel()
	if serr := errors.Join(srv.Shutdown(stopping), admin.Shutdown(stopping)); serr != nil {
		logger.Warn("requests under way were cut off", "after", s.stopTimeout.String(), "error", serr)
		_ = admin.Close()
	}
	for range running {
		if e := <-ended; e != nil && !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// adminServer serves the HTTP admin. Nobody may keep a connection, and the
// goroutine that goes with it, by saying nothing: requests are small and
// answered at once.
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

// makeTopics makes the topics of --topic that are not there.
func makeTopics(ctx context.Context, b *broker.Broker, topics []string) error {
	for _, t := range topics {
		name, kind, _ := strings.Cut(t, ":")
		if _, err := b.TopicSettings(name); err == nil {
			continue
		}
		if _, err := b.PutTopic(ctx, name, broker.TopicConfig{Type: broker.TopicType(kind)}); err != nil {
			return fmt.Errorf("--topic %s: %w", t, err)
		}
	}
	return nil
}
