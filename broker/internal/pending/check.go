package pending

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
)

// PropertyCheckTimes is RocketMQ's name of the property with the number of checks of a transaction.
const PropertyCheckTimes = "TRANSACTION_CHECK_TIMES"

const (
	// CheckBatch and CheckBytes bound the checks of one write: their number, and the bytes of their
	// bodies.
	CheckBatch = 256
	CheckBytes = 8 << 20

	// giveUpPause is the delay before the next try to give a transaction up while the disk is short
	// of space.
	giveUpPause = time.Minute
)

// errNoTopic is returned if a batch of checks needs the topic of GivenUp, and the topic does not
// exist.
var errNoTopic = errors.New("the topic for half messages of abandoned transactions does not exist")

// An action is the decision about one half message that is due.
type action int

const (
	forget   action = iota // the transaction has ended, or is due at another time
	discard                // the message is corrupt and is removed
	ask                    // the broker asks a producer
	giveUp                 // the transaction has had its last check
	postpone               // giveUp while the disk is short of space
	repeat                 // giveUp, but the topic of GivenUp was just deleted
)

// A check is one half message that is due, and the decision about the message.
type check struct {
	action  action
	topic   Topic
	due     store.DueHalf
	state   store.HalfState
	after   store.HalfState // after ask or postpone
	message store.Message
	givenUp Topic
}

// checkDue writes one batch of checks. askAll asks the producers after the write. If the process
// ends in between, a producer is asked once less, and never once more.
func (x *Transactions) checkDue(ctx context.Context, now time.Time) (next time.Time, err error) {
	x.batch, next, err = x.writeChecks(ctx, now)
	x.needsGivenUp = errors.Is(err, errNoTopic)
	switch {
	case x.needsGivenUp || err == nil && len(x.batch) > 0:
		return now, nil
	case err != nil:
		return time.Time{}, err
	}
	return next, nil
}

// askAll asks the producers of the last batch, or creates the topic that the batch needs. The task
// is not held meanwhile, because a purge can wait for the task while the creation waits for the
// purge, and because Host.Ask can purge.
func (x *Transactions) askAll(ctx context.Context) error {
	if x.needsGivenUp {
		return x.CreateGivenUp()
	}
	for _, c := range x.batch {
		x.announce(ctx, c)
	}
	x.batch = nil
	return nil
}

// writeChecks writes one batch of checks. With errNoTopic nothing was written.
func (x *Transactions) writeChecks(ctx context.Context, now time.Time) (batch []*check, next time.Time, err error) {
	from := x.from.take()
	done := false
	defer func() {
		if !done {
			x.from.note(from)
		}
	}()
	due, next, err := x.Store.DueHalfMessages(from, now, CheckBatch)
	if err != nil {
		return nil, next, err
	}
	if !next.IsZero() {
		x.from.note(next)
	}
	if len(due) == 0 {
		done = true
		return nil, next, nil
	}
	batch, claims, err := x.load(ctx, due)
	if err != nil || len(batch) == 0 {
		claims.release()
		return nil, next, err
	}
	var givenUp Topic
	if slices.ContainsFunc(batch, func(c *check) bool { return c.action == giveUp }) {
		if givenUp = x.GivenUp(); givenUp == nil {
			claims.release()
			return nil, next, errNoTopic
		}
	}
	var published []func(error)
	write := x.Store.Messages.Add(func(w *store.Batch) {
		for _, c := range batch {
			if publish := c.write(w, givenUp, time.Now()); publish != nil {
				published = append(published, publish)
			}
		}
	}, func(err error) {
		claims.release()
		for _, f := range published {
			f(err)
		}
	})
	if write == nil {
		claims.release()
	}
	if err := write.Wait(); err != nil {
		return nil, next, err
	}
	done = len(batch) == len(due)
	for _, c := range batch {
		switch c.action {
		case ask, postpone:
			x.from.note(c.after.Due)
		case repeat:
			done = false
		}
	}
	return batch, next, nil
}

// load claims and reads due half messages until their bodies have CheckBytes. It always reads the
// first one.
func (x *Transactions) load(ctx context.Context, due []store.DueHalf) (batch []*check, claims claims, err error) {
	topic := x.Topics()
	short := x.ShortOfDisk()
	left := int64(CheckBytes)
	for _, d := range due {
		if left <= 0 {
			break
		}
		release, err := x.Claim(ctx, d.HalfID)
		if err != nil {
			return nil, claims, nil //nolint:nilerr // the broker closes
		}
		claims = append(claims, release)
		m, state, ok, err := x.Store.GetHalf(d.HalfID)
		if err != nil && !store.IsDamage(err) {
			return nil, claims, err
		}
		left -= int64(len(m.Body))
		c := &check{topic: topic(d.Topic), due: d, state: state, message: m}
		switch {
		case c.topic != nil && err != nil && (state.Due.IsZero() || state.Due.Equal(d.Due)):
			c.action = discard
			x.Damaged.Add(1)
			x.Logger.Error("half message removed without a transaction check, because it is corrupt",
				"topic", c.topic.Name(), "transaction_id", consume.TransactionID(d.HalfID), "error", err)
		case c.topic == nil || !ok || !state.Due.Equal(d.Due):
			c.action = forget
		default:
			c.decide(time.Now(), short)
		}
		batch = append(batch, c)
	}
	return batch, claims, nil
}

// decide sets the action to ask, postpone or giveUp.
func (c *check) decide(now time.Time, shortOfDisk bool) {
	var over bool
	c.after, over = c.topic.Schedule().Next(c.state, now)
	switch {
	case !over:
		c.action = ask
	case shortOfDisk:
		c.action = postpone
		c.after.Due, c.after.Span = now.Add(giveUpPause), giveUpPause
	default:
		c.action = giveUp
	}
}

// write counts the check, or gives the transaction up. The returned function makes the message of a
// transaction that is given up visible; it is nil otherwise. Only called within the message log's
// Add.
func (c *check) write(w *store.Batch, givenUp Topic, now time.Time) (publish func(error)) {
	if c.action != forget && c.topic.Deleted() {
		c.action = forget
	}
	id := c.due.HalfID
	switch c.action {
	case forget:
		w.DeleteDueHalf(c.due)
	case discard:
		w.DeleteDueHalf(c.due)
		c.remove(w)
	case ask, postpone:
		w.ChangeHalf(id, c.state, c.after)
	case giveUp:
		if givenUp.Deleted() {
			c.action = repeat
			return nil
		}
		c.remove(w)
		c.topic.Counters().GivenUp.Add(1)
		m := c.message
		m.Properties = c.properties()
		c.givenUp = givenUp
		return givenUp.Deliver(w, &m, now)
	}
	return nil
}

func (c *check) remove(w *store.Batch) {
	w.DeleteHalf(c.due.HalfID, c.state)
	c.topic.Counters().Half.Add(-1)
	c.topic.Forget(c.state.IDHash)
}

// properties returns the properties of the message of a transaction that is given up.
func (c *check) properties() map[string]string {
	p := maps.Clone(c.message.Properties)
	if p == nil {
		p = map[string]string{}
	}
	n := strconv.Itoa(c.state.Checks)
	p[PropertyCheckTimes] = n
	p[protocol.PropertyDeadLetterTopic] = c.topic.Name()
	p[protocol.PropertyDeadLetterMessageID] = c.message.ID
	p[protocol.PropertyDeadLetterAttempts] = n
	p[protocol.PropertyDeadLetterReason] = "the transaction was neither committed nor rolled back after " + n + " checks"
	return p
}

// announce asks a producer after the check was written, or logs that the transaction was given up.
func (x *Transactions) announce(ctx context.Context, c *check) {
	switch c.action {
	case giveUp:
		x.Logger.Warn("transaction abandoned after its last check", "topic", c.topic.Name(), "message_id", c.message.ID,
			"checks", c.state.Checks, "stored_at", c.message.StoredAt, "to", c.givenUp.Name())
	case ask:
		if x.ask(ctx, c) {
			c.topic.Counters().Checks.Add(1)
			return
		}
		c.topic.Counters().Unheard.Add(1)
		x.Logger.Debug("transaction check not sent, because no producer is connected", "topic", c.topic.Name(), "message_id", c.message.ID, "check", c.after.Checks)
	}
}

// ask offers a check to the producers.
func (x *Transactions) ask(ctx context.Context, c *check) bool {
	m := c.message.Message
	m.Topic = c.topic.Name()
	check := Check{
		Message: &m, TransactionID: consume.TransactionID(c.due.HalfID), Number: c.after.Checks,
		BornAt: c.message.BornAt, StoredAt: c.message.StoredAt, BornHost: c.message.BornHost,
	}
	asked := make(chan bool, 1)
	go func() { asked <- x.Ask(check) }() // ends with the host, which nothing waits for
	select {
	case took := <-asked:
		return took
	case <-ctx.Done():
		return false
	}
}
