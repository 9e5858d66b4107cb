package metrics

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Requests count the completed requests, by name and status, and how
// long they took. Goroutines may share them.
type Requests struct {
	seconds *prometheus.HistogramVec
	total   *prometheus.CounterVec
	byRPC   map[string]*request // not changed

	httpSeconds *prometheus.HistogramVec
	httpTotal   *prometheus.CounterVec
}

// A request has the values that are looked up only once for each RPC.
type request struct {
	ok    prometheus.Counter
	timed bool // false for Telemetry, because its streams last as long as the clients

	once    sync.Once
	seconds prometheus.Observer // set by once, so that its series begin with the first request
}

// NewRequests returns the counts of a new server.
func NewRequests() *Requests {
	buckets := []float64{0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
	r := &Requests{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidegate_rpc_duration_seconds",
			Help:    "Duration of RPCs until the response. For ReceiveMessage it includes the wait for a message.",
			Buckets: buckets,
		}, []string{"rpc"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidegate_rpc_answers_total",
			Help: "Completed RPCs, by RocketMQ status name. For a failed call, grpc_ and the gRPC status name; OTHER for a status without a name.",
		}, []string{"rpc", "code"}),
		byRPC: map[string]*request{},
		httpSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidegate_http_duration_seconds",
			Help:    "Duration of HTTP requests until the response, except streams. For receiveMessages it includes the wait for a message.",
			Buckets: buckets,
		}, []string{"operation"}),
		httpTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidegate_http_answers_total",
			Help: "Completed HTTP requests, by the operation in openapi.yaml (other: none) and by status (cut: no response).",
		}, []string{"operation", "status"}),
	}
	add := func(op string) {
		r.byRPC[op] = &request{ok: r.total.WithLabelValues(op, rmqpb.Code_OK.String()), timed: op != requests.RPCTelemetry}
	}
	for _, m := range rmqpb.MessagingService_ServiceDesc.Methods {
		add(m.MethodName)
	}
	for _, m := range rmqpb.MessagingService_ServiceDesc.Streams {
		add(m.StreamName)
	}
	return r
}

// Observe counts one RPC that began at begin and ended with st or, if err is not nil, without a
// response.
func (r *Requests) Observe(op string, begin time.Time, st rmqpb.Code, err error) {
	q, known := r.byRPC[op]
	if !known {
		return
	}
	if q.timed {
		q.once.Do(func() { q.seconds = r.seconds.WithLabelValues(op) })
		q.seconds.Observe(time.Since(begin).Seconds())
	}
	if err == nil && st == rmqpb.Code_OK {
		q.ok.Inc()
		return
	}
	r.total.WithLabelValues(op, codeLabel(st, err)).Inc()
}

// ExpectHTTP counts an operation from 0 on before its first request: a rate counts
// from the value that was there before. Durations have 18 series for each operation, and begin
// with its first request.
func (r *Requests) ExpectHTTP(op string, status int) {
	r.httpTotal.WithLabelValues(op, strconv.Itoa(status))
}

// ObserveHTTP counts one HTTP request that began at begin. status is that of the response, 0
// without a response. stream is set if the response is a stream.
func (r *Requests) ObserveHTTP(op string, begin time.Time, status int, stream bool) {
	label := strconv.Itoa(status)
	if status == 0 {
		label = "cut"
	}
	r.httpTotal.WithLabelValues(op, label).Inc()
	if !stream { // it lasts as long as the client wants
		r.httpSeconds.WithLabelValues(op).Observe(time.Since(begin).Seconds())
	}
}

// codeLabel returns one of a fixed set of words: Intercept may return any number.
func codeLabel(st rmqpb.Code, err error) string {
	if err != nil {
		if c := status.Code(err); c <= codes.Unauthenticated {
			return "grpc_" + c.String()
		}
		return "OTHER"
	}
	if name, ok := rmqpb.Code_name[int32(st)]; ok {
		return name
	}
	return "OTHER"
}

// Stream is gRPC's interceptor that counts the streams; unary RPCs are counted where they are
// served.
func (r *Requests) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	begin := time.Now()
	var op string
	switch info.FullMethod {
	case rmqpb.MessagingService_ReceiveMessage_FullMethodName:
		op = requests.RPCReceive
	case rmqpb.MessagingService_Telemetry_FullMethodName:
		op = requests.RPCTelemetry
	default:
		return handler(srv, ss)
	}
	m := &meteredStream{ServerStream: ss, code: rmqpb.Code_OK}
	err := handler(srv, m)
	counted := err
	if _, ok := errors.AsType[*requests.End](err); ok {
		counted = nil // the last command has the reason
	}
	r.Observe(op, begin, m.code, counted)
	return err
}

// A meteredStream remembers the last status that is sent: a rejected Telemetry
// stream ends with one.
type meteredStream struct {
	grpc.ServerStream
	code rmqpb.Code
}

// SendMsg implements grpc.ServerStream.
func (m *meteredStream) SendMsg(v any) error {
	message := v
	if p, ok := v.(*requests.Placed); ok {
		message = p.Message
	}
	switch f := message.(type) {
	case *rmqpb.ReceiveMessageResponse:
		if st, ok := f.GetContent().(*rmqpb.ReceiveMessageResponse_Status); ok {
			m.code = st.Status.GetCode()
		}
	case *rmqpb.TelemetryCommand:
		m.code = f.GetStatus().GetCode()
	}
	return m.ServerStream.SendMsg(v)
}

// Describe implements prometheus.Collector.
func (r *Requests) Describe(out chan<- *prometheus.Desc) {
	for _, c := range r.collectors() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (r *Requests) Collect(out chan<- prometheus.Metric) {
	for _, c := range r.collectors() {
		c.Collect(out)
	}
}

func (r *Requests) collectors() []prometheus.Collector {
	return []prometheus.Collector{r.seconds, r.total, r.httpSeconds, r.httpTotal}
}

// Transit returns the metrics of the memory for requests and responses: one budget by the name of
// each use.
func Transit(budgets map[string]*admission.Budget) prometheus.Collector {
	return transitCollector(budgets)
}

type transitCollector map[string]*admission.Budget

var (
	useLabels           = []string{"use"} // "requests", "waiting_receives" or "streams"
	descTransitHeld     = prometheus.NewDesc("tidegate_transit_held_bytes", "Memory that requests and responses hold, by use.", useLabels, nil)
	descTransitLimit    = prometheus.NewDesc("tidegate_transit_limit_bytes", "Memory limit of requests and responses, by use.", useLabels, nil)
	descTransitRefusals = prometheus.NewDesc("tidegate_transit_refusals_total", "Requests rejected because the memory limit was reached, by use.", useLabels, nil)
	descConnsEnded      = prometheus.NewDesc("tidegate_ended_connections_total", "Connections closed by the broker, by reason: memory needed by others, or a slow client.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (c transitCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTransitHeld, descTransitLimit, descTransitRefusals, descConnsEnded} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c transitCollector) Collect(ch chan<- prometheus.Metric) {
	var ended, slow int64
	for use, b := range c {
		ch <- prometheus.MustNewConstMetric(descTransitHeld, prometheus.GaugeValue, float64(b.Held()), use)
		ch <- prometheus.MustNewConstMetric(descTransitLimit, prometheus.GaugeValue, float64(b.Limit()), use)
		ch <- prometheus.MustNewConstMetric(descTransitRefusals, prometheus.CounterValue, float64(b.Refused()), use)
		ended += b.Closed()
		slow += b.Slow()
	}
	ch <- prometheus.MustNewConstMetric(descConnsEnded, prometheus.CounterValue, float64(ended), "memory")
	ch <- prometheus.MustNewConstMetric(descConnsEnded, prometheus.CounterValue, float64(slow), "slow")
}
