package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/filelock"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// Redrive sends dead letters back in the order of the source. It blocks until it has processed all
// letters, has reached Limit or MaxFailureShare, an error stops it, or ctx ends. After a throttled
// send it waits at least as long as the server requests and repeats the send; this is not a
// failure.
//
// Redrive returns a report, also with an error. The error
//
//   - matches [ErrTooManyFailures] if MaxFailureShare stopped the run;
//   - wraps context.Cause(ctx) if ctx has ended;
//   - otherwise is an error of the options, the source or the journal, or the error of a send that
//     found the server unavailable five times.
//
// To continue after an error, call Redrive again with the same journal.
func Redrive(ctx context.Context, src Source, o Options) (Report, error) {
	o, err := o.withDefaults(src)
	if err != nil {
		return Report{}, err
	}
	r := &runner{src: src, o: o, report: Report{Skipped: map[string]int{}, DryRun: o.DryRun}}
	r.batchSize = int(min(max(math.Ceil(o.PerSecond/10), 1), maxBatch))
	r.limiter = rate.NewLimiter(rate.Limit(o.PerSecond), r.batchSize)
	r.plan = plan{
		filter: &r.o.Filter, maxGenerations: o.MaxGenerations, maxFailureShare: o.MaxFailureShare, limit: o.Limit,
		to: o.To, sent: map[exact]bool{}, pending: map[exact]bool{}, away: map[key]bool{}, failed: map[string]bool{},
		seen: map[key]bool{},
	}
	if b, ok := src.(Broker); ok && (o.Edit == nil || o.ToGroupOnly) {
		r.broker = &b
	}
	r.anew = r.broker == nil || o.Edit != nil
	if q, ok := src.(Queue); ok && o.ToGroupOnly {
		if r.retryTopic, err = q.retryTopic(ctx, o.To); err != nil {
			return r.report, fmt.Errorf("deadletter.Redrive: %w", err)
		}
	}
	if !o.DryRun {
		if r.journal, err = openJournal(o.Journal, src.group()); err != nil {
			return r.report, fmt.Errorf("deadletter.Redrive: %w", err)
		}
		for k, e := range r.journal.sent {
			r.plan.sent[k] = true
			r.plan.gone(k, e)
		}
		for k, e := range r.journal.pending {
			r.plan.pending[k] = true
			r.plan.gone(k, e)
		}
	}
	err = r.run(ctx)
	if r.journal != nil {
		err = errors.Join(err, r.journal.Close())
	}
	if err != nil {
		err = fmt.Errorf("deadletter.Redrive: %w", err)
	}
	return r.report, err
}

// A runner executes a redrive.
type runner struct {
	src     Source
	o       Options
	plan    plan
	journal *journal // nil in a dry run
	limiter *rate.Limiter
	report  Report

	retryTopic string // to which all messages go, of a Queue with ToGroupOnly

	forms     map[string]form // by topic, of messages that Sender sends
	broker    *Broker         // moves letters by itself; nil if messages are sent by Sender
	anew      bool            // each message is sent alone, under a new ID
	batchSize int
	batch     []*Letter // letters to send back
}

func (r *runner) run(ctx context.Context) error {
	if err := r.note(Event{Event: eventBegin, Group: r.src.group(), Actor: r.o.Actor}); err != nil {
		return err
	}
	err := r.all(ctx)
	if err == nil {
		err = r.flush(ctx)
	}
	if err == nil {
		err = r.recover()
	}
	if err == nil && r.plan.tooMany() {
		r.report.Stopped = whyTooManyFail
	}
	if err == nil && r.report.Stopped == whyTooManyFail {
		err = ErrTooManyFailures
	}
	if r.journal != nil && r.journal.Failed() != nil {
		return err // it is the failure of the journal
	}
	why := r.report.Stopped
	if err != nil {
		why = err.Error()
	}
	return errors.Join(err, r.note(Event{Event: eventEnd, Why: why, Report: &r.report}))
}

// all processes the letters until one stops it.
func (r *runner) all(ctx context.Context) error {
	by := query{page: redrivePage}
	if r.anew && !r.o.DryRun {
		by = query{page: bodiesPage, bodies: true}
	}
	for l, err := range r.src.letters(ctx, &r.o.Filter, by) {
		if err != nil {
			return err
		}
		twin := r.plan.again(l)
		if n := len(r.batch); n == r.batchSize || n > 0 && (twin || !sameBatch(r.batch[0], l)) {
			if err := r.flush(ctx); err != nil {
				return err
			}
		}
		if b, ok := r.src.(Broker); ok && twin && !r.o.DryRun {
			if found, err := b.locate(ctx, l); err != nil {
				return err
			} else if !found {
				continue // it was removed since the page was read
			}
		}
		r.report.Seen++
		d := r.plan.decide(l)
		delete(r.plan.pending, exactOf(l)) // the letter still exists
		delete(r.plan.pending, exactOf(l).legacy())
		switch d.action {
		case take:
			r.batch = append(r.batch, l)
			if !r.anew {
				continue
			}
			if err := r.flush(ctx); err != nil { // before its lease ends
				return err
			}
		case clean:
			if r.o.DryRun {
				continue
			}
			if err := r.remove(ctx, l); err != nil {
				return err
			}
		case skip:
			r.report.Skipped[d.why]++
			if d.why == whyReturned {
				r.report.Returned++
			}
			if d.why != whyFilter {
				if err := r.note(r.event(eventSkipped, l, d.why)); err != nil {
					return err
				}
			}
		case stop:
			if k := keyOf(l); d.why == whyTooManyFail && r.plan.away[key{k.topic, k.id, k.generation - 1}] {
				r.report.Returned++
			}
			r.report.Stopped = d.why
			return nil
		}
	}
	return nil
}

// recover completes the letters that an earlier run began with. All letters have been listed, so a
// missing letter of a broker was sent back. A missing letter of a queue may be leased to the
// crashed process.
func (r *runner) recover() error {
	if r.report.Stopped != "" || r.o.DryRun {
		return nil
	}
	for k := range r.plan.pending {
		if _, all := r.src.(Broker); !all {
			r.report.Unresolved++
			continue
		}
		e := r.journal.pending[k]
		e.Event, e.Why = eventRedriven, "found after a crash"
		if err := r.note(e); err != nil {
			return err
		}
		r.plan.sent[k] = true
		r.report.Recovered++
	}
	return nil
}

// flush sends the batch back.
func (r *runner) flush(ctx context.Context) error {
	batch := r.batch
	r.batch = nil
	if len(batch) == 0 {
		return nil
	}
	intents := make([]Event, len(batch))
	for i, l := range batch {
		intents[i] = r.event(eventIntent, l, "")
	}
	if r.o.DryRun {
		r.report.Redriven += len(batch)
		for _, l := range batch {
			r.plan.result(l, true)
		}
		return r.note(intents...)
	}
	if err := ratelimit.Wait(ctx, r.limiter, len(batch)); err != nil {
		return err
	}
	if err := r.note(intents...); err != nil {
		return err
	}
	if !r.anew {
		return r.sendBack(ctx, batch)
	}
	for _, l := range batch {
		if err := r.sendAnew(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// sameBatch reports whether the broker can move two letters in one request.
func sameBatch(a, b *Letter) bool {
	return a.page == b.page && a.Generation() == b.Generation() && a.Origin.Topic == b.Origin.Topic
}

// sendBack makes the broker move letters of one page, generation and topic.
func (r *runner) sendBack(ctx context.Context, batch []*Letter) error {
	for n := 0; len(batch) > 0; n++ {
		stay, err := r.broker.sendBack(ctx, batch, &r.o)
		if err != nil && !errors.Is(err, tidegate.ErrThrottled) {
			return err // the next run finds the results
		}
		var again []*Letter
		var events []Event
		throttled := err
		for _, l := range batch {
			why := stay[l.Message.ID]
			switch {
			case err != nil, errors.Is(why, tidegate.ErrThrottled):
				again = append(again, l)
				if throttled == nil {
					throttled = why
				}
			case maybe(why):
				return why
			case why != nil:
				events = append(events, r.done(l, why))
			default:
				events = append(events, r.done(l, nil))
			}
		}
		if err := r.note(events...); err != nil {
			return err
		}
		if batch = again; len(batch) > 0 {
			if err := pause(ctx, n, throttled); err != nil {
				return err
			}
		}
	}
	return nil
}

// pause waits after a throttled attempt, as producers do.
func pause(ctx context.Context, n int, err error) error {
	return backoff.Sleep(ctx, max(backoff.Default().Delay(n), tidegate.RetryAfter(err)))
}

const (
	attemptTimeout    = 10 * time.Second
	transientAttempts = 5
)

// An afterSend is the step after a failed send of a letter.
type afterSend int

const (
	sendAgain afterSend = iota // after a pause
	endRun
	letterFailed
)

// stepAfter returns the step after a send that failed with err, after n failed ones before it.
func stepAfter(err error, n int) afterSend {
	switch tidegate.Classify(err) {
	case tidegate.ClassThrottled:
		return sendAgain
	case tidegate.ClassTransient:
		if n+1 < transientAttempts {
			return sendAgain
		}
		return endRun // a fault of the server
	case tidegate.ClassCancelled:
		return endRun // the program closed the Sender
	}
	return letterFailed
}

// sendAnew sends a message under an ID that a repetition reuses, and then removes the letter. The
// broker does both at once if it moves letters by itself.
func (r *runner) sendAnew(ctx context.Context, l *Letter) error {
	m, err := r.message(l)
	unsure := false // an earlier attempt may have moved the letter
	for n := 0; err == nil; n++ {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		if r.broker != nil {
			err = r.broker.replace(attempt, l, m, &unsure)
		} else {
			err = r.send(attempt, m, l.StoredAt)
		}
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // the intent remains, and the next run repeats the send
		}
		switch stepAfter(err, n) {
		case endRun:
			return err // not a fault of the message; the intent remains
		case letterFailed:
			return r.note(r.done(l, err))
		}
		if err = pause(ctx, n, err); err != nil {
			return err
		}
	}
	if err != nil { // error of Edit, or no topic
		return r.note(r.done(l, err))
	}
	err = r.note(r.done(l, nil))
	if r.broker != nil {
		return err
	}
	// Without a result in the journal the next run would send a letter that stays again.
	return errors.Join(err, r.remove(ctx, l))
}

// A form is the kind of a sent message. It has to fit the type of the topic.
type form int

const (
	plainForm form = iota // for NORMAL, and with a message group for FIFO
	dueForm               // for DELAY: with a delivery time in the past
	committed             // for TRANSACTION: a half message that is committed at once
)

// send sends a message in one attempt, in the form that its topic accepts. The conflict of a
// message with the type of its topic stores nothing, so the next form is tried then.
func (r *runner) send(ctx context.Context, m *tidegate.Message, past time.Time) error {
	f := r.forms[m.Topic]
	err := r.sendAs(ctx, f, m, past)
	for first := err; conflicts(err) && m.OrderKey() == "" && f < committed; {
		f++
		switch err = r.sendAs(ctx, f, m, past); {
		case errors.Is(err, errNoTransactions):
			return first
		case !conflicts(err):
			if r.forms == nil {
				r.forms = map[string]form{}
			}
			r.forms[m.Topic] = f
		}
	}
	return err
}

// conflicts reports whether a message does not fit the type of its topic.
func conflicts(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && e.Code == protocol.CodeMessagePropertyConflict
}

// errNoTransactions is the error of a Sender that is no transport.Transactor.
var errNoTransactions = errors.New("the Sender does not send transactional messages")

func (r *runner) sendAs(ctx context.Context, f form, m *tidegate.Message, past time.Time) error {
	switch f {
	case dueForm:
		m = m.Clone()
		m.DeliverAt = past
	case committed:
		t, ok := r.o.Sender.(transport.Transactor)
		if !ok {
			return errNoTransactions
		}
		half := t.SendHalf(ctx, m)
		if half.Err != nil {
			return half.Err
		}
		tx := transport.Transaction{ID: half.Receipt.TransactionID, MessageID: m.ID, Topic: m.Topic, Endpoint: half.Receipt.Endpoint}
		return t.EndTransaction(ctx, tx, transport.Commit) // an unknown one may be discarded
	}
	return r.o.Sender.Send(ctx, []*tidegate.Message{m})[0].Err
}

// remove removes a letter that was sent. If its lease has ended, the letter is redelivered, and the
// next run of the job removes it.
func (r *runner) remove(ctx context.Context, l *Letter) error {
	err := r.src.remove(ctx, l, r.plan.name(l))
	if errors.Is(err, tidegate.ErrInvalidHandle) {
		r.report.Unresolved++
		return nil
	}
	return err
}

// done records the result of a letter and returns its event.
func (r *runner) done(l *Letter, err error) Event {
	r.plan.result(l, err == nil)
	if err != nil {
		r.report.Failed++
		return r.event(eventFailed, l, err.Error())
	}
	r.report.Redriven++
	if r.anew && r.plan.name(l) != sentAs(l) {
		r.report.Renamed++
	}
	return r.event(eventRedriven, l, "")
}

// message returns the message to send for a letter.
func (r *runner) message(l *Letter) (*tidegate.Message, error) {
	if r.target(l) == "" {
		return nil, errNoTarget
	}
	d := tidegate.Delivery{Message: l.Message}
	m := d.Forward(r.target(l))
	m.ID = r.plan.name(l)
	if r.o.Edit != nil {
		topic, id := m.Topic, m.ID
		if err := r.o.Edit(m); err != nil {
			return nil, fmt.Errorf("edit: %w", err)
		}
		if m.Topic != topic || m.ID != id {
			return nil, errors.New("Options.Edit changed the ID or topic of the message; use Options.To for another topic")
		}
		check := *m
		check.ID = "" // that of the letter, which only the server judges
		if err := check.Validate(max(len(m.Body), tidegate.MaxBodySize)); err != nil {
			return nil, fmt.Errorf("edit: %w", err)
		}
	}
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	// Without room for the property the ID has the number, see generationOf.
	if _, has := m.Properties[protocol.PropertyDeadLetterRedrives]; has || len(m.Properties) < protocol.MaxProperties {
		m.Properties[protocol.PropertyDeadLetterRedrives] = strconv.Itoa(l.Generation() + 1)
	}
	return m, nil
}

func (r *runner) target(l *Letter) string {
	if r.retryTopic != "" {
		return r.retryTopic
	}
	if r.o.To != "" {
		return r.o.To
	}
	return l.Origin.Topic
}

func (r *runner) event(event string, l *Letter, why string) Event {
	e := Event{Event: event, MessageID: l.Message.ID, Generation: l.Generation(), Origin: l.Origin.Topic, At: l.at(), Topic: r.target(l), Reason: l.Origin.Reason, Why: why}
	if r.anew {
		e.SentAs, e.Edited = r.plan.name(l), r.o.Edit != nil
	}
	return e
}

// note writes events to the journal with one sync, and reports them.
func (r *runner) note(events ...Event) error {
	if r.journal != nil {
		if err := r.journal.write(events...); err != nil {
			return err
		}
	}
	if r.o.OnEvent != nil {
		for _, e := range events {
			if r.journal != nil || e.Event == eventIntent || e.Event == eventSkipped {
				r.o.OnEvent(e)
			}
		}
	}
	return nil
}

// The values of Event.Event.
const (
	eventBegin    = "begin"
	eventIntent   = "intent"
	eventRedriven = "redriven"
	eventFailed   = "failed"
	eventSkipped  = "skipped"
	eventEnd      = "end"
	eventJob      = "job" // the first line of a journal of the command line
)

// An Event is one line of a journal. Its Event is one of these:
//
//   - "begin": a run begins;
//   - "intent": the letter is about to be sent back;
//   - "redriven": the letter is stored in its topic;
//   - "failed": the letter stays, and a later run tries it again; Why has the reason;
//   - "skipped": the letter stays; Why has the reason;
//   - "end": the run has ended.
type Event struct {
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Group      string    `json:"group,omitempty"`      // of begin: the consumer group of the dead letters
	Actor      string    `json:"actor,omitempty"`      // of begin: Options.Actor
	MessageID  string    `json:"message_id,omitempty"` // of the dead letter
	Generation int       `json:"generation"`           // number of earlier redrives
	Origin     string    `json:"origin"`               // the topic of the original send; empty if it is unknown
	At         string    `json:"at,omitempty"`         // tells letters with one ID apart
	SentAs     string    `json:"sent_as,omitempty"`    // the ID of the send, if it differs
	Topic      string    `json:"topic,omitempty"`      // the topic of the send
	Edited     bool      `json:"edited,omitempty"`
	Reason     string    `json:"reason,omitempty"` // reason of the dead letter
	Why        string    `json:"why,omitempty"`    // reason of the skip, the failure or the end of the run
	Report     *Report   `json:"report,omitempty"` // of end
}

// A journal is the audit trail of a job.
type journal struct {
	*filelock.Journal
	sent    map[exact]Event // redriven letters
	pending map[exact]Event // letters with an intent and no result
}

// openJournal reads a journal, or creates it, and locks it. It removes a last line that a crash has
// truncated. It returns an error if the journal belongs to another group, is in use, or is another
// file.
func openJournal(name, group string) (j *journal, err error) {
	j = &journal{sent: map[exact]Event{}, pending: map[exact]Event{}}
	j.Journal, err = filelock.OpenJournal(name, ", and continue the job with this journal", func(line []byte) error {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		k := exact{keyFor(e.Origin, e.MessageID, e.Generation), e.At}
		switch e.Event {
		case eventBegin:
			if e.Group != group {
				return fmt.Errorf("the journal belongs to group %q, not to %q", e.Group, group)
			}
		case eventIntent:
			j.pending[k] = e
		case eventRedriven:
			j.sent[k] = e
			delete(j.pending, k)
		case eventFailed:
			delete(j.pending, k)
		case eventJob, eventSkipped, eventEnd:
		default:
			return fmt.Errorf("its event is %q", e.Event)
		}
		return nil
	})
	return j, err
}

// write appends events and returns when they are on disk.
func (j *journal) write(events ...Event) error {
	if len(events) == 0 {
		return j.Failed()
	}
	var b bytes.Buffer
	for i := range events {
		events[i].Time = time.Now().UTC()
		line, err := json.Marshal(&events[i])
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	return j.Append(b.Bytes(), true)
}
