package failover_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A lane of an endpoint that sends have left takes no message.
func TestLanesEndWithASwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := endpoint(func() error { return errDown }, well)
		x := pair(t, a, endpoint(well, well), failover.Options{})
		lane := assert.Value(x.Lane(t.Context(), transport.LaneRequest{Topic: "t"}))(t)
		msgs := []*tidegate.Message{{ID: "1", Topic: "t"}}
		for range 3 {
			if r := x.SendLane(t.Context(), lane, msgs); r[0].Err == nil || errors.Is(r[0].Err, transport.ErrLaneChanged) {
				t.Errorf("%v of a failing endpoint", r[0].Err)
			}
		}
		before := len(a.Calls("Send"))
		if r := x.SendLane(t.Context(), lane, msgs); !errors.Is(r[0].Err, transport.ErrLaneChanged) || len(a.Calls("Send")) != before {
			t.Errorf("%v and %d sends to the endpoint after the switch, want ErrLaneChanged and none", r[0].Err, len(a.Calls("Send"))-before)
		}
	})
}

// The settings of each endpoint are known with its queues, and kept while it does not respond.
func TestSettingsOfEachEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, fault := 5, errDown
		first := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			return transport.ConsumerSettings{MaxAttempts: 3}, nil
		}}
		second := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			if fault != nil {
				return transport.ConsumerSettings{}, fault
			}
			return transport.ConsumerSettings{MaxAttempts: attempts, FIFO: true}, nil
		}}
		x := pair(t, first, second, failover.Options{})
		read := func(queues int) {
			t.Helper()
			list, err := x.Queues(t.Context(), "g", "t")
			assert.That(t, err == nil && len(list) == queues, "the queues are %v, %v; want %d", list, err, queues)
		}
		want := func(endpoint string, n int, known bool) {
			t.Helper()
			if s, ok := x.EndpointSettings(endpoint, "g", "t"); ok != known || s.MaxAttempts != n || s.FIFO != (n > 3) {
				t.Errorf("%s has %+v, %v; want %d attempts, %v", endpoint, s, ok, n, known)
			}
		}
		want("a/server", 0, false)
		read(1) // the order of the second endpoint is unknown
		want("a/server", 3, true)
		want("b/server", 0, false)
		fault = nil
		read(2)
		want("b/server", 5, true)
		attempts = 6
		read(2)
		want("b/server", 6, true)
		fault = errDown
		read(2)
		want("b/server", 6, true)
		want("elsewhere/server", 0, false)
		_, ok := x.EndpointSettings("a/server", "g", "other")
		assert.That(t, !ok, "there are settings of a topic whose queues were not read")
	})
}

func TestConsumerSettingsOfAnotherEndpoint(t *testing.T) {
	has := func(n int, err error) *transporttest.Fake {
		return &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			return transport.ConsumerSettings{MaxAttempts: n}, err
		}}
	}
	for name, tt := range map[string]struct {
		a, b *transporttest.Fake
		want int
		err  error
	}{
		"the active one responds":      {has(3, nil), has(5, nil), 3, nil},
		"the active one is down":       {has(0, errDown), has(5, nil), 5, nil},
		"the active one rejects":       {has(0, errPermanent), has(5, nil), 0, tidegate.ErrInvalid},
		"the active one throttles":     {has(0, errThrottled), has(5, nil), 0, tidegate.ErrThrottled},
		"the active one is closed":     {has(0, tidegate.ErrClosed), has(5, nil), 0, tidegate.ErrClosed},
		"none responds":                {has(0, errDown), has(0, errPermanent), 0, tidegate.ErrUnavailable},
		"the other one is not queried": {has(3, nil), has(0, errDown), 3, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := pair(t, tt.a, tt.b, failover.Options{})
			s, err := x.ConsumerSettings(t.Context(), "g", "t")
			assert.That(t, s.MaxAttempts == tt.want && errors.Is(err, tt.err) && (err == nil) == (tt.err == nil), "%s: %d, %v; want %d, %v", name, s.MaxAttempts, err, tt.want, tt.err)
		})
	}
}

// After the end of ctx no other endpoint is queried.
func TestConsumerSettingsEndWithCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		active := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			cancel()
			return transport.ConsumerSettings{}, errDown
		}}
		other := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			t.Error("the other endpoint is queried")
			return transport.ConsumerSettings{}, nil
		}}
		_, err := pair(t, active, other, failover.Options{}).ConsumerSettings(ctx, "g", "t")
		assert.That(t, errors.Is(err, tidegate.ErrUnavailable), "it returned %v", err)
	})
}

// The failover has a capability only if all endpoints have it.
func TestCapabilitiesOfAllEndpoints(t *testing.T) {
	for i := range reflect.TypeFor[transport.Capabilities]().NumField() {
		var one transport.Capabilities
		if f := reflect.ValueOf(&one).Elem().Field(i); f.Kind() == reflect.Bool {
			f.SetBool(true)
		} else {
			f.SetUint(uint64(transport.Snooze))
		}
		for _, tt := range []struct{ a, b, want transport.Capabilities }{
			{one, one, one}, {one, transport.Capabilities{}, transport.Capabilities{}}, {transport.Capabilities{}, one, transport.Capabilities{}},
		} {
			x := pair(t, &transporttest.Fake{Announces: tt.a}, &transporttest.Fake{Announces: tt.b}, failover.Options{})
			got := x.Capabilities("")
			assert.That(t, got == tt.want, "%+v of %+v and %+v", got, tt.a, tt.b)
		}
	}
}

// Ping returns with the first success. Without one it returns the error of the first endpoint.
func TestPingOfSeveralEndpoints(t *testing.T) {
	waits := func(ctx context.Context, _ int, _ []string) error { <-ctx.Done(); return context.Cause(ctx) }
	fails := func(err error) func(context.Context, int, []string) error {
		return func(context.Context, int, []string) error { return err }
	}
	for name, tt := range map[string]struct {
		a, b func(context.Context, int, []string) error
		want error
	}{
		"both respond":               {fails(nil), fails(nil), nil},
		"the first does not respond": {waits, fails(nil), nil},
		"the second is down":         {fails(nil), fails(errDown), nil},
		"both fail":                  {fails(errPermanent), fails(errDown), tidegate.ErrInvalid},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := pair(t, &transporttest.Fake{OnPing: tt.a}, &transporttest.Fake{OnPing: tt.b}, failover.Options{ProbeInterval: time.Hour})
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := x.Ping(ctx); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || time.Since(begin) > 0 {
				t.Errorf("%s: %v after %v, want %v at once", name, err, time.Since(begin), tt.want)
			}
		})
	}
}

// Close waits for OnSwitch.
func TestCloseWaitsForOnSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Bool
		x := pair(t, endpoint(func() error { return errDown }, well), endpoint(well, well), failover.Options{
			OnSwitch: func(failover.Event) {
				time.Sleep(time.Minute)
				done.Store(true)
			},
		})
		for range 3 {
			sent(x)
		}
		synctest.Wait()
		err := x.Close()
		assert.That(t, err == nil && done.Load(), "%v; OnSwitch has returned: %t", err, done.Load())
	})
}

// A check names the server as EndTransaction expects it.
func TestChecksNameTheEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asking := &transporttest.Fake{OnServeChecks: func(ctx context.Context, _ int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			check(ctx, transport.TransactionCheck{Transaction: transport.Transaction{ID: "1", Endpoint: "server"}})
			<-ctx.Done()
			return nil
		}}
		x := pair(t, asking, endpoint(well, well), failover.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		assert.NoError(t, x.ServeChecks(ctx, []string{"t"}, func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
			defer cancel()
			assert.That(t, c.Transaction.Endpoint == "a/server", "the check names %q, want a/server", c.Transaction.Endpoint)
			return transport.Commit
		}))
		err := x.EndTransaction(t.Context(), transport.Transaction{Endpoint: "other/server"}, transport.Commit)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v of a transaction at none of the endpoints", err)
	})
}

// interfaces are all interfaces of package transport that a transport can implement. A decorator
// has to forward their methods: the SDK finds optional ones by a type assertion, so that a
// decorator without them would silently take a feature away.
var interfaces = map[string]reflect.Type{
	"Sender":     reflect.TypeFor[transport.Sender](),
	"Receiver":   reflect.TypeFor[transport.Receiver](),
	"Settler":    reflect.TypeFor[transport.Settler](),
	"Configurer": reflect.TypeFor[transport.Configurer](),
	"Transport":  reflect.TypeFor[transport.Transport](),
	"LaneSender": reflect.TypeFor[transport.LaneSender](),
	"Pinger":     reflect.TypeFor[transport.Pinger](),
	"Recaller":   reflect.TypeFor[transport.Recaller](),
	"Transactor": reflect.TypeFor[transport.Transactor](),
	"Watcher":    reflect.TypeFor[transport.Watcher](),
	"Streamer":   reflect.TypeFor[transport.Streamer](),

	"EndpointConfigurer": reflect.TypeFor[transport.EndpointConfigurer](),
	"LiteSubscriber":     reflect.TypeFor[transport.LiteSubscriber](),
}

// A new interface of package transport has to be added to the list.
func TestInterfacesAreComplete(t *testing.T) {
	var declared []string
	files, err := filepath.Glob("../*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text := assert.Value(os.ReadFile(name))(t)
		f := assert.Value(parser.ParseFile(token.NewFileSet(), name, text, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.IsExported() {
				if _, ok := s.Type.(*ast.InterfaceType); ok {
					declared = append(declared, s.Name.Name)
				}
			}
			return true
		})
	}
	slices.Sort(declared)
	listed := slices.Sorted(maps.Keys(interfaces))
	assert.That(t, slices.Equal(declared, listed), "package transport declares %v, this test lists %v", declared, listed)
}

// Each decorator implements all interfaces of the transports that it wraps.
func TestDecoratorsImplementEveryInterface(t *testing.T) {
	chaos, wrapped := reflect.TypeFor[*brokertest.ChaosClient](), reflect.TypeFor[*rocketmq.Client]()
	for name, i := range interfaces {
		if d := reflect.TypeFor[*failover.Transport](); !d.Implements(i) { // it wraps any transport
			t.Errorf("%v does not implement transport.%s", d, name)
		}
		assert.That(t, !wrapped.Implements(i) || chaos.Implements(i), "%v does not implement transport.%s", chaos, name)
	}
}

// A recorder is an endpoint that implements every interface and records the calls.
type recorder struct {
	mu    sync.Mutex
	calls map[string][]string // method → the arguments that name a server
}

func (r *recorder) note(method string, servers ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[method] = append(r.calls[method], strings.Join(servers, ","))
}

func (r *recorder) of(method string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

func (r *recorder) Send(context.Context, []*tidegate.Message) []transport.SendResult {
	r.note("Send")
	return make([]transport.SendResult, 1)
}

func (r *recorder) Receive(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	r.note("Receive")
	return nil, nil
}

func (r *recorder) ReceiveOrWatch(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	r.note("ReceiveOrWatch")
	return nil, nil, nil
}

func (r *recorder) ReceiveParts(context.Context, transport.ReceiveRequest, func([]*tidegate.Delivery, time.Time)) ([]*tidegate.Delivery, error) {
	r.note("ReceiveParts")
	return nil, nil
}

func (r *recorder) Ack(_ context.Context, ds []*tidegate.Delivery) []error {
	r.note("Ack", ds[0].Endpoint)
	return make([]error, len(ds))
}

func (r *recorder) Settle(_ context.Context, d *tidegate.Delivery, _ transport.Verdict) (transport.RetryResult, error) {
	r.note("Settle", d.Endpoint)
	return transport.RetryResult{}, nil
}

func (r *recorder) Extend(_ context.Context, d *tidegate.Delivery, _ time.Duration, _ bool) (string, error) {
	r.note("Extend", d.Endpoint)
	return "", nil
}

func (r *recorder) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	r.note("ProducerSettings")
	return transport.ProducerSettings{}, nil
}

func (r *recorder) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	r.note("ConsumerSettings")
	return transport.ConsumerSettings{}, nil
}

func (r *recorder) EndpointSettings(endpoint, _, _ string) (transport.ConsumerSettings, bool) {
	r.note("EndpointSettings", endpoint)
	return transport.ConsumerSettings{}, true
}

func (r *recorder) Queues(context.Context, string, string) ([]int, error) {
	r.note("Queues")
	return nil, nil
}

func (r *recorder) Capabilities(endpoint string) transport.Capabilities {
	r.note("Capabilities", endpoint)
	return transport.Capabilities{}
}

func (r *recorder) Lane(_ context.Context, q transport.LaneRequest) (transport.Lane, error) {
	r.note("Lane", q.Avoid...)
	return transport.Lane{}, nil
}

func (r *recorder) SendLane(_ context.Context, l transport.Lane, _ []*tidegate.Message) []transport.SendResult {
	r.note("SendLane", l.Endpoint)
	return make([]transport.SendResult, 1)
}

func (r *recorder) Ping(context.Context, ...string) error { r.note("Ping"); return nil }

func (r *recorder) Recall(_ context.Context, _, handle string) (string, error) {
	r.note("Recall", handle)
	return "", nil
}

func (r *recorder) SendHalf(context.Context, *tidegate.Message) transport.SendResult {
	r.note("SendHalf")
	return transport.SendResult{}
}

func (r *recorder) EndTransaction(_ context.Context, x transport.Transaction, _ transport.Resolution) error {
	r.note("EndTransaction", x.Endpoint)
	return nil
}

func (r *recorder) ServeChecks(context.Context, []string, func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	r.note("ServeChecks")
	return nil
}

func (r *recorder) SyncLite(context.Context, transport.LiteSync) error {
	r.note("SyncLite")
	return nil
}

func (r *recorder) ServeLite(context.Context, transport.LiteConsumer, func(string)) error {
	r.note("ServeLite")
	return nil
}

func (r *recorder) Close() error { r.note("Close"); return nil }

// A call of each method reaches the same method of the endpoint, with the endpoint's own name of
// the server.
func TestEveryMethodIsForwarded(t *testing.T) {
	const outer, inner = "a/server:1", "server:1"
	arguments := map[reflect.Type]any{
		reflect.TypeFor[context.Context]():          context.Background(),
		reflect.TypeFor[[]*tidegate.Message]():      []*tidegate.Message{{ID: "1", Topic: "t"}},
		reflect.TypeFor[*tidegate.Message]():        &tidegate.Message{ID: "1", Topic: "t"},
		reflect.TypeFor[transport.ReceiveRequest](): transport.ReceiveRequest{Group: "g", Topic: "t", Queue: 0},
		reflect.TypeFor[*tidegate.Delivery]():       &tidegate.Delivery{Endpoint: outer},
		reflect.TypeFor[[]*tidegate.Delivery]():     []*tidegate.Delivery{{Endpoint: outer}},
		reflect.TypeFor[string]():                   outer, // the topics and groups do not matter
		reflect.TypeFor[[]string]():                 []string{"t"},
		reflect.TypeFor[transport.LaneRequest]():    transport.LaneRequest{Topic: "t", Avoid: []string{"b/server:2", outer}},
		reflect.TypeFor[transport.Lane]():           transport.Lane{Endpoint: outer},
		reflect.TypeFor[transport.Transaction]():    transport.Transaction{ID: "1", Endpoint: outer},
	}
	methods := map[string]bool{}
	for _, i := range interfaces {
		for m := range i.Methods() {
			methods[m.Name] = true
		}
	}
	for method := range methods {
		a, b := &recorder{calls: map[string][]string{}}, &recorder{calls: map[string][]string{}}
		x := assert.Value(failover.New([]failover.Endpoint{{Name: "a", Transport: a}, {Name: "b", Transport: b}}, failover.Options{ProbeInterval: time.Hour}))(t)
		f := reflect.ValueOf(x).MethodByName(method)
		var args []reflect.Value
		for want := range f.Type().Ins() {
			arg, ok := arguments[want]
			if !ok {
				args = append(args, reflect.Zero(want))
				continue
			}
			args = append(args, reflect.ValueOf(arg))
		}
		if f.Type().IsVariadic() {
			f.CallSlice(args)
		} else {
			f.Call(args)
		}
		got := a.of(method)
		assert.That(t, len(got) == 1 && (got[0] == "" || got[0] == inner), "%s: the endpoint a received %q, want one call that names %s or no server", method, got, inner)
		names := slices.Contains([]string{"Ack", "Settle", "Extend", "Capabilities", "EndpointSettings", "Lane", "SendLane", "Recall", "EndTransaction"}, method)
		assert.That(t, len(got) != 1 || !names || got[0] == inner, "%s: the call does not name the server: %q", method, got)
		assert.NoError(t, x.Close())
	}
}
