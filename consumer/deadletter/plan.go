package deadletter

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/tidegate/tidegate/internal/protocol"
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

// groupOf returns the topic and message group of a letter as one name, or an empty string if it has
// no group.
func groupOf(l *Letter) string {
	if l.Message.MessageGroup == "" {
		return ""
	}
	return l.Origin.Topic + "\x00" + l.Message.MessageGroup
}
