// Package failover is a transport over an ordered list of endpoints: RocketMQ clusters, tidegate
// brokers, or both. Sends go to the active endpoint, at the beginning the first one. [New]
// accepts transports of any kind.
//
// # Switching
//
// Sends leave the active endpoint after one of these:
//
//   - [Options].Failures transient failures of sends in a row;
//   - a transient failure of a send, followed by a failed probe;
//   - two throttles, [Options].ThrottleGrace or longer apart, without an accepted send since the
//     first of them.
//
// A certificate or credentials that the endpoint had accepted before count as transient failures.
// A missing permission for a topic never does. Cancelled calls, permanent errors and single
// throttles do not count, and neither do the results of sends that began before the last switch.
//
// Sends switch to the first endpoint in the list that works; if none works, they stay. From an
// endpoint that throttles they return to an earlier one only after [Options].SwitchBack, because
// they may have left that one for its throttles. Attempts that wait for a connection to a failing
// endpoint end with the switch, so that the next attempts use the new one.
//
// The Transport probes the other endpoints with Ping. Sends return to an endpoint that precedes the
// active one in the list once it has worked for [Options].SwitchBack. If sends leave it again
// within ten times that time, or before it accepted a send, it has to work for twice as long the
// next time, up to 32 times as long. Recurring faults of an endpoint therefore cause fewer
// switches.
//
// # Receiving
//
// Consumers receive from all endpoints as long as they run, also from an empty endpoint that sends
// do not use. No endpoint can be treated as drained: other programs may switch at other times, a
// retry can be due hours after the last new message, and operators send dead letters back. The
// price is one waiting receive for each queue of each endpoint. Receives from an endpoint that is
// down fail, and the consumer repeats each after its ReceiveBackoff: by default after about 1 s at
// first, and then at most every 5 s. [Transport.Queues] returns the queues of all endpoints, for
// separate Receives. A delivery is settled at its endpoint; Delivery.Endpoint begins with the
// endpoint's name.
//
// A message group is in order within one endpoint. Messages on two endpoints around a switch have
// no order. A send whose response was lost can be stored on both, with the same message ID.
package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	_ transport.LiteSubscriber     = (*Transport)(nil)
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
// request to each endpoint and one more to the active one. Before each of them, a receive of a lite
// consumer brings its lite topics to an endpoint that may lack them.
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
	lites  liteSets

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

// A reaction has the steps that depend on the class of an endpoint's error only. The reaction to
// the result of a send is verdict.
type reaction struct {
	responds    bool // the endpoint works; of a probe
	knownQueues bool // its last known queues are still valid
	askOthers   bool // the settings of another endpoint may replace its own
	endsAlone   bool // transaction checks of the other endpoints continue without it
}

func reactionTo(err error) reaction {
	switch tidegate.Classify(err) {
	case tidegate.ClassOK:
		return reaction{responds: true}
	case tidegate.ClassThrottled:
		return reaction{responds: true, knownQueues: true}
	case tidegate.ClassTransient:
		return reaction{knownQueues: true, askOthers: true}
	case tidegate.ClassPermanent:
		return reaction{endsAlone: true}
	case tidegate.ClassCancelled:
		return reaction{}
	}
	return reaction{}
}

// drainEvery is the interval at which receives from any queue query an inactive endpoint without
// messages.
const drainEvery = 5 * time.Second

// minVisits is the number of entries below which visits keeps expired ones.
const minVisits = 64

// A visitKey names the receives from any queue that find the same messages.
type visitKey struct {
	group, topic string
	filter       tidegate.Filter
	liteConsumer string
}

// A visit is the state of these receives. The zero value means that there was none.
type visit struct {
	from    int         // 1 + the index of the inactive endpoint that returned the last messages; 0 for none
	emptyAt []time.Time // by endpoint, the last receive that found no message; zero for none
	at      time.Time   // the last change
}

// visits are the visits of all receives. It forgets those that changed nothing in the last
// drainEvery. The zero value is ready.
type visits struct {
	mu    sync.Mutex
	byKey map[visitKey]visit
	limit int // the number of entries at which note removes expired ones
}

// plan returns the endpoints to query without waiting for messages, before a receive waits at the
// active one.
func (v *visits) plan(key visitKey, active, n int, now time.Time, down func(int) bool) []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byKey[key].plan(active, n, now, down)
}

// note records the result of a receive from endpoint i.
func (v *visits) note(key visitKey, i int, found bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[visitKey]visit{}
	}
	v.byKey[key] = v.byKey[key].noted(i, found, now)
	if len(v.byKey) <= max(v.limit, minVisits) {
		return
	}
	for k, x := range v.byKey {
		if now.Sub(x.at) >= drainEvery {
			delete(v.byKey, k)
		}
	}
	v.limit = 2 * len(v.byKey) // the cost of an entry is constant on average
}

// turned records that the active endpoint returned messages: the inactive ones come first again.
func (v *visits) turned(key visitKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if x := v.byKey[key]; x.from > 0 {
		x.from = 0
		v.byKey[key] = x
	}
}

// plan is that of visits. It is a pure function.
func (x visit) plan(active, n int, now time.Time, down func(int) bool) []int {
	first := active + 1
	if x.from > 0 {
		first = x.from
	}
	var list []int
	for k := range n {
		i := (first + k) % n
		switch {
		case i == active && k < n-1:
			list = append(list, i) // its turn; otherwise the last receive is its turn
		case i != active && !down(i) && !x.emptySince(i, now):
			list = append(list, i)
		}
	}
	if len(list) > 0 && list[len(list)-1] == active {
		list = list[:len(list)-1] // the endpoints behind it are skipped
	}
	return list
}

func (x visit) emptySince(i int, now time.Time) bool {
	return i < len(x.emptyAt) && !x.emptyAt[i].IsZero() && now.Sub(x.emptyAt[i]) < drainEvery
}

// noted returns x after a receive from endpoint i.
func (x visit) noted(i int, found bool, now time.Time) visit {
	x.at = now
	x.emptyAt = slices.Clone(x.emptyAt)
	if len(x.emptyAt) <= i {
		x.emptyAt = append(x.emptyAt, make([]time.Time, i+1-len(x.emptyAt))...)
	}
	if found {
		x.from, x.emptyAt[i] = i+1, time.Time{}
	} else {
		x.emptyAt[i] = now
	}
	return x
}
