package serve

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/access"
)

// settings are the settings of serve, except for the topics, groups, address settings and keys
// that a file declares.
type configuration struct {
	grpc, http     string
	topics         []string
	broker         broker.Options
	server         server.Options
	backoff        backoff.Exponential // server.Options.ProducerBackoff
	maxConnections int
	noKeys         bool
	console        string
	logLevel       string
	logFormat      string
	stopTimeout    time.Duration
	tls            tlsSettings
	maxClockSkew   time.Duration
	timeZones      []string
}

// tlsSettings are the settings below tls.
type tlsSettings struct {
	cert, key          string
	clientCA           string
	clientCertificates string
	minVersion         string
	allowPlainText     bool
}

func defaultSettings() *configuration {
	return &configuration{
		grpc: "127.0.0.1:8081", http: "127.0.0.1:8082",
		broker:   broker.Options{}.WithDefaults(),
		server:   server.Options{}.WithDefaults(),
		backoff:  backoff.Default(),
		console:  "on",
		logLevel: "info", logFormat: "text", stopTimeout: 10 * time.Second,
		tls:          tlsSettings{clientCertificates: "none", minVersion: "1.2"},
		maxClockSkew: access.DefaultMaxClockSkew, timeZones: []string{"UTC", "Local"},
	}
}

// A setting is one row of the table of all settings.
type setting struct {
	key  string // in the file; a dot is a level of nesting
	at   any    // a pointer to the value
	when when
	help string // for the flag, with the kind of the value in backquotes
}

// when a changed setting takes effect.
type when string

const (
	live    when = "live"    // on SIGHUP
	restart when = "restart" // after a restart
)

// flagName returns the name of the flag for a key: --max-backlog for max_backlog, and --tls-cert
// for tls.cert. The variables are TIDEGATE_MAX_BACKLOG and TIDEGATE_TLS_CERT.
var flagName = strings.NewReplacer("_", "-", ".", "-").Replace

func variable(key string) string {
	return "TIDEGATE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// table returns all settings, in the order in which they are printed. The file, the environment,
// the flags, the reload and --print-config use this table.
func (s *configuration) table() []setting {
	b, p := &s.broker, &s.broker.Pressure
	return []setting{
		{"grpc", &s.grpc, restart, "`address` for clients (gRPC, with TLS or without); port 0 for a free one"},
		{"http", &s.http, restart, "`address` for messages and administration (HTTP); port 0 for a free one"},
		{"data", &b.Dir, restart, "`directory` with all data; without it the broker keeps everything in memory"},
		{"snapshot_dir", &s.server.SnapshotDir, restart, "`directory` for snapshots of the data (POST /v1/snapshot), on the file system of --data"},
		{"advertise", &s.server.Advertise, restart, "`host:port` that the broker sends to clients as its address (default: the address that the client used)"},
		{"http_hosts", &s.server.HTTPHosts, restart, "`name` of a host, without port, in HTTP requests from a reverse proxy on this machine (IP addresses, localhost and the host of --advertise are always accepted); can be repeated, or a list with commas"},
		{"console", &s.console, restart, "`mode` of the web console at /console/ of --http: on or off"},
		{"topic", &s.topics, live, "`name` of a topic to create at the start, or name:TYPE with the type NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE; can be repeated, or a list with commas"},
		{"max_backlog", &b.MaxBacklog.Messages, live, "throttle sends to a topic if its backlog reaches this many `messages` (0: no limit)"},
		{"max_backlog_bytes", &b.MaxBacklog.Bytes, live, "throttle sends to a topic if its backlog reaches this many `bytes` (0: no limit)"},
		{"max_backlog_age", &b.MaxBacklog.Age, live, "throttle sends to a topic if the oldest message of its backlog is older than this `duration` (0s: no limit)"},
		{"max_client_rate", &b.ClientQuota.MessagesPerSecond, live, "throttle a client that sends more `messages` per second (0: no limit)"},
		{"max_client_burst", &b.ClientQuota.Burst, live, "number of `messages` that a client can send at once after a pause (0: those of one second); needs max_client_rate"},
		{"min_free_disk_bytes", &p.MinFreeDisk, live, "throttle all sends if the disk has fewer free `bytes` (0: 1 GiB, or 5 % of a smaller disk, at least 256 MiB or an eighth of the disk; -1: none, except for the space that the data directory reserves: 160 MiB, or 3/16 of a small disk)"},
		{"max_compaction_debt_bytes", &p.MaxCompactionDebt, live, "throttle all sends if this many `bytes` wait for compaction (0: the default; -1: no limit)"},
		{"max_write_stall", &p.MaxWriteStall, live, "throttle all sends if the store has stalled writes for this `duration` (0s: the default; -1s: no limit)"},
		{"max_cold_reads_bytes_per_second", &p.MaxColdReads, live, "throttle sends to a topic if lagging groups read this many `bytes` per second from it (0: no limit)"},
		{"cold_distance_bytes", &p.ColdDistance, live, "a group with a larger backlog, in `bytes`, counts as lagging (0: the default)"},
		{"transaction_timeout", &b.Transaction.Timeout, live, "`duration` from a half message to the first check of its transaction (0s: the default)"},
		{"transaction_check_interval", &b.Transaction.CheckInterval, live, "`duration` between two checks of a transaction (0s: the default)"},
		{"transaction_check_max", &b.Transaction.CheckMax, live, "maximum number of checks, in `times`; after the last one the half message becomes a dead letter (0: the default; -1: no maximum)"},
		{"min_invisible_duration", &b.MinInvisibleDuration, restart, "shortest invisible `duration` that a consumer can request (0s: no minimum)"},
		{"max_invisible_duration", &b.MaxInvisibleDuration, restart, "longest invisible `duration` that a consumer can request, and longest time of a delivery with all extensions (0s: the default)"},
		{"min_long_polling", &s.server.MinLongPolling, restart, "shortest `duration` that a receive waits for a message (0s: no minimum)"},
		{"max_long_polling", &s.server.MaxLongPolling, restart, "longest `duration` that a receive waits for a message; the broker sends it to consumers (0s: the default)"},
		{"producer_max_attempts", &s.server.ProducerMaxAttempts, restart, "number of `times` that a producer tries a failed send; the broker sends it to producers (0: the default)"},
		{"producer_backoff_initial", &s.backoff.Initial, restart, "`duration` until a producer repeats a throttled send for the first time; the broker sends it to producers (0s: the default)"},
		{"producer_backoff_multiplier", &s.backoff.Multiplier, restart, "number of `times` by which the delay grows with each repetition (0: the default)"},
		{"producer_backoff_max", &s.backoff.Max, restart, "longest `duration` of that delay (0s: the default)"},
		{"max_auto_groups", &b.MaxAutoGroups, restart, "maximum number of auto-created consumer `groups`; beyond it, create groups with PUT or in the file (0: the default)"},
		{"max_request_bytes", &s.server.MaxReceiveSize, restart, "largest gRPC request in `bytes`, with up to 1000 messages (0: 32 MiB, or a quarter of max_transit_bytes if that is less; minimum: 17 MiB, because tidegate's SDK sends requests of 16 MiB)"},
		{"max_transit_bytes", &s.server.MaxTransitBytes, restart, "`bytes` of memory for requests and responses in progress; beyond it, requests are rejected with 42900 (0: a quarter of GOMEMLIMIT, at most 1 GiB; GOMEMLIMIT is four fifths of the memory, unless the environment sets it)"},
		{"max_parked_bytes", &s.server.MaxParkedBytes, restart, "`bytes` of memory for waiting receives, about 20 KiB each; beyond it, receives are rejected with 42900 (0: an eighth of GOMEMLIMIT, at most 1 GiB)"},
		{"max_connections", &s.maxConnections, restart, "maximum number of `connections` of each address; a further connection replaces the longest idle one without an authenticated client, or waits (0: a quarter of the open files of the process, at most 65536)"},
		{"insecure", &s.server.AnyHost, restart, "permit addresses of other interfaces without access keys and verified TLS, and HTTP requests for any host name"},
		{"no_keys", &s.noKeys, live, "serve a data directory without access keys that was served with access keys before"},
		{"log_level", &s.logLevel, live, "lowest `level` in the log: debug, info, warn or error"},
		{"log_format", &s.logFormat, restart, "`format` of the log: text or json"},
		{"stop_timeout", &s.stopTimeout, restart, "longest `duration` that requests in progress can take after the stop begins"},
		{"tls.cert", &s.tls.cert, restart, "`file` with the certificate for TLS (default: a self-signed one, and plain text on the same port)"},
		{"tls.key", &s.tls.key, restart, "`file` with the private key of --tls-cert"},
		{"tls.client_ca", &s.tls.clientCA, restart, "`file` with the CAs of clients' certificates"},
		{"tls.client_certificates", &s.tls.clientCertificates, restart, "`mode` of client certificates: none, request (verified if the client sends one) or require"},
		{"tls.min_version", &s.tls.minVersion, restart, "oldest `version` of TLS: 1.2 or 1.3"},
		{"tls.allow_plain_text", &s.tls.allowPlainText, restart, "accept clients (gRPC) in plain text in addition to TLS with --tls-cert"},
		{"access.max_clock_skew", &s.maxClockSkew, live, "longest `duration` between the time in a signature and the clock of the broker (0s: the default; -1s: no limit)"},
		{"access.time_zones", &s.timeZones, live, "`name` of a time zone in which clients sign the time; can be repeated, or a list with commas"},
	}
}

// options returns the options of the broker and the server. In options 0 means the default, so the
// shortest duration replaces a minimum of 0.
func (s *configuration) options() (broker.Options, server.Options) {
	bo, so, delays := s.broker, s.server, s.backoff
	bo.MinInvisibleDuration, so.MinLongPolling = cmp.Or(bo.MinInvisibleDuration, 1), cmp.Or(so.MinLongPolling, 1)
	so.ProducerBackoff, so.NoConsole = &delays, s.console == "off"
	return bo, so
}

// limits returns the settings that Broker.ConfigureLimits changes.
func (s *configuration) limits() settings.Limits {
	return settings.Limits{MaxBacklog: s.broker.MaxBacklog, ClientQuota: s.broker.ClientQuota, Pressure: s.broker.Pressure}
}

// validate returns all faults of the values, or nil.
func (s *configuration) validate() error {
	var errs []error
	check := func(ok bool, advice string) {
		if !ok {
			errs = append(errs, errors.New(advice))
		}
	}
	// An SDK that divides a large Send into requests of 16 MiB would fail with less.
	check(s.server.MaxReceiveSize == 0 || s.server.MaxReceiveSize >= 17<<20 && s.server.MaxReceiveSize <= 1<<30, "give 17825792 to 1073741824, or 0 for the default")
	check(s.server.MaxTransitBytes == 0 || s.server.MaxTransitBytes >= 64<<20 && s.server.MaxTransitBytes <= 1<<40, "give 67108864 to 1099511627776, or 0 for the default")
	check(s.server.MaxParkedBytes == 0 || s.server.MaxParkedBytes >= 1<<20 && s.server.MaxParkedBytes <= 1<<40, "give 1048576 to 1099511627776, or 0 for the default")
	check(s.maxConnections >= 0 && s.maxConnections <= math.MaxInt32, "give 0 or more")
	check(s.stopTimeout >= 0, "give 0s or more")
	check(slices.Contains([]string{"debug", "info", "warn", "error"}, s.logLevel), "give debug, info, warn or error")
	check(slices.Contains([]string{"on", "off"}, s.console), "give on or off")
	check(slices.Contains([]string{"text", "json"}, s.logFormat), "give text or json")
	check(slices.Contains([]string{"none", "request", "require"}, s.tls.clientCertificates), "give none, request or require")
	check(slices.Contains([]string{"1.2", "1.3"}, s.tls.minVersion), "give 1.2 or 1.3")
	for _, a := range []string{s.grpc, s.http} {
		_, port, err := net.SplitHostPort(a)
		_, perr := strconv.ParseUint(port, 10, 16)
		check(err == nil && perr == nil, "give host:port with a port of 0 to 65535, as in 127.0.0.1:8081")
	}
	for _, t := range s.topics {
		name, kind, typed := strings.Cut(t, ":")
		errs = append(errs, tidegate.ValidateTopic(name))
		check(!typed || kind != "" && settings.Topic{Type: settings.TopicType(kind)}.Validate() == nil, "give NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE after the colon")
	}
	for _, name := range s.timeZones {
		_, err := time.LoadLocation(name)
		check(err == nil && name != "", fmt.Sprintf("the time zone %q is unknown; give a name such as UTC, Local or Asia/Shanghai", name))
	}
	bo, so := s.options()
	return errors.Join(append(errs, bo.Validate(), so.Validate())...)
}

// change compares the running settings with wanted ones. next has the changes that can be applied
// at once, applied their keys, and later the keys that need a restart.
func change(running, wanted configuration) (next configuration, applied, later []string) {
	next = running
	from, to, is := wanted.table(), next.table(), running.table()
	for i, row := range from {
		switch {
		case text(row.at) == text(is[i].at):
		case row.when == restart:
			later = append(later, row.key)
		default:
			assign(to[i].at, row.at)
			applied = append(applied, row.key)
		}
	}
	return next, applied, later
}

// certificates reads the files of TLS. It returns nil if there are none.
func (s *configuration) certificates(logger *slog.Logger) (*server.Certificates, error) {
	if s.tls.cert == "" {
		return nil, nil
	}
	o := server.CertificateOptions{
		CertFile: s.tls.cert, KeyFile: s.tls.key, ClientCAFile: s.tls.clientCA,
		ClientCertificates: s.tls.clientCertificates, MinVersion: tls.VersionTLS12, Logger: logger,
	}
	if s.tls.minVersion == "1.3" {
		o.MinVersion = tls.VersionTLS13
	}
	return server.LoadCertificates(o)
}
