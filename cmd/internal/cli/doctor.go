package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

func newDoctor(a *App) *cobra.Command {
	p := &Patient{}
	cmd := &cobra.Command{
		Use: "doctor", GroupID: toolGroup,
		Short: "Find the fault of a set-up: address, TLS, clock, credentials, topic, group",
		Long: `Tests a set-up as a client, step by step: the name of the server, a connection, TLS
or plain text, the protocol, the clocks, the credentials, a topic and a group.
Each line has the step, its result and the remedy. The command ends with the exit
code of the first failure.`,
		Example: `  tidegate doctor
  tidegate doctor --grpc proxy.example:8081 --topic orders --group billing`,
	}
	a.Leaf(cmd, nil, func(ctx context.Context, c *Call) error {
		if p.Topic == "" && (p.Group != "" || p.Send) {
			return usagef(cmd, "--group and --send need --topic")
		}
		return examine(ctx, c, p)
	})
	f := cmd.Flags()
	f.StringVar(&p.Topic, "topic", "", "also test this `topic`")
	f.StringVar(&p.Group, "group", "", "also test this consumer `group`; needs --topic")
	f.BoolVar(&p.Send, "send", false, "send a message to --topic")
	return cmd
}

// examine tries the steps and ends with the exit code of the first failure.
func examine(ctx context.Context, c *Call, p *Patient) error {
	var err error
	if p.Server, err = c.Server(); err != nil {
		return err
	}
	p.Command, p.Timeout, p.Bounded, p.Admin = c.Command.CommandPath(), c.Timeout, c.Bounded, c.Admin
	steps := p.Examine(ctx)
	if err := showSteps(c, steps); err != nil {
		return err
	}
	for _, s := range steps {
		if s.Err != nil {
			return commandStatus(exitCode(s.Err))
		}
	}
	return nil
}

func showSteps(c *Call, steps []DoctorStep) error {
	if c.JSON() {
		return output.Encode(c.Out, map[string]any{"steps": notNil(steps)})
	}
	for _, s := range steps {
		if _, err := fmt.Fprintf(c.Out, "%-8s %-14s %s\n", s.Result, s.Step, output.Safe(strings.ReplaceAll(strings.TrimSpace(s.What), "\n", "; "))); err != nil {
			return err
		}
		if s.Remedy != "" {
			fmt.Fprintf(c.Out, "%-8s %-14s %s\n", "", "remedy", s.Remedy)
		}
	}
	return nil
}

func newContextTest(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:   "test",
		Short: "Test a context: address, TLS, protocol, clock and credentials",
		Long: `Tests a context step by step, as 'tidegate doctor' tests a set-up:
the current context, or the one of the argument.`,
		Example: `  tidegate context test
  tidegate context test prod`,
	}, []string{"[CONTEXT]"}, func(ctx context.Context, c *Call) error {
		if len(c.Args) > 0 {
			c.of(c.Args[0])
		}
		return examine(ctx, c, &Patient{})
	})
}

// A DoctorStep is one test.
type DoctorStep struct {
	Step   string `json:"step"`
	Result string `json:"result"` // ok, failed or left out
	What   string `json:"what"`   // the test and its result
	Remedy string `json:"remedy,omitempty"`
	Err    error  `json:"-"` // of a failed step, with its class
}

// A Patient is a server to examine.
type Patient struct {
	Server       Server
	Topic, Group string // empty means that they are not tested
	Send         bool   // send a message to Topic

	Command string // for errors about flags: tidegate doctor
	Timeout time.Duration
	Bounded func(context.Context) (context.Context, context.CancelFunc) // ctx with the timeout
	Admin   func(context.Context) (*admin.Client, error)                // the client of the HTTP API; others close it

	steps []DoctorStep
}

// Examine tests the set-up as a client, and returns the steps.
func (d *Patient) Examine(ctx context.Context) []DoctorStep {
	if f := d.Server.support(); f != nil {
		f.Examine(ctx, d)
		return d.steps
	}
	d.grpc(ctx, d.Server)
	switch {
	case d.Server.WithoutHTTP() || d.Server.HTTP == "":
	case d.Server.Elsewhere():
		d.steps = append(d.steps, DoctorStep{
			Step: "http", Result: "left out", Remedy: "give --http URL to test it too",
			What: fmt.Sprintf("--grpc may name another server than the HTTP address %s", d.Server.HTTP),
		})
	default:
		d.http(ctx, d.Server)
	}
	return d.steps
}

// OK adds a step that succeeded.
func (d *Patient) OK(step, format string, args ...any) {
	d.steps = append(d.steps, DoctorStep{Step: step, Result: "ok", What: fmt.Sprintf(format, args...)})
}

// Failed adds a step that failed, and returns false.
func (d *Patient) Failed(step string, err error, remedy string) bool {
	d.steps = append(d.steps, DoctorStep{Step: step, Result: "failed", What: text(err), Remedy: remedy, Err: err})
	return false
}

// grpc tests the way to the messages, until the first step that fails.
func (d *Patient) grpc(ctx context.Context, s Server) {
	if s.GRPC == "" {
		return
	}
	address, _, _ := strings.Cut(s.GRPC, ";")
	if d.Reach(ctx, "grpc", address, "a RocketMQ proxy listens on 8081, tidegate on 8081 and 8082") && d.spoken(ctx, s, address) {
		d.protocol(ctx, s)
	}
}

// Reach resolves and dials an address. It reports whether the port accepts connections. ports names
// those on which such servers listen.
func (d *Patient) Reach(ctx context.Context, name, address, ports string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return d.Failed(name+" address", UsageError{Err: err, Command: d.Command}, "give HOST:PORT")
	}
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	ips, err := net.DefaultResolver.LookupHost(bounded, host)
	if err != nil {
		return d.Failed(name+" name", Classed(err, tidegate.ErrUnavailable), "check the name for a typing error, and the DNS of this machine")
	}
	d.OK(name+" name", "%s is %s", host, strings.Join(ips, ", "))
	conn, err := (&net.Dialer{}).DialContext(bounded, "tcp", address)
	if err != nil {
		remedy := "is the server running, and is this its port? " + ports
		if bounded.Err() != nil || strings.Contains(err.Error(), "timeout") {
			remedy = "no response: a firewall between here and " + host + " may swallow the packets"
		}
		return d.Failed(name+" connect", Classed(err, tidegate.ErrUnavailable), remedy)
	}
	_ = conn.Close() // the connection was the test
	d.OK(name+" connect", "port %s accepts connections", port)
	return true
}

// Classed is an error with a class for the exit code.
func Classed(err, class error) error { return &classedError{err, class} }

type classedError struct {
	error
	class error
}

func (e *classedError) Unwrap() []error { return []error{e.error, e.class} }

// The first bytes of the responses of servers to a client of another protocol.
const (
	tlsAlert  = 0x15
	tlsRecord = 0x16
)

// spoken tests whether the port speaks HTTP/2, with TLS or without, as the flags have it.
func (d *Patient) spoken(ctx context.Context, s Server, address string) bool {
	bounded, cancel := context.WithTimeout(ctx, min(d.Timeout, 3*time.Second))
	defer cancel()
	hasTLS, err := SpeaksTLS(bounded, address)
	switch {
	case s.TLS && !hasTLS:
		if err == nil {
			err = errors.New("the port does not speak TLS")
		}
		return d.Failed("grpc tls", Classed(err, tidegate.ErrInvalid), "remove --tls, or use the port with TLS")
	case s.TLS:
		return d.Certificate(bounded, "grpc tls", address, "h2")
	}
	first, err := FirstBytes(bounded, address, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	switch {
	case len(first) > 3 && first[3] == 0x04: // the frame SETTINGS
		d.OK("grpc protocol", "the port speaks HTTP/2 in plain text")
		return true
	case strings.HasPrefix(string(first), "HTTP/1"):
		return d.Failed("grpc protocol", fmt.Errorf("the port speaks HTTP/1: %w", tidegate.ErrInvalid), "this is an HTTP port or an HTTP proxy; use the gRPC port, for tidegate 8081")
	case hasTLS, len(first) > 0 && (first[0] == tlsAlert || first[0] == tlsRecord):
		return d.Failed("grpc protocol", fmt.Errorf("the port speaks TLS, and the connection is plain text: %w", tidegate.ErrInvalid), "add --tls, and --cacert FILE or --tls-skip-verify for a certificate of your own")
	}
	if err == nil {
		err = fmt.Errorf("%d unknown bytes", len(first))
	}
	return d.Failed("grpc protocol", fmt.Errorf("the port does not speak gRPC (%w): %w", err, tidegate.ErrInvalid),
		"ports 9876 and 10911 of RocketMQ speak its older protocol: start the proxy (mqproxy) and use its gRPC port, by default 8081")
}

// Certificate tests the TLS handshake with the settings of the context, in a step. It reports
// whether it succeeded.
func (d *Patient) Certificate(ctx context.Context, step, address string, protocols ...string) bool {
	config, err := d.Server.TLSConfig()
	if err != nil {
		return d.Failed(step, UsageError{Err: err, Command: d.Command}, "correct the files of the certificates")
	}
	config.NextProtos = protocols
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return d.Failed(step, Classed(err, tidegate.ErrInvalid), "give the certificates to trust with --cacert, or accept any with --tls-skip-verify; check the host name")
	}
	state := conn.(*tls.Conn).ConnectionState() //nolint:forcetypeassert // tls.Dialer documents the type
	_ = conn.Close()                            // the handshake was the test
	left := time.Until(state.PeerCertificates[0].NotAfter)
	d.OK(step, "certificate of %s, valid for %s", output.Safe(state.PeerCertificates[0].Subject.String()), output.Duration(left))
	return true
}

// SpeaksTLS reports whether a port speaks TLS.
func SpeaksTLS(ctx context.Context, address string) (bool, error) {
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", address) //nolint:gosec // only the protocol is tested
	if err == nil {
		return true, conn.Close()
	}
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
		return false, nil
	}
	return strings.Contains(err.Error(), "remote error: tls"), err
}

// FirstBytes sends a text and returns the first bytes of the response.
func FirstBytes(ctx context.Context, address, text string) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the response is complete
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return nil, err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	return answer[:n], err
}

// protocol tests the requests of a producer and a consumer.
func (d *Patient) protocol(ctx context.Context, s Server) {
	t, err := s.Transport(ctx)
	if err != nil {
		d.Failed("credentials", UsageError{Err: err, Command: d.Command}, "correct the context, or the flags")
		return
	}
	defer func() { _ = t.Close() }() // only the steps count
	bounded, cancel := d.Bounded(ctx)
	err = t.Ping(bounded, slices.DeleteFunc([]string{d.Topic}, func(topic string) bool { return topic == "" })...)
	cancel()
	if err != nil {
		d.Failed("route", err, d.routeRemedy(err))
		return
	}
	who := "no access key"
	if s.Key != "" {
		who = "the access key " + s.Key
	}
	d.OK("route", "the server responds with %s", who)
	if d.Topic == "" {
		d.advertised(ctx, t)
		return
	}
	d.lane(ctx, t)
}

// create returns the remedy for a topic or group that does not exist. RocketMQ has its own command.
func (d *Patient) create(tidegate, rocketMQ string) string {
	rocketMQ = "mqadmin " + rocketMQ + " -c DefaultCluster -n NAMESERVER"
	if d.Server.Kind == connectionRocketMQ {
		return "create it: " + rocketMQ
	}
	return "create it: tidegate " + tidegate + "; on RocketMQ " + rocketMQ
}

func (d *Patient) routeRemedy(err error) string {
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound):
		return d.create(output.Command("topic create", d.Topic), "updateTopic -t "+output.Quote(d.Topic))
	case errors.Is(err, tidegate.ErrUnauthorized):
		return "check the access key and its secret; signatures also need clocks that agree within minutes"
	case errors.Is(err, tidegate.ErrForbidden):
		return "give the key a rule for the topic: send, receive or observe"
	}
	return "the port responds, but not as a RocketMQ 5 proxy or a tidegate broker"
}

// dialed connects to the addresses of a topic's route, in a step. It reports whether all accept
// connections.
func (d *Patient) dialed(ctx context.Context, step, topic, endpoint string) bool {
	for _, address := range strings.FieldsFunc(endpoint, func(r rune) bool { return r == ';' || r == ',' }) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return d.Failed(step, fmt.Errorf("the route of %s names the server %s: %w: %w", output.Safe(topic), address, err, tidegate.ErrUnavailable),
				"the server advertises an address that this machine cannot reach: set advertise of tidegate, or the proxy's address on RocketMQ (grpcServerPort, and the host name of the machine)")
		}
		_ = conn.Close() // the connection was the test
	}
	return true
}

// advertised tests the address that the server advertises, with the route of any topic. Only the
// HTTP API names topics; without it, and without a topic, the step is left out.
func (d *Patient) advertised(ctx context.Context, t Transport) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	leftOut := func(why string) {
		d.steps = append(d.steps, DoctorStep{Step: "advertised", Result: "left out", What: why, Remedy: "give --topic NAME to test the address that the server advertises"})
	}
	if d.Server.WithoutHTTP() || d.Server.HTTP == "" || d.Server.Elsewhere() {
		leftOut("no topic is known")
		return
	}
	var topics []status.Topic
	client, err := d.Admin(bounded)
	if err == nil {
		topics, _, err = client.TopicsPage(bounded, "", "", 1)
	}
	if err != nil || len(topics) == 0 {
		leftOut("no topic is known")
		return
	}
	lane, err := t.Lane(bounded, transport.LaneRequest{Topic: topics[0].Name})
	if err != nil {
		leftOut(fmt.Sprintf("the route of %s is not known: %s", output.Safe(topics[0].Name), text(err)))
		return
	}
	if d.dialed(bounded, "advertised", topics[0].Name, lane.Endpoint) {
		d.OK("advertised", "messages of %s go to %s", output.Safe(topics[0].Name), lane.Endpoint)
	}
}

// lane tests the server that the topic's route names, its type by a send, and the group.
func (d *Patient) lane(ctx context.Context, t Transport) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	lane, err := t.Lane(bounded, transport.LaneRequest{Topic: d.Topic})
	if err != nil {
		d.Failed("topic", err, d.routeRemedy(err))
		return
	}
	if !d.dialed(bounded, "topic", d.Topic, lane.Endpoint) {
		return
	}
	d.OK("topic", "messages of %s go to %s", output.Safe(d.Topic), lane.Endpoint)
	if d.Send {
		d.Probe(ctx, t, 0, func(err error) string {
			if errors.Is(err, tidegate.ErrInvalid) {
				return "send a message of the topic's type: FIFO needs a message group, DELAY a time, TRANSACTION a transaction; a test message is NORMAL"
			}
			return "read the reason; 'tidegate limits show' has the limits of a throttle"
		})
	}
	if d.Group == "" {
		return
	}
	settings, err := t.ConsumerSettings(bounded, d.Group, d.Topic)
	if err != nil {
		d.Failed("group", err, d.create(output.Command("group create", d.Group), "updateSubGroup -g "+output.Quote(d.Group)))
		return
	}
	group, err := d.group(bounded)
	if err != nil {
		d.Failed("group", err, fmt.Sprintf("check the name ('tidegate group list'), or create it: %s; the first receive creates it too", output.Command("tidegate group create", d.Group)))
		return
	}
	order := map[bool]string{true: "in the order of message groups", false: "without order"}[settings.FIFO]
	attempts := ""
	if settings.MaxAttempts > 0 {
		attempts = fmt.Sprintf(", with %d attempts for a message", settings.MaxAttempts)
	}
	if group == nil {
		attempts += "; a group that does not exist yet has the defaults"
	}
	d.OK("group", "%s receives %s%s", output.Safe(d.Group), order, attempts)
	if group != nil {
		d.consumes(group)
	}
}

// consumes adds the sentence about why the group does not consume the topic.
func (d *Patient) consumes(g *status.Group) {
	for i := range g.Topics {
		if g.Topics[i].Topic != d.Topic {
			continue
		}
		if text, next := why(g.Name, &g.Topics[i], time.Now()); text != (output.Text{}) {
			d.OK("consumes", "%s", text)
			d.steps[len(d.steps)-1].Remedy = next
		}
		return
	}
	d.OK("consumes", "the group has not received from %s yet: no consumer of it has run", output.Safe(d.Topic))
}

// group returns the group. The error matches tidegate.ErrNotFound if the broker has none. Without a
// response of the server's HTTP API the group is nil.
func (d *Patient) group(ctx context.Context) (*status.Group, error) {
	if d.Server.WithoutHTTP() || d.Server.HTTP == "" || d.Server.Elsewhere() {
		return nil, nil //nolint:nilnil // it is not known
	}
	client, err := d.Admin(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the step http reports it
	}
	g, err := client.Group(ctx, d.Group)
	switch {
	case errors.Is(err, tidegate.ErrNotFound):
		return nil, err
	case err != nil:
		return nil, nil //nolint:nilerr,nilnil // as above
	}
	return &g, nil
}

// Probe sends a message to the topic, in a step. It reports whether the server accepted it. remedy
// returns the remedy for an error of the send.
func (d *Patient) Probe(ctx context.Context, t Transport, maxAttempts int, remedy func(error) string) bool {
	p, err := producer.New(t, producer.Options{MaxAttempts: maxAttempts})
	if err != nil {
		return d.Failed("send", err, "report this error")
	}
	defer func() { _ = p.Close() }() // only the receipt counts
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	receipt, err := p.Send(bounded, &tidegate.Message{Topic: d.Topic, Body: []byte("a test of tidegate doctor"), Tag: "tidegate-doctor"})
	if err != nil {
		return d.Failed("send", err, remedy(err))
	}
	d.OK("send", "message %s was accepted", receipt.MessageID)
	return true
}

// http tests the HTTP API and the clocks.
func (d *Patient) http(ctx context.Context, s Server) {
	client, err := d.Admin(ctx)
	if err != nil {
		d.Failed("http", err, "correct the context, or the flags")
		return
	}
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	if err := client.Healthy(bounded); err != nil {
		d.Failed("http", err, httpRemedy(err, s.HTTP))
		return
	}
	d.OK("http", "%s responds", s.HTTP)
	d.clock(bounded, s)
	d.trustedClock(bounded, client)
	if err := client.Ready(bounded); err != nil {
		d.Failed("ready", err, "the log of the broker has the reason")
		return
	}
	d.OK("ready", "the broker accepts messages")
}

// httpRemedy returns the remedy for a failed request to an address for HTTP.
func httpRemedy(err error, address string) string {
	text := err.Error()
	_, rest, _ := strings.Cut(address, "://")
	switch {
	case strings.Contains(text, "unknown authority"):
		return "give the certificates to trust with --cacert FILE, or accept any with --tls-skip-verify"
	case strings.Contains(text, "give its address as an https URL"):
		return "the port expects TLS: give --http https://" + rest
	case strings.Contains(text, "HTTP response to HTTPS client"):
		return "the port speaks plain text: give --http http://" + rest
	}
	return "tidegate serves HTTP on 8082; give its URL with --http"
}

// maxSkew is the difference of the clocks from which a warning is due: a broker accepts signatures
// of at least some minutes.
const maxSkew = time.Minute

// clock compares the clocks.
func (d *Patient) clock(ctx context.Context, s Server) {
	date, err := s.Date(ctx)
	if err != nil {
		return
	}
	skew := time.Since(date)
	if skew.Abs() > maxSkew {
		d.Failed("clock", fmt.Errorf("the clock of the server differs by %s", output.Duration(skew.Abs())), "synchronise the clocks (NTP): signatures are rejected when they differ by minutes")
		return
	}
	d.OK("clock", "the clocks agree within %s", output.Duration(max(skew.Abs(), time.Second)))
}

// trustedClock reports a broker that does not trust its own wall clock. A key that may not observe
// the broker leaves the step out.
func (d *Patient) trustedClock(ctx context.Context, client *admin.Client) {
	o, err := client.Overview(ctx)
	if err != nil || o.Clock == nil {
		return
	}
	d.Failed("clock of the broker", fmt.Errorf("%s: %w", distrust(o.Clock, o.Now), tidegate.ErrUnavailable),
		"if the clock is wrong, synchronise it (NTP) before that time; if it is right, wait")
}

// distrust describes a wall clock that the broker does not trust.
func distrust(c *status.Clock, now time.Time) string {
	ahead := time.Duration(c.AheadMS) * time.Millisecond
	direction := "ahead"
	if ahead < 0 {
		direction = "back"
	}
	cause := fmt.Sprintf("the wall clock of the broker was set %s by %s", direction, output.Duration(ahead.Abs()))
	if c.AtStart {
		cause = fmt.Sprintf("the wall clock of the broker differs by %s from the newest time in its data directory", output.Duration(ahead.Abs()))
	}
	return fmt.Sprintf("%s; its time is accepted in %s. Until then no message is removed by age: "+
		"retention would remove %d messages, and %d messages are older than the expiry-delay and are neither delivered nor removed",
		cause, output.Duration(max(c.AcceptedAt.Sub(now), 0)), c.Kept, c.Postponed)
}
