package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

// settings are what serve can be told, beside topics and groups.
type settings struct {
	grpc, http, data, advertise string
	hosts                       []string
	topics                      []string
	limits                      broker.Limits
	transaction                 broker.TransactionConfig
	minInvisible, maxInvisible  time.Duration
	minPoll, maxPoll            time.Duration
	producer                    producerSettings
	maxAutoGroups               int
	maxRequest, maxConnections  int
	maxTransit, maxParked       int64
	insecure, noKeys            bool
	logLevel, logFormat         string
	stopTimeout                 time.Duration
	tls                         tlsSettings
	skew                        time.Duration
	zones                       []string
}

// producerSettings are the retry policy that producers are told.
type producerSettings struct {
	attempts     int
	initial, max time.Duration
	multiplier   float64
}

// A rule is one field of a T: its name, its default and what is legal. All
// values pass through it as text, so that a file, the environment and the
// flags are read alike.
type rule[T any] struct {
	key    string // as in the file; a dot is a level of nesting
	preset string // the default
	help   string // for the flag, with the kind of value in backquotes

	// set reads a text; the error says what is legal, and leaves v as it was.
	set func(v *T, text string) error

	// text writes what set reads.
	text func(v *T) string

	// reset makes a list empty, set adds to it. Nil for what is no list.
	reset func(v *T)

	boolean bool // --insecure alone is true

	// keeps describes the meaning of an absent value if it depends on the value in use. Empty means
	// preset.
	keeps string

	// inherits says whose value holds in place of the default, which is 0.
	inherits string

	live bool // it can change while running
}

// flag and variable are the other two names of a setting: max_backlog is
// --max-backlog and TIDEGATE_MAX_BACKLOG, and tls.cert is --tls-cert and TIDEGATE_TLS_CERT.
func (r rule[T]) flag() string { return strings.NewReplacer("_", "-", ".", "-").Replace(r.key) }

func variable(key string) string {
	return "TIDEGATE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// settingRules are all settings, in the order in which they are shown: those
// with a dot at the end.
var settingRules = append([]rule[settings]{
	text("grpc", "127.0.0.1:8081", "`address` for clients (gRPC, with TLS or without); port 0 for a free one",
		func(s *settings) *string { return &s.grpc }, address),
	text("http", "127.0.0.1:8082", "`address` for messages and administration (HTTP); port 0 for a free one",
		func(s *settings) *string { return &s.http }, address),
	text("data", "", "`directory` that keeps everything; without it the broker is in memory and forgets",
		func(s *settings) *string { return &s.data }, nil),
	text("advertise", "", "`host:port` that clients are told to connect to (default: the address they used)",
		func(s *settings) *string { return &s.advertise }, endpoint),
	{
		key: "http_hosts", help: "`name` of a host, without port, as a reverse proxy on this machine passes it on (IP addresses, localhost and that of --advertise are always taken); can be repeated, or a list with commas",
		set: addHost, text: func(s *settings) string { return strings.Join(s.hosts, ",") },
		reset: func(s *settings) { s.hosts = nil },
	},
	{
		key: "topic", help: "`name` of a topic to make if it is not there, or name:TYPE with the type NORMAL, FIFO, DELAY or TRANSACTION; can be repeated, or a list with commas",
		set: addTopic, text: func(s *settings) string { return strings.Join(s.topics, ",") },
		reset: func(s *settings) { s.topics = nil }, live: true,
	},
	live(integer("max_backlog", "0", "throttle sends to a topic while this many `messages` wait to be consumed (0: no limit)",
		0, math.MaxInt64, func(s *settings) *int64 { return &s.limits.MaxBacklog.Messages })),
	live(integer("max_backlog_bytes", "0", "throttle sends to a topic while this many `bytes` wait to be consumed (0: no limit)",
		0, math.MaxInt64, func(s *settings) *int64 { return &s.limits.MaxBacklog.Bytes })),
	live(duration("max_backlog_age", 0, "throttle sends to a topic while the oldest message that waits to be consumed is older than this `duration` (0s: no limit)",
		0, func(s *settings) *broker.Duration { return &s.limits.MaxBacklog.Age })),
	live(number("max_client_rate", "throttle a client that sends more `messages` a second than this (0: no limit)",
		func(s *settings) *float64 { return &s.limits.ClientQuota.MessagesPerSecond })),
	live(integer("max_client_burst", "0", "how many `messages` a client may send at once after a pause (0: as many as in one second); needs max_client_rate",
		0, math.MaxInt32, func(s *settings) *int { return &s.limits.ClientQuota.Burst })),
	live(integer("min_free_disk_bytes", "0", "throttle all sends while the disk has fewer `bytes` free (0: 1 GiB, or 5 % of a smaller disk; -1: no limit)",
		-1, math.MaxInt64, func(s *settings) *int64 { return &s.limits.Pressure.MinFreeDisk })),
	live(notZero("give a whole number of 1 or more, or -1 for no limit", integer("max_compaction_debt_bytes", strconv.Itoa(broker.DefaultMaxCompactionDebt), "throttle all sends while this many `bytes` wait to be compacted (-1: no limit)",
		-1, math.MaxInt64, func(s *settings) *int64 { return &s.limits.Pressure.MaxCompactionDebt }))),
	live(notZero("give a duration above 0s, or -1s for no limit", duration("max_write_stall", broker.Duration(broker.DefaultMaxWriteStall), "throttle all sends once the store has held up writes for this `duration` (-1s: no limit)",
		math.MinInt64, func(s *settings) *broker.Duration { return &s.limits.Pressure.MaxWriteStall }))),
	live(integer("max_cold_reads_bytes_per_second", "0", "throttle sends to a topic while groups far behind read this many `bytes` a second from it (0: no limit)",
		0, math.MaxInt64, func(s *settings) *int64 { return &s.limits.Pressure.MaxColdReads })),
	live(integer("cold_distance_bytes", strconv.Itoa(broker.DefaultColdDistance), "how many `bytes` a group is behind that is far behind",
		1, math.MaxInt64, func(s *settings) *int64 { return &s.limits.Pressure.ColdDistance })),
	live(duration("transaction_timeout", broker.Duration(broker.DefaultTransactionTimeout), "`duration` after which a producer is asked about a transaction that it has not ended",
		1, func(s *settings) *broker.Duration { return &s.transaction.Timeout })),
	live(duration("transaction_check_interval", broker.Duration(broker.DefaultTransactionCheckInterval), "`duration` after which it is asked again",
		1, func(s *settings) *broker.Duration { return &s.transaction.CheckInterval })),
	live(orForever("transaction_check_max", broker.DefaultTransactionCheckMax, "how many `times` it is asked before the transaction is given up (-1: for ever)",
		func(s *settings) *int { return &s.transaction.CheckMax })),
	duration("min_invisible_duration", broker.DefaultMinInvisibleDuration, "shortest invisible `duration` that a consumer may ask for",
		0, func(s *settings) *time.Duration { return &s.minInvisible }),
	duration("max_invisible_duration", broker.DefaultMaxInvisibleDuration, "longest invisible `duration` that a consumer may ask for, and the longest time from a delivery to its end with all extensions",
		1, func(s *settings) *time.Duration { return &s.maxInvisible }),
	duration("min_long_polling", defaultMinPoll, "shortest `duration` that a receive waits for a message",
		0, func(s *settings) *time.Duration { return &s.minPoll }),
	duration("max_long_polling", defaultMaxPoll, "longest `duration` that a receive waits for a message, which consumers are told",
		1, func(s *settings) *time.Duration { return &s.maxPoll }),
	integer("producer_max_attempts", strconv.Itoa(server.DefaultProducerMaxAttempts), "how many `times` producers are told to try a send that fails or is refused",
		1, math.MaxInt32, func(s *settings) *int { return &s.producer.attempts }),
	duration("producer_backoff_initial", backoff.Default().Initial, "`duration` until the second try of a send that is throttled, which producers are told",
		0, func(s *settings) *time.Duration { return &s.producer.initial }),
	factor("producer_backoff_multiplier", backoff.Default().Multiplier, "how many `times` as long it is until each further try",
		func(s *settings) *float64 { return &s.producer.multiplier }),
	duration("producer_backoff_max", backoff.Default().Max, "`duration` that it is at most",
		0, func(s *settings) *time.Duration { return &s.producer.max }),
	integer("max_auto_groups", strconv.Itoa(broker.DefaultMaxAutoGroups), "how many consumer `groups` there may be that were made by being received from; others have to be put, or stand in the file",
		1, math.MaxInt32, func(s *settings) *int { return &s.maxAutoGroups }),
	// With less, what the SDK divides a large Send into would be refused again and again.
	integerOrZero("max_request_bytes", "largest request over gRPC in `bytes`, which may have up to 1000 messages (0: 32 MiB, or a quarter of max_transit_bytes if that is less; least: 17 MiB, as tidegate's SDK makes requests of 16 MiB)",
		17<<20, 1<<30, func(s *settings) *int { return &s.maxRequest }),
	integerOrZero("max_transit_bytes", "`bytes` of memory for requests and responses under way; a request that finds no room is refused with 42900 (0: a quarter of GOMEMLIMIT, which is four fifths of the memory unless the environment sets it, and at most 1 GiB)",
		64<<20, 1<<40, func(s *settings) *int64 { return &s.maxTransit }),
	integerOrZero("max_parked_bytes", "`bytes` of memory for receives that wait for messages, some 20 KiB each; one that finds no room is refused with 42900 (0: an eighth of GOMEMLIMIT, at most 1 GiB)",
		1<<20, 1<<40, func(s *settings) *int64 { return &s.maxParked }),
	integer("max_connections", "0", "how many `connections` each address takes at a time; a new one takes the place of the one that has been idle longest without an authenticated client, or waits (0: a quarter of the files that the process may have open, at most 65536)",
		0, math.MaxInt32, func(s *settings) *int { return &s.maxConnections }),
	yesNo("insecure", "allow addresses other than this machine's own, although there are no keys and no verified TLS, and requests over HTTP for any host name",
		func(s *settings) *bool { return &s.insecure }),
	live(yesNo("no_keys", "serve without access keys a data directory that was served with access keys before",
		func(s *settings) *bool { return &s.noKeys })),
	live(text("log_level", "info", "lowest `level` that is logged: debug, info, warn or error",
		func(s *settings) *string { return &s.logLevel }, oneOf("debug", "info", "warn", "error"))),
	text("log_format", "text", "`format` of the log: text or json",
		func(s *settings) *string { return &s.logFormat }, oneOf("text", "json")),
	duration("stop_timeout", 10*time.Second, "`duration` that requests under way may take once told to stop",
		0, func(s *settings) *time.Duration { return &s.stopTimeout }),
}, accessRules...)

func live[T any](r rule[T]) rule[T] { r.live = true; return r }

func text[T any](key, preset, help string, field func(*T) *string, check func(string) error) rule[T] {
	return rule[T]{
		key: key, preset: preset, help: help, text: func(v *T) string { return *field(v) },
		set: func(v *T, s string) error {
			if !utf8.ValidString(s) {
				return fmt.Errorf("give text in UTF-8")
			}
			if check != nil {
				if err := check(s); err != nil {
					return err
				}
			}
			*field(v) = s
			return nil
		},
	}
}

func integer[T any, N int | int64](key, preset, help string, least, most int64, field func(*T) *N) rule[T] {
	return rule[T]{
		key: key, preset: preset, help: help, text: func(v *T) string { return strconv.FormatInt(int64(*field(v)), 10) },
		set: func(v *T, s string) error {
			n, err := strconv.ParseInt(s, 10, 64)
			switch {
			case (err != nil || n < least || n > most) && most == math.MaxInt64:
				return fmt.Errorf("give a whole number of %d or more", least)
			case err != nil || n < least || n > most:
				return fmt.Errorf("give a whole number of %d to %d", least, most)
			}
			*field(v) = N(n)
			return nil
		},
	}
}

func duration[T any, D ~int64](key string, preset D, help string, least time.Duration, field func(*T) *D) rule[T] {
	return rule[T]{
		key: key, preset: time.Duration(preset).String(), help: help,
		text: func(v *T) string { return time.Duration(*field(v)).String() },
		set: func(v *T, s string) error {
			d, err := time.ParseDuration(s)
			switch {
			case err != nil:
				return fmt.Errorf(`give a duration such as "3s" or "1m30s"`)
			case d < least && least > 0:
				return fmt.Errorf("give a duration above 0s")
			case d < least:
				return fmt.Errorf("give a duration of 0s or more")
			}
			*field(v) = D(d)
			return nil
		},
	}
}

func yesNo[T any](key, help string, field func(*T) *bool) rule[T] {
	return rule[T]{
		key: key, preset: "false", help: help, boolean: true, text: func(v *T) string { return strconv.FormatBool(*field(v)) },
		set: func(v *T, s string) error {
			if s != "true" && s != "false" {
				return fmt.Errorf("give true or false")
			}
			*field(v) = s == "true"
			return nil
		},
	}
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(words, s) {
			return nil
		}
		return fmt.Errorf("give %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
	}
}

// address checks where to listen.
func address(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("give host:port, as in 127.0.0.1:8081")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("give host:port with a port of 0 to 65535, as in 127.0.0.1:8081")
	}
	return nil
}

// endpoint checks where clients connect to.
func endpoint(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Errorf("give host:port with a port of 1 to 65535")
	}
	return nil
}

// number is a rate; 0 is no limit.
func number[T any](key, help string, field func(*T) *float64) rule[T] {
	return rule[T]{
		key: key, preset: "0", help: help, text: func(v *T) string { return strconv.FormatFloat(*field(v), 'g', -1, 64) },
		set: func(v *T, s string) error {
			r, err := strconv.ParseFloat(s, 64)
			if err != nil || !(r >= 0) || math.IsInf(r, 0) {
				return fmt.Errorf("give a number of 0 or more; 0 is no limit")
			}
			*field(v) = r
			return nil
		},
	}
}

// addHost adds names of hosts, which validate checks.
func addHost(s *settings, text string) error {
	if text != "" {
		s.hosts = append(s.hosts, strings.Split(text, ",")...)
	}
	return nil
}

// addTopic adds topics from a text such as "orders,payments:FIFO".
func addTopic(s *settings, text string) error {
	if text == "" {
		return nil
	}
	list := strings.Split(text, ",")
	for _, t := range list {
		name, kind, typed := strings.Cut(t, ":")
		if err := tidegate.ValidateTopic(name); err != nil {
			return err
		}
		if typed && !slices.Contains(topicTypes, kind) {
			return errors.New("after the colon comes NORMAL, FIFO, DELAY or TRANSACTION")
		}
	}
	s.topics = append(s.topics, list...)
	return nil
}
