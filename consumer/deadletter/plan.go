package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// An action is the treatment of a letter by a redrive.
type action int

const (
	take  action = iota // send it back
	clean               // sent back before: only remove it
	skip                // leave it
	stop                // skip it and all later letters
)

// A decision is an action with its reason, which is empty for take.
type decision struct {
	action action
	why    string
}

// Reasons for skipping and for stopping.
const (
	whyFilter      = "filtered out"
	whyGeneration  = "sent back too often"
	whyReturned    = "became a dead letter again during this job"
	whySent        = "sent before a crash"
	whyGroup       = "an earlier message of its message group failed"
	whyLimit       = "limit reached"
	whyTooManyFail = "too many failures"
)

const (
	// The failure ratio covers up to window results. It counts once there are least of them.
	window = 50
	least  = 10
)

// A key identifies one redrive of a message. A returned message has another generation. Messages of
// different topics can have the same ID.
type key struct {
	topic      string // of the original send; empty if it is unknown
	id         string
	generation int
}

// keyOf returns the key of the next redrive of a letter.
func keyOf(l *Letter) key { return keyFor(l.Origin.Topic, l.Message.ID, l.Generation()) }

// keyFor returns the key for the ID of a letter, which may be a result of sentAs.
func keyFor(topic, id string, generation int) key {
	return key{topic, protocol.FirstID(id, generation), generation}
}

// An exact key identifies a letter. Two letters with one ID, which their topic stored beyond its
// duplicate window, differ in at. It is empty in journals of version 0.1.
type exact struct {
	key
	at string
}

func exactOf(l *Letter) exact { return exact{keyOf(l), l.at()} }

// legacy returns the key as journals of version 0.1 have it.
func (e exact) legacy() exact { return exact{key: e.key} }

// sentAs returns the ID for sending a letter. It depends only on the message's first ID and the
// number of the redrive. A hash replaces an ID that would be too long.
func sentAs(l *Letter) string { return protocol.RedrivenID(l.Message.ID, l.Generation()) }

// copyAs returns the ID for sending a letter if another letter of the job has the ID of sentAs. It
// also depends on the place of the letter.
func copyAs(l *Letter) string { return protocol.RedrivenID(copyOf(l), l.Generation()) }

// copyOf returns the first ID of a letter that is sent as copyAs.
func copyOf(l *Letter) string {
	sum := sha256.Sum256([]byte(l.at()))
	return protocol.FirstID(l.Message.ID, l.Generation()) + ".copy-" + hex.EncodeToString(sum[:8])
}

// A plan decides about each letter in turn: send it back, skip it, or stop. It has no effects.
type plan struct {
	filter          *Filter
	maxGenerations  int
	maxFailureShare float64
	limit           int    // letters to send back in this run; 0: no limit
	to              string // Options.To

	sent    map[exact]bool   // by this job, in earlier runs too
	pending map[exact]bool   // by an earlier run that did not record the result
	away    map[key]bool     // both of them, by the topics from which they can return
	names   map[exact]string // IDs of sends
	used    map[string]exact // the same, by ID
	seen    map[key]bool     // letters of this run

	taken  int
	failed map[string]bool // message groups, by topic and name
	recent []bool          // the last results; true: failed
}

// decide returns the action for the next letter. It applies the rules in this order: done before,
// returned, filter, generation, message group, failures, limit.
func (p *plan) decide(l *Letter) decision {
	k := keyOf(l)
	before := key{k.topic, k.id, k.generation - 1}
	switch {
	case p.sent[exactOf(l)], p.sent[exactOf(l).legacy()]:
		return decision{clean, whySent}
	case p.away[before]:
		p.result(l, false)
		if p.tooMany() {
			return decision{stop, whyTooManyFail}
		}
		return decision{skip, whyReturned}
	case !p.filter.matches(l):
		return decision{skip, whyFilter}
	case k.generation >= p.maxGenerations:
		return decision{skip, whyGeneration}
	case p.failed[groupOf(l)]:
		return decision{skip, whyGroup}
	case p.tooMany():
		return decision{stop, whyTooManyFail}
	case p.limit > 0 && p.taken >= p.limit:
		return decision{stop, whyLimit}
	}
	p.taken++
	return decision{action: take}
}

// result records the result of an action.
func (p *plan) result(l *Letter, ok bool) {
	if ok {
		p.sent[exactOf(l)] = true
		p.leaves(keyOf(l), p.to)
		if p.names[exactOf(l)] == copyAs(l) {
			p.leaves(keyFor(l.Origin.Topic, copyOf(l), l.Generation()), p.to)
		}
	} else if g := groupOf(l); g != "" {
		p.failed[g] = true
	}
	if p.recent = append(p.recent, !ok); len(p.recent) > window {
		p.recent = p.recent[1:]
	}
}

// name returns the ID for sending a letter: that of sentAs, or that of copyAs if another letter of
// the job has it. A letter has the same ID each time.
func (p *plan) name(l *Letter) string {
	k := exactOf(l)
	if id, named := p.names[k]; named {
		return id
	}
	id := sentAs(l)
	if other, taken := p.used[id]; taken && other != k && other != k.legacy() {
		id = copyAs(l)
	}
	p.reserve(k, id)
	return id
}

func (p *plan) reserve(k exact, id string) {
	if p.names == nil {
		p.names, p.used = map[exact]string{}, map[string]exact{}
	}
	p.names[k] = id
	if _, taken := p.used[id]; !taken {
		p.used[id] = k
	}
}

// gone notes a letter that a run before has sent, or may have sent.
func (p *plan) gone(k exact, e Event) {
	p.leaves(k.key, e.Topic)
	if e.SentAs == "" {
		return
	}
	p.reserve(k, e.SentAs)
	p.leaves(keyFor(e.Origin, protocol.FirstID(e.SentAs, e.Generation+1), e.Generation), e.Topic)
}

// again reports whether the run has seen another letter with the ID of a letter, and notes it.
func (p *plan) again(l *Letter) bool {
	k := keyOf(l)
	before := p.seen[k]
	p.seen[k] = true
	return before
}

// leaves notes a message that was sent back to a topic, or may have been. If it fails again, it
// returns as a letter of that topic, or of its original one.
func (p *plan) leaves(k key, to string) {
	p.away[k] = true
	if k.topic != "" && to != "" {
		p.away[key{to, k.id, k.generation}] = true
	}
}

// tooMany reports whether the share of failures is above the limit.
func (p *plan) tooMany() bool {
	failures := 0
	for _, failed := range p.recent {
		if failed {
			failures++
		}
	}
	return len(p.recent) >= least && float64(failures) > p.maxFailureShare*float64(len(p.recent))
}

// groupOf returns the topic and the message group or lite topic of a letter as one name, or an empty
// string if it has none.
func groupOf(l *Letter) string {
	if l.Message.OrderKey() == "" {
		return ""
	}
	return l.Origin.Topic + "\x00" + l.Message.OrderKey()
}

// ErrTooManyFailures matches the error of a redrive that stopped because of
// Options.MaxFailureShare.
var ErrTooManyFailures = errors.New("too many messages failed, or became dead letters again")

// Options configure a redrive.
type Options struct {
	// Filter selects the dead letters. Zero means all.
	Filter Filter

	// To is the target topic. Default: the topic of each message's original send. A letter of
	// RocketMQ has no original topic, and fails without To.
	To string

	// ToGroupOnly sends each message back to the group of the dead letters alone, so the other
	// groups of its topic do not receive it again. With a Broker it excludes To. With a Queue of a
	// RocketMQ it requires To, the topic of the messages, and sends to RocketMQ's retry topic
	// %RETRY%group_To, from which the consumers of the group in To receive, too. RocketMQ creates
	// this topic at the first retry of the group. Redrive returns an error before it sends if the
	// topic is missing or if the group is FIFO. Default: false.
	ToGroupOnly bool

	// Edit changes a message before it is sent: its Body, Tag, Keys and Properties. It must not
	// change another field. If Edit returns an error, or if the changed message is invalid, the
	// message counts as failed and its dead letter stays. All groups of the topic receive the
	// message, unless ToGroupOnly is set. Edit requires Sender or ToGroupOnly. Nil means no change.
	Edit func(*tidegate.Message) error

	// Sender sends edited messages and all messages of a Queue. A redrive from a Broker without
	// Edit or with ToGroupOnly, and a redrive from a Queue with DryRun, need no Sender. Nil means
	// none.
	Sender transport.Sender

	// Journal is the path of the journal file. Redrive creates the file or continues an existing
	// one: letters that it records as sent are not sent again. Required unless DryRun is set;
	// DryRun ignores it.
	Journal string

	// Actor is the person or program that started the redrive, for the journal. Empty means
	// unknown.
	Actor string

	// DryRun reports the decisions without sending or removing a letter. From a Queue it leases and
	// releases the letters, as [List] does. On RocketMQ this costs each letter an attempt. Default:
	// false.
	DryRun bool

	// PerSecond is the maximum rate, in messages per second. Default: 100.
	PerSecond float64

	// Limit is the maximum of letters that this run sends back. Zero means no limit.
	Limit int

	// MaxGenerations is the maximum of redrives of one message, in all jobs together, 1 to 3.
	// Letters that have reached it are skipped. Default: 3.
	MaxGenerations int

	// MaxFailureShare is the largest accepted share of failures among the last 50 results, 0 to 1.
	// The run stops when there are at least 10 results and the share is larger. A message that
	// becomes a dead letter again during the job counts as a failure. Negative means 0: one failure
	// among these results stops the run. Default: 0.1.
	MaxFailureShare float64

	// OnEvent is called on the caller's goroutine for each event after it was written to the
	// journal. With DryRun it is called for intents and skips only. Letters that Filter does not
	// select have no event. Nil means none.
	OnEvent func(Event)
}

const (
	defaultPerSecond       = 100
	maxGenerations         = 3
	defaultMaxFailureShare = 0.1
	maxBatch               = 100
)

// withDefaults returns the options with defaults in the zero fields, or an error that names all
// invalid fields.
func (o Options) withDefaults(src Source) (Options, error) {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, &tidegate.Error{Op: "deadletter.Redrive", Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)})
	}
	switch s := src.(type) {
	case Broker:
		if s.Client == nil {
			fault("Broker.Client", "it is nil; give a client of broker/admin")
		}
		if o.Edit != nil && o.Sender == nil && !o.ToGroupOnly {
			fault("Options.Sender", "it is nil, and Edit needs it; give a transport, or set ToGroupOnly")
		}
	case Queue:
		if s.Transport == nil {
			fault("Queue.Transport", "it is nil; give a transport")
		}
		if err := tidegate.ValidateGroup(s.As); err != nil {
			fault("Queue.As", "%v", err)
		}
		if o.Sender == nil && !o.DryRun {
			fault("Options.Sender", "it is nil; give the transport that sends")
		}
	default:
		fault("source", "it is nil; give a Broker or a Queue")
		return o, errors.Join(errs...)
	}
	if err := tidegate.ValidateGroup(src.group()); err != nil {
		fault("Group", "%v", err)
	}
	if o.To != "" {
		if err := tidegate.ValidateTopic(o.To); err != nil {
			fault("Options.To", "%v", err)
		}
	}
	switch _, broker := src.(Broker); {
	case o.ToGroupOnly && broker && o.To != "":
		fault("Options.ToGroupOnly", "a tidegate broker sends each message to the group through its own topic; leave out To")
	case o.ToGroupOnly && !broker && o.To == "":
		fault("Options.ToGroupOnly", "a dead letter of RocketMQ does not name the topic that it was sent to; give this topic as To")
	}
	if o.Journal == "" && !o.DryRun {
		fault("Options.Journal", "it is empty; give the path of a file that outlives a crash, or set DryRun")
	}
	if !(o.PerSecond >= 0) {
		fault("Options.PerSecond", "%v is not a rate; give a number above 0, or 0 for %d", o.PerSecond, defaultPerSecond)
	}
	if o.Limit < 0 {
		fault("Options.Limit", "%d is negative; give more, or 0 for no limit", o.Limit)
	}
	if o.MaxGenerations < 0 || o.MaxGenerations > maxGenerations {
		fault("Options.MaxGenerations", "%d is not 1 to %d; give less, or 0 for %d, because a message that failed so often will fail again", o.MaxGenerations, maxGenerations, maxGenerations)
	}
	if !(o.MaxFailureShare <= 1) {
		fault("Options.MaxFailureShare", "%v is not a share; give a number above 0 and up to 1, or 0 for %v", o.MaxFailureShare, defaultMaxFailureShare)
	}
	if o.PerSecond == 0 {
		o.PerSecond = defaultPerSecond
	}
	if o.MaxGenerations == 0 {
		o.MaxGenerations = maxGenerations
	}
	if o.MaxFailureShare == 0 {
		o.MaxFailureShare = defaultMaxFailureShare
	}
	if q, ok := src.(Queue); ok {
		if lease, needed := q.lease(), time.Duration(2*maxReceive/o.PerSecond*float64(time.Second)); lease < needed {
			fault("Queue.Lease", "%v is too short for %d dead letters at %v per second; give %v or more", lease, maxReceive, o.PerSecond, needed)
		}
	}
	o.MaxFailureShare = max(o.MaxFailureShare, 0)
	return o, errors.Join(errs...)
}

// A Report counts the results of a run of a redrive.
type Report struct {
	Seen     int            `json:"seen"`              // letters read from the source
	Redriven int            `json:"redriven"`          // sent back; with DryRun, to be sent back
	Failed   int            `json:"failed"`            // not sent back; a later run tries them again
	Returned int            `json:"returned"`          // sent back, and dead letters again during the job
	Renamed  int            `json:"renamed,omitempty"` // of Redriven: another letter of the job has the ID that the message would have
	Skipped  map[string]int `json:"skipped"`           // the number of letters that each rule skipped

	// Recovered counts letters of a Broker that an earlier run sent back but did not record before
	// it crashed. Unresolved counts letters of a Queue that a crashed run still leases, or whose
	// lease ended before their removal. If it is not 0, run the job again when the leases have
	// ended.
	Recovered  int `json:"recovered"`
	Unresolved int `json:"unresolved"`

	Stopped string `json:"stopped,omitempty"` // the reason, if the run ended before the last letter
	DryRun  bool   `json:"dry_run,omitempty"`
}
