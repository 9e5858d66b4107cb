package failover

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// forgotten is the time after the last SyncLite of a consumer after which its lite topics are
// forgotten. Consumers repeat them every 30 s.
const forgotten = 10 * time.Minute

// liteSets has the lite topics of each consumer. A receive brings them to an endpoint that may lack
// them, for example because it was down during the last SyncLite, or has been restarted.
type liteSets struct {
	mu         sync.Mutex
	byConsumer map[transport.LiteConsumer]*liteSet
}

// A liteSet is the lite topics of a consumer.
type liteSet struct {
	turn  turn   // of SyncLite: the changes have an order
	turns []turn // by endpoint, of the requests to it; taken after turn

	// Guarded by liteSets.mu.
	topics   map[string]struct{}
	behind   []bool // by endpoint: its set may differ
	version  int    // the number of changes
	changing bool   // a SyncLite is under way
	older    []bool // by endpoint: since the begin of that SyncLite it got the set before the change
	at       time.Time
}

// A turn is a lock that is held across a request. It has capacity 1.
type turn chan struct{}

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t turn) give() { <-t }

func newLiteSet(endpoints int) *liteSet {
	set := &liteSet{turn: make(turn, 1), topics: map[string]struct{}{}, behind: make([]bool, endpoints), older: make([]bool, endpoints)}
	for range endpoints {
		set.turns = append(set.turns, make(turn, 1))
	}
	return set
}

// of returns the set of a consumer, a new one if there is none.
func (l *liteSets) of(c transport.LiteConsumer, endpoints int, now time.Time) *liteSet {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.byConsumer[c]
	if set == nil {
		maps.DeleteFunc(l.byConsumer, func(_ transport.LiteConsumer, s *liteSet) bool { return now.Sub(s.at) > forgotten })
		set = newLiteSet(endpoints)
		if l.byConsumer == nil {
			l.byConsumer = map[transport.LiteConsumer]*liteSet{}
		}
		l.byConsumer[c] = set
	}
	set.at = now
	return set
}

// begin records the begin of a change.
func (l *liteSets) begin(set *liteSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set.changing = true
	clear(set.older)
}

// lacks returns the set of a consumer with its version if endpoint i may lack it.
func (l *liteSets) lacks(c transport.LiteConsumer, i int) (set *liteSet, topics []string, version int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if set = l.byConsumer[c]; set == nil || !set.behind[i] {
		return nil, nil, 0
	}
	return set, slices.Sorted(maps.Keys(set.topics)), set.version
}

// aligned records that endpoint i got a version of the set. During a change that is the set before
// it.
func (l *liteSets) aligned(set *liteSet, i, version int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set.behind[i], set.older[i] = set.changing || version != set.version, set.changing
}

// doubt records that endpoint i may lack the lite topics of a consumer.
func (l *liteSets) doubt(c transport.LiteConsumer, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if set := l.byConsumer[c]; set != nil {
		set.behind[i] = true
	}
}

// ended removes a lite topic that an endpoint has ended.
func (l *liteSets) ended(c transport.LiteConsumer, liteTopic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if set := l.byConsumer[c]; set != nil {
		delete(set.topics, liteTopic)
	}
}

// applied records the results of a SyncLite at the endpoints, and returns the index of the endpoint
// whose error is the result, or -1 for success. An endpoint that rejects the name or number of the
// lite topics rejects an addition for all. Other errors count only if no endpoint has accepted the
// request: a receive repeats it.
func (l *liteSets) applied(set *liteSet, s transport.LiteSync, errs []error, active int) (failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	failed = -1
	if s.Action == transport.LiteAdd {
		failed = slices.IndexFunc(errs, refusesLite)
	}
	if failed < 0 && !slices.Contains(errs, nil) {
		failed = active
	}
	for i, err := range errs {
		switch {
		case err != nil, failed >= 0, set.older[i]:
			set.behind[i] = true
		case s.Action == transport.LiteSet:
			set.behind[i] = false
		}
	}
	set.changing = false
	set.version++
	if failed >= 0 {
		return failed
	}
	if s.Action == transport.LiteSet {
		clear(set.topics)
	}
	for _, name := range s.Topics {
		if s.Action == transport.LiteRemove {
			delete(set.topics, name)
		} else {
			set.topics[name] = struct{}{}
		}
	}
	return -1
}

// refusesLite reports whether a server rejects the name of a lite topic, or its number.
func refusesLite(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && slices.Contains([]tidegate.Code{
		protocol.CodeIllegalLiteTopic, protocol.CodeLiteTopicQuotaExceeded, protocol.CodeLiteSubscriptionQuotaExceeded,
	}, e.Code)
}

// SyncLite changes the lite topics of a consumer at all endpoints at the same time, and waits for
// all of them, until ctx ends: consumers receive from all endpoints. It succeeds if one of them
// accepts the change and none rejects an addition with code 40020, 42901 or 42902. An endpoint that
// does not accept the change gets the whole set before the next receive of the consumer from it,
// without a start, and that receive has its error. An endpoint whose transport is no
// [transport.LiteSubscriber] rejects every change with CodeNotImplemented.
func (t *Transport) SyncLite(ctx context.Context, s transport.LiteSync) error {
	set := t.lites.of(s.LiteConsumer, len(t.ends), time.Now())
	if err := set.turn.take(ctx); err != nil {
		return err
	}
	defer set.turn.give()
	t.lites.begin(set)
	errs := make([]error, len(t.ends))
	t.each(func(e *end) {
		if errs[e.index] = set.turns[e.index].take(ctx); errs[e.index] == nil {
			defer set.turns[e.index].give()
			errs[e.index] = e.syncLite(ctx, s)
		}
	})
	if failed := t.lites.applied(set, s, errs, t.now().index); failed >= 0 {
		return errs[failed]
	}
	return nil
}

func (e *end) syncLite(ctx context.Context, s transport.LiteSync) error {
	x, ok := e.Transport.(transport.LiteSubscriber)
	if !ok {
		return e.missing("SyncLiteSubscription", s.Topic)
	}
	return e.wrap(x.SyncLite(ctx, s))
}

// align brings the lite topics of a receive's consumer to an endpoint that may lack them.
func (t *Transport) align(ctx context.Context, e *end, r transport.ReceiveRequest) error {
	c := transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}
	if r.LiteConsumer == "" || r.Repeat {
		return nil
	}
	set, _, _ := t.lites.lacks(c, e.index)
	if set == nil {
		return nil
	}
	if err := set.turns[e.index].take(ctx); err != nil {
		return err
	}
	defer set.turns[e.index].give()
	set, topics, version := t.lites.lacks(c, e.index)
	if set == nil {
		return nil // another request has brought them
	}
	err := e.syncLite(ctx, transport.LiteSync{LiteConsumer: c, Action: transport.LiteSet, Topics: topics})
	if err == nil {
		t.lites.aligned(set, e.index, version)
	}
	return err
}

// received records the result of a receive. After a transient error the server may be another one
// that does not know the lite topics.
func (t *Transport) received(e *end, r transport.ReceiveRequest, err error) {
	if r.LiteConsumer != "" && reactionTo(err).askOthers {
		t.lites.doubt(transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}, e.index)
	}
}

// ServeLite reports the lite topics that one of the endpoints ends, until ctx ends. Its errors are
// those of ServeChecks.
func (t *Transport) ServeLite(ctx context.Context, c transport.LiteConsumer, ended func(liteTopic string)) error {
	names, done := make(chan string), make(chan error, 1)
	go func() {
		defer close(names)
		done <- t.serve(ctx, "ends of lite topics", c.Topic, func(ctx context.Context, e *end) (served bool, err error) {
			x, ok := e.Transport.(transport.LiteSubscriber)
			if !ok {
				return false, nil
			}
			return true, e.wrap(x.ServeLite(ctx, c, func(name string) { names <- name }))
		})
	}()
	for name := range names { // one goroutine calls ended
		t.lites.ended(c, name)
		ended(name)
	}
	return <-done
}
