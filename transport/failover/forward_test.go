package failover_test

import (
	"context"
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
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

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

	"EndpointConfigurer": reflect.TypeFor[transport.EndpointConfigurer](),
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
