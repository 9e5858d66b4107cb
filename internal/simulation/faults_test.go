package simulation

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A kind is a kind of fault.
type kind string

// The kinds of faults. Those up to blackHole concern single requests.
const (
	throttle    kind = "throttle"     // the broker rejects the request with 42900, perhaps late
	refuse      kind = "refuse"       // the connection is lost before the request takes effect
	fail        kind = "fail"         // the broker reports an internal error and does nothing
	loseReply   kind = "lose reply"   // the request takes effect and the connection is lost
	delay       kind = "delay"        // the request arrives late
	slowDisk    kind = "slow disk"    // the response arrives late
	duplicate   kind = "duplicate"    // the request takes effect twice
	blackHole   kind = "black hole"   // the request gets no response
	disconnect  kind = "disconnect"   // all connections break, and new ones are refused until the end
	restart     kind = "restart"      // like disconnect, and the broker restarts at the end
	powerLoss   kind = "power loss"   // like restart, and data that was not synced at the beginning is lost
	handlersOut kind = "handlers out" // the handlers of a group fail, for example because of its database
)

// class has the requests that a fault affects.
type class string

const (
	anyRequest class = "any"
	sends      class = "sends"
	receives   class = "receives"
	settles    class = "settles"
	queries    class = "queries" // of routes, assignments and settings
)

// classes are the operations of each class, by the names of RocketMQ's RPCs.
var classes = map[class][]string{
	sends:    {"SendMessage", "EndTransaction", "RecallMessage"},
	receives: {"ReceiveMessage"},
	settles:  {"AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"},
	queries:  {"QueryRoute", "QueryAssignment"},
}

// A fault of a broker begins at a time of the plan and has its own end.
type fault struct {
	kind     kind
	broker   int
	group    string // of handlersOut
	at       time.Duration
	lasts    time.Duration
	requests class
	share    float64       // of the requests
	late     time.Duration // the longest delay of the request or of its rejection
	pushBack time.Duration // that the throttle requests; 0: none
}

func (f fault) String() string {
	return fmt.Sprintf("%v to %v: %s of broker %d%s, %s, %.0f %%, late %v, push-back %v",
		f.at, f.at+f.lasts, f.kind, f.broker, f.group, f.requests, f.share*100, f.late, f.pushBack)
}

func (f fault) active(at time.Duration) bool { return at >= f.at && at < f.at+f.lasts }

// onRequests reports whether the fault concerns single requests.
func (f fault) onRequests() bool {
	return f.kind != disconnect && f.kind != restart && f.kind != powerLoss && f.kind != handlersOut
}

func (f fault) concerns(op string) bool {
	return f.requests == anyRequest || slices.Contains(classes[f.requests], op)
}

// newFault returns a random fault that ends within the first phase.
func (p *plan) newFault(d dice) fault {
	f := fault{
		kind:     pick(d, throttle, throttle, refuse, fail, loseReply, delay, slowDisk, duplicate, blackHole, disconnect, restart, handlersOut),
		broker:   d.IntN(p.brokers),
		requests: pick(d, anyRequest, sends, sends, receives, settles, queries),
		share:    pick(d, 0.1, 0.5, 1),
	}
	switch {
	case p.theme == throttled:
		f.kind, f.requests = pick(d, throttle, throttle, slowDisk), sends
	case p.theme == queried:
		f.kind, f.requests = throttle, queries
	case p.theme == failing && d.chance(0.5):
		f.kind = handlersOut
	}
	f.lasts = min(d.span(50*time.Millisecond, 90*time.Second), p.duration*9/10)
	f.at = time.Duration(d.Int64N(int64(p.duration - f.lasts)))
	switch f.kind {
	case throttle:
		if d.chance(0.5) {
			f.late = d.span(time.Millisecond, 3*time.Second)
		}
		if d.chance(0.3) {
			f.pushBack = d.span(10*time.Millisecond, 10*time.Second)
		}
	case delay, slowDisk:
		f.late = d.span(time.Millisecond, 5*time.Second)
	case disconnect, restart: // by dice of its own: other faults keep their plans
		if newDice(p.seed, fmt.Sprint("power ", f.at)).chance(0.5) {
			f.kind = powerLoss
		}
	case handlersOut:
		f.group = p.groups[d.IntN(len(p.groups))].name
	}
	return f
}

// newLongFault returns a fault of the first broker that takes most of the first phase.
func (p *plan) newLongFault(d dice) fault {
	at := d.span(10*time.Millisecond, p.duration/4)
	return fault{
		kind: pick(d, throttle, throttle, throttle, refuse, fail, blackHole, disconnect), requests: pick(d, sends, sends, anyRequest), share: 1,
		at: at, lasts: d.span(p.duration/4, p.duration-at), late: pick(d, 0, 100*time.Millisecond, 2*time.Second),
	}
}

// A site is a broker with its faults.
type site struct {
	*brokertest.Broker

	w      *world
	number int
	faults []fault                       // that concern requests
	count  atomic.Int64                  // of requests, for the choice of those that a fault concerns
	cuts   atomic.Int64                  // faults that disconnect the broker at present
	memory *broker.Memory                // a crashable one if the power fails
	lost   atomic.Int64                  // when the power failed last, from the start of the world; 0 for never
	engine atomic.Pointer[broker.Broker] // for in-process clients; nil while the broker restarts
}

// cut begins a fault that disconnects the broker. Several of them can overlap.
func (s *site) cut() {
	s.cuts.Add(1)
	s.Disconnect()
}

// losePower begins a fault that disconnects the broker, whose power fails at the same time. The
// requests of other clients get their responses before, or not at all.
func (s *site) losePower(f fault) {
	s.cut()
	s.lost.Store(int64(s.w.now()))
	rnd := newDice(s.w.plan.seed, fmt.Sprint("power ", s.number, f.at)).Rand
	fs := files(s.memory)
	*fs = (*fs).(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
}

// crashable returns a directory that can lose what is not synced. It is slower than others.
func crashable() *broker.Memory {
	m := broker.NewMemory()
	*files(m) = vfs.NewCrashableMem()
	return m
}

// files returns the field of a Memory, which has no exported name: no user needs it.
func files(m *broker.Memory) *vfs.FS {
	return (*vfs.FS)(reflect.ValueOf(m).Elem().FieldByName("fs").Addr().UnsafePointer())
}

// mend ends a fault that disconnects the broker.
func (s *site) mend() {
	if s.cuts.Add(-1) == 0 {
		s.Reconnect()
	}
}

// restart restarts the broker and ends the fault.
func (s *site) restart() {
	s.engine.Store(nil)
	s.Restart()
	s.engine.Store(s.Broker.Broker)
	if s.cuts.Add(-1) > 0 {
		s.Disconnect()
	}
}

// chosen reports whether fault i concerns this request.
func (s *site) chosen(i int, f fault) (dice, bool) {
	d := newDice(s.w.plan.seed, fmt.Sprint(s.number, i, s.count.Add(1)))
	return d, d.chance(f.share)
}

// around applies the faults of this time to a request.
func (s *site) around(ctx context.Context, op string, next func(context.Context) error) error {
	now := s.w.now()
	for i, f := range s.faults {
		if !f.active(now) || !f.concerns(op) {
			continue
		}
		if d, hit := s.chosen(i, f); hit {
			inner := next
			next = func(ctx context.Context) error { return s.apply(ctx, f, d, inner) }
		}
	}
	return s.travel(ctx, next)
}

// travel adds the latency of the network to a request and to its response.
func (s *site) travel(ctx context.Context, next func(context.Context) error) error {
	latency := int64(s.w.plan.latency)
	if latency == 0 {
		return next(ctx)
	}
	d := newDice(s.w.plan.seed, fmt.Sprint(s.number, "latency", s.count.Add(1)))
	if wait(ctx, time.Duration(d.Int64N(latency))); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := next(ctx)
	wait(ctx, time.Duration(d.Int64N(latency)))
	return err
}

var errLost = errors.New("connection lost, by the simulation")

// apply applies one fault to a request.
func (s *site) apply(ctx context.Context, f fault, d dice, next func(context.Context) error) error {
	late := func() {
		if f.late > 0 {
			wait(ctx, time.Duration(d.Int64N(int64(f.late))))
		}
	}
	switch f.kind {
	case throttle:
		late()
		return brokertest.Throttled(f.pushBack)
	case refuse:
		return errLost
	case fail:
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "by the simulation"}
	case loseReply:
		_ = next(ctx)
		return errLost
	case delay:
		if late(); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return next(ctx)
	case slowDisk:
		err := next(ctx)
		late()
		return err
	case duplicate:
		_ = next(ctx)
		return next(ctx)
	case blackHole:
		return server.ErrNoAnswer
	}
	panic("no effect on a request: " + f.kind)
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Enough of the seeds cut the power of a broker.
func TestSeedsCutThePower(t *testing.T) {
	t.Parallel()
	cuts := 0
	for seed := range uint64(200) {
		for _, f := range newPlan(seed + 1).faults {
			if f.kind == powerLoss {
				cuts++
			}
		}
	}
	if t.Logf("%d power losses in 200 plans", cuts); cuts < 20 {
		t.Errorf("%d power losses in 200 plans", cuts)
	}
}

// interfaceMethods returns the methods of all exported interfaces of package transport.
func interfaceMethods(t *testing.T) (names []string) {
	t.Helper()
	files := assert.Value(filepath.Glob("../../transport/*.go"))(t)
	for _, name := range files {
		f := assert.Value(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if i, ok := spec.Type.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					for _, id := range m.Names { // none: an embedded interface
						names = append(names, id.Name)
					}
				}
			}
			return true
		})
	}
	assert.MustThat(t, len(names) >= 15, "package transport has only the methods %v", names)
	return names
}

// several is a transport over several endpoints.
type several struct {
	fullTransport
	transport.EndpointConfigurer
}

// The counting transport forwards and counts each method of the interfaces of package transport,
// and an endpoint keeps its optional interfaces behind it.
func TestCountedForwardsEveryMethod(t *testing.T) {
	for _, name := range interfaceMethods(t) {
		m := &meter{w: &world{}}
		// A nil transport panics when the call reaches it.
		f := reflect.ValueOf(countedLanes{counted{several{}, m}, nil}).MethodByName(name)
		if !f.IsValid() {
			t.Errorf("the counting transport does not have %s, so the SDK would not use it in the simulation", name)
			continue
		}
		args := make([]reflect.Value, f.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(f.Type().In(i))
		}
		reached := func() (reached bool) {
			defer func() { reached = recover() != nil }()
			if f.Type().IsVariadic() {
				f.CallSlice(args)
			} else {
				f.Call(args)
			}
			return false
		}()
		assert.That(t, reached, "%s is not forwarded", name)
		quiet := name == "Capabilities" || name == "EndpointSettings" // they send no request
		if counted := m.total(name) == 1; !counted && !quiet {
			t.Errorf("%s is not counted", name)
		}
	}
}
