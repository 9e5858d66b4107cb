package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
				fmt.Sprintf("%v: %d clients are connected, which is the limit; retry when others have disconnected", tidegate.ErrThrottled, len(r.byID)))
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
			fmt.Sprintf("%v: the settings of this client have %d bytes; those of %d clients have %d bytes, %d of them from the key and address of this client, and the limit of all is %d; "+
				"retry when others have disconnected", tidegate.ErrThrottled, bytes, len(r.byID), r.settingsBytes, r.originBytes[c.origin], r.settingsLimit))
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
	return c, nil
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
