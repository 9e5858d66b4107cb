package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// An Endpoint is one of the transports to choose from.
type Endpoint struct {
	// Name identifies the endpoint in events and errors, for example "primary". It consists of
	// letters, digits, '-' and '_'. It is required and must be unique.
	Name string

	// Transport must also be a transport.Pinger. The [Transport] owns it and closes it. It is
	// required.
	Transport transport.Transport
}

// An Event is a switch from one endpoint to another.
type Event struct {
	At       time.Time
	From, To string // names of endpoints
	Reason   Reason
	Err      error // the last failure of From; nil for Recovered
}

// Options configure a [Transport]. The zero value means the defaults.
type Options struct {
	// Failures is the number of consecutive sends with a transient error after which sends leave
	// the endpoint. Negative values are invalid. Default: 3.
	Failures int

	// ThrottleGrace is the time for which an endpoint may throttle without accepting a message
	// before sends leave it. It counts from the first throttle to the last one, however few sends
	// there are between them. Negative means that throttling is never a reason to leave. Default:
	// 30 s.
	ThrottleGrace time.Duration

	// SwitchBack is the time for which an earlier endpoint must work before sends return to it. The
	// time doubles, up to 32 times SwitchBack, each time that sends leave the endpoint again within
	// ten times the time, or before it accepted a send. Negative values are invalid. Default: 60 s.
	SwitchBack time.Duration

	// ProbeInterval is the time between probes of an endpoint. Endpoints that are not active are
	// probed, and the active one after a failed send. ProbeTimeout bounds a probe. One failed probe
	// makes sends leave an endpoint. Negative values are invalid. Default of each: 1 s.
	ProbeInterval, ProbeTimeout time.Duration

	// OnSwitch is called after each switch, in order, by one goroutine. It may block, but must not
	// call Close. Later events and Close wait for it. While 64 events wait, sends do not switch. A
	// panic is logged. Nil means none.
	OnSwitch func(Event)

	// Logger receives a warning for each switch, and errors: panics of OnSwitch, and endpoints that
	// permanently fail to serve transaction checks. Nil means no logging.
	Logger *slog.Logger
}

var (
	_ transport.Transport  = (*Transport)(nil)
	_ transport.LaneSender = (*Transport)(nil)
	_ transport.Pinger     = (*Transport)(nil)
	_ transport.Recaller   = (*Transport)(nil)
	_ transport.Transactor = (*Transport)(nil)

	_ transport.EndpointConfigurer = (*Transport)(nil)
)

// A Transport sends to the active one of its endpoints. Several goroutines may share it.
//
// Wake-ups: the probes of the inactive endpoints, each once in ProbeInterval until Close, also
// while OnSwitch blocks. After every probe, and after every result of a send that changes the
// health of the active endpoint, the Transport decides where sends go. A switch from a failing
// endpoint ends the attempts that wait for a connection to it.
//
// Bound on steps: an endpoint is probed at most once in ProbeInterval, and the active one only
// after a failed send or a failed probe. A switch needs a failed send, a throttle or a failed
// probe, or an endpoint that has worked for SwitchBack. A receive from any queue sends at most one
// request to each endpoint and one more to the active one.
type Transport struct {
	opts   Options
	rules  rules
	ends   []*end
	active atomic.Int64

	ctx    context.Context //nolint:containedctx // ends with Close; for probes, not for requests
	cancel context.CancelFunc
	wg     sync.WaitGroup
	events chan Event
	visits visits

	mu     sync.Mutex // guards health; never held across a wait or a call
	health []health
	last   []error // last failure of each endpoint
}

// An end is an endpoint with the parts of its state that calls read without a lock.
type end struct {
	Endpoint
	index   int
	ping    transport.Pinger
	marked  atomic.Bool // while active: an accepted send would change its health
	down    atomic.Bool // health.down
	suspect atomic.Bool // a send failed since the last probe began
	era     atomic.Pointer[era]
	known   sync.Map // groupTopic → known, the last response
}

func invalid(field, format string, args ...any) error {
	return &tidegate.Error{Op: "failover.New", Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// New returns a transport over at least two endpoints, in the order of preference. The error joins
// all faults; after an error the caller still owns the endpoints.
func New(endpoints []Endpoint, o Options) (*Transport, error) {
	var errs []error
	if len(endpoints) < 2 {
		errs = append(errs, invalid("endpoints", "there are %d; give at least 2", len(endpoints)))
	}
	seen := map[string]bool{}
	for _, e := range endpoints {
		if e.Name == "" || seen[e.Name] || strings.ContainsFunc(e.Name, func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			errs = append(errs, invalid("Endpoint.Name", "%q is empty, repeated, or has characters other than letters, digits, - and _; give another name", e.Name))
		}
		seen[e.Name] = true
		if _, ok := e.Transport.(transport.Pinger); !ok {
			errs = append(errs, invalid("Endpoint.Transport", "the transport of %q does not implement transport.Pinger, so it cannot be probed", e.Name))
		}
	}
	def := func(field string, d *time.Duration, value time.Duration) {
		if *d < 0 {
			errs = append(errs, invalid("Options."+field, "%v is negative; give a positive value, or 0 for %v", *d, value))
		}
		if *d == 0 {
			*d = value
		}
	}
	if o.ThrottleGrace == 0 {
		o.ThrottleGrace = 30 * time.Second
	}
	def("SwitchBack", &o.SwitchBack, time.Minute)
	def("ProbeInterval", &o.ProbeInterval, time.Second)
	def("ProbeTimeout", &o.ProbeTimeout, time.Second)
	if o.Failures < 0 {
		errs = append(errs, invalid("Options.Failures", "%d is negative; give 1 or more, or 0 for 3", o.Failures))
	}
	if o.Failures == 0 {
		o.Failures = 3
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t := &Transport{
		opts: o, rules: rules{o.Failures, o.ThrottleGrace, o.SwitchBack}, events: make(chan Event, 64),
		health: make([]health, len(endpoints)), last: make([]error, len(endpoints)),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background()) // the transport's lifetime
	for i, e := range endpoints {
		x := &end{Endpoint: e, index: i, ping: e.Transport.(transport.Pinger)}
		x.marked.Store(true)
		ctx, cancel := context.WithCancelCause(context.Background()) // ends when sends leave the endpoint
		x.era.Store(&era{ctx, cancel})
		t.ends = append(t.ends, x)
	}
	for _, e := range t.ends {
		t.wg.Go(func() { t.probe(e) })
	}
	t.wg.Go(t.watch)
	return t, nil
}

// Active returns the name of the endpoint that receives the sends. It does not block.
func (t *Transport) Active() string { return t.now().Name }

func (t *Transport) now() *end { return t.ends[t.active.Load()] }

// Close closes the transports of all endpoints, and waits for probes and for OnSwitch. The error
// joins those of the transports.
func (t *Transport) Close() error {
	t.cancel()
	errs := make([]error, len(t.ends))
	var wg sync.WaitGroup
	for i, e := range t.ends {
		wg.Go(func() { errs[i] = e.Transport.Close() })
	}
	wg.Wait()
	t.wg.Wait()
	return errors.Join(errs...)
}
