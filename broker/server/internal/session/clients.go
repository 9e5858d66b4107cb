// Package session has the state of the clients that use gRPC: the time of the last request, the
// settings that the client sent, its Telemetry streams, its waiting receives, and the topics that
// it publishes. All of this is bounded, and removed with the client.
//
// Liveness: a waiting receive is woken by the engine, and ended by its own context, by the
// termination of its client, by new access rules and by the end of the server. A Telemetry stream
// is woken by each request for its settings and by each check of a transaction. One timer removes
// silent clients: it fires once in 30 seconds while there are clients, looks at each of them once,
// and is not set while there are none. No other step follows but those of a request.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// A Client is one client, by its ID. Goroutines may share it.
type Client struct {
	id      string
	origin  string                  // that its settings count for
	seen    atomic.Int64            // the time of the last request, in ns since 1970
	profile atomic.Pointer[Profile] // nil until its settings are known
	sent    atomic.Uint64           // the digest of the settings that it got last; 0 if none
	renews  atomic.Bool             // it received with auto_renew, which only push consumers do

	since     time.Time
	holder    *engine.Holder
	address   atomic.Pointer[string]                 // of its connection; nil if it is not known
	reception atomic.Pointer[reception]              // its last receive; nil before the first
	http      atomic.Bool                            // it receives over HTTP
	lite      atomic.Pointer[transport.LiteConsumer] // as which it has subscribed to lite topics; nil if it has not

	// guarded by Clients.mu
	streams       map[*Stream]struct{}
	polls         map[*poll]struct{}
	topics        []string   // that it is in Clients.publishers for
	served        bool       // a receive of it succeeded, or it opened a stream, and it did not terminate since: only then is it remembered
	settingsBytes int        // its part of Clients.settingsBytes
	refused       *rejection // see Clients.Refuse; nil if its settings were not rejected
}

// IsPush reports whether the client passes messages to handlers. After a restart of the server the
// settings of a client can be missing for minutes (RocketMQ's Go client: 5); until then its
// receives show this.
func (c *Client) IsPush() bool {
	if p := c.profile.Load(); p != nil {
		return p.IsPush()
	}
	return c.renews.Load() || c.Lite() != nil
}

// Lite returns the consumer as which the client has subscribed to lite topics, or nil.
func (c *Client) Lite() *transport.LiteConsumer { return c.lite.Load() }

// Profile returns the settings that the client sent, or nil before the first.
func (c *Client) Profile() *Profile { return c.profile.Load() }

// AutoRenews notes that the client received with auto_renew.
func (c *Client) AutoRenews() { c.renews.Store(true) }

// Sends records the settings that the server is sending to the client.
func (c *Client) Sends(s *rmqpb.Settings) { c.sent.Store(digest(s)) }

// Sent reports whether these settings are the last that the server sent to the client.
func (c *Client) Sent(s *rmqpb.Settings) bool { return c.sent.Load() == digest(s) }

// Holder counts the deliveries in flight of the client.
func (c *Client) Holder() *engine.Holder { return c.holder }

// A reception has the group, the topic and the filter of a receive.
type reception struct {
	group, topic string
	filter       tidegate.Filter // its expression is cut
}

// Receives notes the group, the topic and the filter of a receive.
func (c *Client) Receives(group, topic string, filter tidegate.Filter) {
	filter.Expression = filter.Expression[:min(len(filter.Expression), maxFilter)]
	if last := c.reception.Load(); last == nil || last.group != group || last.topic != topic || last.filter != filter {
		filter.Expression = strings.Clone(filter.Expression) // all may be parts of a request's memory
		c.reception.Store(&reception{strings.Clone(group), strings.Clone(topic), filter})
	}
}

// OverHTTP notes that the client receives over HTTP.
func (c *Client) OverHTTP() { c.http.Store(true) }

// At notes the address of the client's connection.
func (c *Client) At(address string) {
	if last := c.address.Load(); last == nil || *last != address {
		c.address.Store(&address)
	}
}

// group returns the consumer group of the client, empty if it has none or it is not known.
func (c *Client) group() string {
	if p := c.Profile(); p != nil {
		return p.Group
	}
	if at := c.reception.Load(); at != nil {
		return at.group
	}
	return ""
}

// lastSeenLocked returns the time of the last request of the client, or of a later heartbeat on the
// connection of a stream that shares heartbeats. Clients.mu is held.
func (c *Client) lastSeenLocked() time.Time {
	at := c.seen.Load()
	for t := range c.streams {
		at = max(at, t.beats.LastBeat())
	}
	return time.Unix(0, at)
}

// kind returns the kind of the client, see status.Client.
func (c *Client) kind() string {
	switch p := c.Profile(); {
	case p != nil:
		return p.kind()
	case c.http.Load():
		return "http"
	case c.renews.Load():
		return "push_consumer"
	}
	return "consumer"
}

const (
	// Timeout is how long a client without a Telemetry stream and
	// without a word is remembered (RocketMQ's proxy: 120 s).
	Timeout = 2 * time.Minute

	// expiryInterval is how often expired clients are removed.
	expiryInterval = 30 * time.Second

	// MaxClients bounds the clients remembered at once.
	MaxClients = 100_000

	// MaxSettingsBytes is a limit of the stored settings of all clients that suffices for any use:
	// 2.6 KiB for each of MaxClients. The settings of a client with one topic take a fifth of that.
	MaxSettingsBytes = 256 << 20
)

// Why a parked receive ends before its time.
var (
	ErrTerminated = errors.New("the client terminated")
	ErrDraining   = errors.New("the server is shutting down")
	ErrNewRules   = errors.New("the access rules changed")
)

// EndedHere reports whether a parked receive was ended by the server, so that
// its response is empty.
func EndedHere(parked context.Context) bool {
	why := context.Cause(parked)
	return errors.Is(why, ErrTerminated) || errors.Is(why, ErrDraining) || errors.Is(why, ErrNewRules)
}

// A poll is one parked receive.
type poll struct{ cancel context.CancelCauseFunc }

// An Engine has the deliveries of the clients.
type Engine interface {
	// Forget is called, without a lock, with the ID of each client that is removed.
	Forget(id string)
}

// Clients are the connected clients: those with a recent request. Goroutines may share
// the value; after Close no timer runs.
//
// Clients count for their origin, which is an access key and an address. The settings of one origin
// can take as many bytes as they leave free for others, so one origin alone gets half of the limit.
// When there is no room, the clients of the largest origin make it that are gone.
type Clients struct {
	engine Engine

	mu       sync.Mutex
	byID     map[string]*Client // guarded by mu
	timer    *time.Timer        // guarded by mu; runs while there are sessions
	streams  uint64             // guarded by mu: how many were attached so far
	draining bool               // guarded by mu: no poll may park any more
	closed   bool               // guarded by mu

	publishers map[string]map[*Client]string // guarded by mu: of each topic, with the namespace that they name it in

	evicted time.Time // guarded by mu: when clients were last evicted

	settingsBytes int            // guarded by mu: size of the stored settings of all clients, in bytes
	originBytes   map[string]int // guarded by mu: those of each origin that has any
	settingsLimit int            // of settingsBytes

	expiring sync.WaitGroup // the timer, and its function
}

// New returns an empty set of clients, whose settings may take so many bytes together.
func New(settingsLimit int, e Engine) *Clients {
	return &Clients{
		engine: e, byID: map[string]*Client{}, publishers: map[string]map[*Client]string{},
		originBytes: map[string]int{}, settingsLimit: settingsLimit,
	}
}

// Get returns the client's session, or nil, for a request of the client. It counts as a heartbeat.
func (r *Clients) Get(id string) *Client {
	c := r.Find(id)
	if c != nil {
		c.seen.Store(time.Now().UnixNano())
	}
	return c
}

// Find returns the client's session, or nil, for an action of the server.
func (r *Clients) Find(id string) *Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// IsPush reports whether the client is known to be a push consumer.
func (r *Clients) IsPush(id string) bool {
	c := r.Get(id)
	return c != nil && c.IsPush()
}

// Suspends reports whether suspend in a ChangeInvisibleDuration of the client ends the delivery: it is
// one of RocketMQ's consumers of lite topics. tidegate's clients extend their deliveries with it.
func (r *Clients) Suspends(id string) bool {
	c := r.Get(id)
	return c != nil && c.Profile().IsLite() && !c.Profile().Packed
}

// ensureLocked returns the session of a client. It creates one if there is none; only then it calls
// origin, which must not block.
func (r *Clients) ensureLocked(id string, origin func() string) (*Client, error) {
	c := r.byID[id]
	if c == nil {
		if len(r.byID) >= MaxClients {
			r.evictLocked(time.Now(), func(*Client) int { return 1 })
		}
		if len(r.byID) >= MaxClients {
			return nil, refusal.New(tidegate.CodeTooManyRequests, "clients",
				"%v: %d clients are connected, which is the limit; retry when others have disconnected", tidegate.ErrThrottled, len(r.byID))
		}
		c = &Client{id: id, origin: origin(), since: time.Now(), holder: engine.NewHolder(id)}
		r.byID[id] = c
		r.armLocked()
	}
	c.seen.Store(time.Now().UnixNano())
	return c, nil
}

// evictInterval is how often clients are evicted at most: all of them are looked at.
const evictInterval = time.Second

// evictLocked makes room for other clients: of the origin whose clients without streams and
// receives weigh most it forgets those that were silent longest, half of the weight. The engine
// keeps the deliveries of these.
func (r *Clients) evictLocked(now time.Time, weight func(c *Client) int) {
	if now.Sub(r.evicted) < evictInterval {
		return
	}
	r.evicted = now
	idle, sum, most := map[string][]*Client{}, map[string]int{}, ""
	for _, c := range r.byID {
		if w := weight(c); w > 0 && len(c.streams) == 0 && len(c.polls) == 0 {
			idle[c.origin] = append(idle[c.origin], c)
			if sum[c.origin] += w; sum[c.origin] > sum[most] {
				most = c.origin
			}
		}
	}
	slices.SortFunc(idle[most], func(a, b *Client) int { return cmp.Compare(a.seen.Load(), b.seen.Load()) })
	left := (sum[most] + 1) / 2
	for _, c := range idle[most] {
		if left <= 0 {
			return
		}
		left -= weight(c)
		delete(r.byID, c.id)
		r.retractLocked(c)
	}
}

// Attach adds a Telemetry stream to the session of a client of an origin, and sets its profile and
// the topics that it publishes. It returns an error with 42900 if there is no room for these.
func (r *Clients) Attach(id string, origin func() string, t *Stream, p *Profile, publishes []*rmqpb.Resource) (*Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.ensureLocked(id, origin)
	if err != nil {
		return nil, err
	}
	bytes := len(p.settings) + len(publishes)*publicationSize
	if !r.fitsLocked(c, bytes) {
		r.evictLocked(time.Now(), func(o *Client) int {
			if o == c {
				return 0
			}
			return o.settingsBytes
		})
	}
	if !r.fitsLocked(c, bytes) {
		r.dropLocked(c)
		return nil, refusal.New(tidegate.CodeTooManyRequests, "clients",
			"%v: the settings of this client have %d bytes; those of %d clients have %d bytes, %d of them from the key and address of this client, and the limit of all is %d; "+
				"retry when others have disconnected", tidegate.ErrThrottled, bytes, len(r.byID), r.settingsBytes, r.originBytes[c.origin], r.settingsLimit)
	}
	if c.streams == nil {
		c.streams = map[*Stream]struct{}{}
	}
	if t.number == 0 {
		r.streams++
		t.number = r.streams
	}
	_, again := c.streams[t]
	c.streams[t] = struct{}{}
	c.refused = nil
	// The timer of RocketMQ's Go client can send settings after the termination.
	c.served = c.served || !again || t.shares
	c.profile.Store(p)
	r.retractLocked(c)
	r.addBytesLocked(c, len(p.settings))
	for _, topic := range publishes {
		r.publishLocked(c, topic)
	}
	if of := c.Lite(); of != nil && c.latestLocked() == t {
		t.serveLite(of)
	}
	return c, nil
}

// Subscribes notes that a client has subscribed to lite topics. Its latest stream reports those that
// it has no more.
func (r *Clients) Subscribes(id string, of transport.LiteConsumer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.byID[id]
	if c == nil {
		return // it sends its settings later, and subscribes again
	}
	c.seen.Store(time.Now().UnixNano())
	if last := c.Lite(); last == nil || *last != of {
		c.lite.Store(&of)
	}
	if t := c.latestLocked(); t != nil {
		t.serveLite(c.Lite())
	}
}

// fitsLocked reports whether the settings of a client may have so many bytes instead of those that
// it has: its origin leaves as much free as it uses.
func (r *Clients) fitsLocked(c *Client, bytes int) bool {
	more := bytes - c.settingsBytes
	return more <= 0 || r.originBytes[c.origin]+more <= r.settingsLimit-r.settingsBytes-more
}

// goneLocked reports whether the client has terminated and begun neither a stream nor a receive
// since. Its stream can remain: RocketMQ's Go client closes it with the process. Settings in it do
// not count, unless it shares heartbeats: then the server asks a client that lives on for them.
// Clients.mu is held.
func (c *Client) goneLocked() bool { return !c.served && len(c.polls) == 0 }

// dropLocked forgets a client that is gone and has no stream.
func (r *Clients) dropLocked(c *Client) {
	if c.goneLocked() && len(c.streams) == 0 && c.refused == nil && r.byID[c.id] == c {
		delete(r.byID, c.id)
		r.retractLocked(c)
	}
}

// Detach removes a Telemetry stream. The settings of a client that did not terminate stay for a
// while, because it can open another stream.
func (r *Clients) Detach(id string, t *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		delete(c.streams, t)
		c.seen.Store(time.Now().UnixNano())
		r.dropLocked(c)
	}
}

// Park registers a receive of the client. The context that it returns ends
// with ctx, or when the client or the server ends. unpark must be called, with whether the receive
// succeeded: a client that did nothing but fail is not remembered.
func (r *Clients) Park(ctx context.Context, id string, origin func() string) (parked context.Context, c *Client, unpark func(served bool), err error) {
	p := &poll{}
	parked, p.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, err = r.ensureLocked(id, origin); err == nil && c.refused != nil && c.refused.unserved {
		err = c.refused.why
	}
	if err != nil {
		p.cancel(nil)
		return nil, nil, nil, err
	}
	if r.draining {
		p.cancel(ErrDraining)
	}
	if c.polls == nil {
		c.polls = map[*poll]struct{}{}
	}
	c.polls[p] = struct{}{}
	return parked, c, func(served bool) {
		p.cancel(nil)
		r.mu.Lock()
		delete(c.polls, p)
		c.served = c.served || served && !errors.Is(context.Cause(parked), ErrTerminated)
		r.dropLocked(c)
		r.mu.Unlock()
		c.seen.Store(time.Now().UnixNano())
	}, nil
}

// Terminate removes the settings of the client, and ends its waiting receives and its watches at
// once. A stream that shares heartbeats asks for the settings, because the client may live on: its
// termination can arrive late, after the beginning of the stream.
func (r *Clients) Terminate(id string) {
	var polls []*poll
	var streams []*Stream
	r.mu.Lock()
	if c := r.byID[id]; c != nil {
		polls, streams = r.endLocked(c)
		c.refused = nil
		if len(c.streams) == 0 {
			delete(r.byID, id)
		}
	}
	r.mu.Unlock()
	wake(polls, streams)
	for _, t := range streams {
		if t.shares {
			t.resend() // a client that lives on sends no heartbeat that would report the loss
		}
	}
	r.engine.Forget(id)
}

// A rejection is the reason, with a code, for which the settings of a client were rejected.
type rejection struct {
	why      error
	at       time.Time
	unserved bool // the broker does not serve the type of the client
}

// Refuse notes for Reason that the settings of a client were rejected. If the broker does not serve
// the type of the client, its waiting receives end, and the next ones fail with why, until the
// client sends other settings, terminates, or is silent for Timeout.
func (r *Clients) Refuse(id string, origin func() string, why error, unserved bool) {
	var polls []*poll
	var streams []*Stream
	r.mu.Lock()
	if c, err := r.ensureLocked(id, origin); err == nil { // else its receives are rejected too
		if unserved {
			polls, streams = r.endLocked(c)
		}
		if unserved || c.refused == nil || !c.refused.unserved {
			c.refused = &rejection{why, time.Now(), unserved}
		}
	}
	r.mu.Unlock()
	wake(polls, streams)
}

// reasonTime is how long Reason returns the reason of a rejection.
const reasonTime = 30 * time.Second

// Reason returns why the settings of a client were rejected within the last 30 s, or why the broker
// does not serve its type. Otherwise it returns nil.
func (r *Clients) Reason(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil && c.refused != nil && (c.refused.unserved || time.Since(c.refused.at) < reasonTime) {
		return c.refused.why
	}
	return nil
}

// endLocked forgets the settings of a client. It returns what the client waits with, for wake.
func (r *Clients) endLocked(c *Client) (polls []*poll, streams []*Stream) {
	c.profile.Store(nil)
	r.retractLocked(c)
	c.lite.Store(nil)
	c.served = false // without another request, its last stream or receive ends it
	return slices.Collect(maps.Keys(c.polls)), slices.Collect(maps.Keys(c.streams))
}

// wake ends the receives and the watches of a client that terminated.
func wake(polls []*poll, streams []*Stream) {
	for _, p := range polls {
		p.cancel(ErrTerminated)
	}
	for _, t := range streams {
		t.WakeWatches()
	}
}

// ResendGroup makes the Telemetry streams of a group's consumers send settings
// again, those of all consumers for "".
func (r *Clients) ResendGroup(group string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.byID {
		if p := c.profile.Load(); p != nil && p.Group != "" && (group == "" || p.Group == group) {
			c.resendLocked()
		}
	}
}

// Resend makes the client's Telemetry streams send settings again.
func (r *Clients) Resend(c *Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.resendLocked()
}

func (c *Client) resendLocked() {
	for t := range c.streams {
		t.resend()
	}
}

// Drain ends every parked receive, and every one that comes.
func (r *Clients) Drain() {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	r.EndPolls(ErrDraining)
}

// EndPolls ends every parked receive, with why as its context's cause.
func (r *Clients) EndPolls(why error) {
	r.mu.Lock()
	var polls []*poll
	for _, c := range r.byID {
		for p := range c.polls {
			polls = append(polls, p)
		}
	}
	r.mu.Unlock()
	for _, p := range polls {
		p.cancel(why)
	}
}

// Close stops the timer and returns when nothing of it runs.
func (r *Clients) Close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil && r.timer.Stop() {
		r.expiring.Done()
	}
	r.timer = nil
	r.mu.Unlock()
	r.expiring.Wait()
}

func (r *Clients) armLocked() {
	if r.timer != nil || r.closed {
		return
	}
	r.expiring.Add(1)
	r.timer = time.AfterFunc(expiryInterval, func() {
		defer r.expiring.Done()
		r.expire(time.Now())
	})
}

// expire removes the clients that sent nothing for Timeout.
func (r *Clients) expire(now time.Time) {
	var gone []string
	r.mu.Lock()
	for id, c := range r.byID {
		if len(c.streams) == 0 && len(c.polls) == 0 && now.UnixNano()-c.seen.Load() >= int64(Timeout) {
			delete(r.byID, id)
			r.retractLocked(c)
			gone = append(gone, id)
		}
	}
	r.timer = nil
	if len(r.byID) > 0 {
		r.armLocked()
	}
	r.mu.Unlock()
	for _, id := range gone {
		r.engine.Forget(id)
	}
}

// Len returns the number of clients.
func (r *Clients) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

// A Profile has the settings that a client sent. It is not changed. There is one for each client,
// so the settings stay encoded: decoded they are ten times as large, and they are needed only to be
// sent again.
type Profile struct {
	clientType rmqpb.ClientType
	Language   string // x-mq-language
	Version    string // x-mq-client-version
	Packed     bool   // it announced wire.FeaturePacked
	Group      string // of a consumer
	timeout    time.Duration
	settings   []byte // a rmqpb.Settings
}

// IsPush reports whether the client takes messages to handlers, so that a
// message that comes back waits by the group's ladder.
func (p *Profile) IsPush() bool {
	return p != nil && (p.clientType == rmqpb.ClientType_PUSH_CONSUMER || p.IsLite())
}

// IsLite reports whether the client receives from lite topics.
func (p *Profile) IsLite() bool {
	return p != nil && p.clientType == rmqpb.ClientType_LITE_PUSH_CONSUMER
}

// kind returns the name of the kind of the client.
func (p *Profile) kind() string { return strings.ToLower(p.clientType.String()) }

// Settings returns the client's settings, or nil if it sent none. It fails only if they were not
// encoded by Marshal, which does not happen.
func (p *Profile) Settings() (*rmqpb.Settings, error) {
	if p == nil {
		return nil, nil
	}
	out := &rmqpb.Settings{}
	if err := proto.Unmarshal(p.settings, out); err != nil {
		return nil, fmt.Errorf("read the client's settings: %w", err)
	}
	return out, nil
}

// RequestTimeout returns the client's timeout of a request, or 3 s if its settings have none.
func (p *Profile) RequestTimeout() time.Duration {
	if p != nil && p.timeout > 0 {
		return p.timeout
	}
	return 3 * time.Second
}

// Serves returns nil if the broker serves clients of a type, and otherwise an error with
// NOT_IMPLEMENTED. Some official clients leave the type unset.
func Serves(t rmqpb.ClientType) error {
	why := "the broker does not know; it serves PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER and LITE_PUSH_CONSUMER"
	switch t {
	case rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED, rmqpb.ClientType_PRODUCER, rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER,
		rmqpb.ClientType_LITE_PUSH_CONSUMER:
		return nil
	case rmqpb.ClientType_PULL_CONSUMER:
		why = "the broker does not serve, because it stores the progress of consumer groups itself; use a PUSH_CONSUMER or a SIMPLE_CONSUMER"
	case rmqpb.ClientType_LITE_SIMPLE_CONSUMER:
		why = "the broker does not serve; use a LITE_PUSH_CONSUMER, or receive from lite topics over HTTP"
	}
	return refusal.New(tidegate.CodeNotImplemented, "client_type", "client_type is %v, which %s", t, why)
}

// ProfileOf checks a client's settings, whose type Serves accepts. Its error ends the stream, as
// RocketMQ's proxy does.
func ProfileOf(in *rmqpb.Settings, language, version string, packed bool) (*Profile, error) {
	p := &Profile{clientType: in.GetClientType(), Language: cut(language), Version: cut(version), Packed: packed}
	bad := func(format string, args ...any) (*Profile, error) {
		return nil, refusal.New(tidegate.CodeBadRequest, "settings", "settings: "+format, args...)
	}
	var topics []*rmqpb.Resource
	switch pubSub := in.GetPubSub().(type) {
	case *rmqpb.Settings_Publishing:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_PRODUCER
		}
		if p.clientType != rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is publishing", p.clientType)
		}
		topics = pubSub.Publishing.GetTopics()
	case *rmqpb.Settings_Subscription:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_SIMPLE_CONSUMER
		}
		if p.clientType == rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is subscription", p.clientType)
		}
		p.Group = pubSub.Subscription.GetGroup().GetName()
		if err := tidegate.ValidateGroup(p.Group); err != nil {
			return nil, err
		}
		for _, e := range pubSub.Subscription.GetSubscriptions() {
			topics = append(topics, e.GetTopic())
		}
	default:
		return bad("pub_sub is empty; set publishing or subscription")
	}
	for _, topic := range topics {
		if err := tidegate.ValidateTopic(topic.GetName()); err != nil {
			return nil, err
		}
		if err := requests.CheckNamespace(topic); err != nil {
			return nil, err
		}
	}
	p.timeout = in.GetRequestTimeout().AsDuration()
	var err error
	if p.settings, err = proto.Marshal(in); err != nil {
		return bad("%s", err)
	}
	return p, nil
}

// digestSeed and digest identify the settings that the server sent to a client before.
var digestSeed = maphash.MakeSeed()

func digest(s *rmqpb.Settings) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s) // it fails only on text that is not UTF-8, which did not arrive
	return maphash.Bytes(digestSeed, b)
}

// A version is the language and the version of a client.
type version struct {
	language, text string
	numbers        []int // of a text such as 5.1.4; nil if it has another form
}

// versions are the numbers of versions by their texts, so that each is parsed once.
type versions map[string][]int

func (k versions) of(p *Profile) version {
	if p == nil {
		return version{}
	}
	numbers, known := k[p.Version]
	if !known {
		numbers = numbersOf(p.Version)
		k[p.Version] = numbers
	}
	return version{language: p.Language, text: p.Version, numbers: numbers}
}

// newer reports whether v is the newer version of the same language. A text without numbers is
// neither newer nor older than another.
func (v *version) newer(than *version) bool {
	if v.numbers == nil || than.numbers == nil && than.text != "" {
		return false
	}
	return slices.Compare(v.numbers, than.numbers) > 0
}

// numbersOf returns the numbers of a version: those of 5.1.4 for v5.1.4-rc1 too.
func numbersOf(text string) []int {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "-")
	var out []int
	for part := range strings.SplitSeq(text, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// maxText bounds the texts of a client about itself, in bytes.
const maxText = 64

// cut returns the beginning of a client's text about itself, in memory of its own.
func cut(text string) string {
	return strings.Clone(strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
}
