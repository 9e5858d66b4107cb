package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/filelock"
	"github.com/tidegate/tidegate/internal/protocol"
)

// The events of a journal. Its first line is the job of the command.
const (
	leaseEvent  = "lease"  // receives under way lease messages until a time
	intentEvent = "intent" // the messages are about to be sent
	sentEvent   = "sent"   // the target has the messages
	ackedEvent  = "acked"  // the source has removed them
	endEvent    = "end"    // the run leases no message
)

// events are the events of all lines.
var events = []string{"job", leaseEvent, intentEvent, sentEvent, ackedEvent, endEvent}

// A journalEntry is one line of a journal.
type journalEntry struct {
	Event    string          `json:"event"`
	Messages []journalRecord `json:"messages,omitempty"`
	Until    time.Time       `json:"until,omitzero"` // of lease
}

// A journalRecord identifies a message of an entry.
type journalRecord struct {
	carryKey
	As string `json:"as,omitempty"` // of intent: its ID at the target, if it is another one
}

// A carryKey identifies a message of the source. Two messages with one ID differ in At.
type carryKey struct {
	ID string `json:"id"`
	At string `json:"at,omitempty"`
}

// keyOf returns the key of a delivery, which is the same for each redelivery. places means that the
// queue and the offset stay the same; otherwise the time of the send is a part of the key.
func keyOf(d *tidegate.Delivery, places bool) carryKey {
	switch {
	case places && d.Queue >= 0 && d.Offset >= 0:
		return carryKey{d.ID, strconv.Itoa(d.Queue) + "/" + strconv.FormatInt(d.Offset, 10)}
	case d.BornAt.IsZero():
		return carryKey{ID: d.ID}
	}
	return carryKey{d.ID, "born " + strconv.FormatInt(d.BornAt.UnixMilli(), 10)}
}

// newID returns the ID at the target of a message whose own ID another message has there. It
// depends on the key alone.
func (k carryKey) newID() string {
	const suffix, most = ".copy-", protocol.MaxMessageIDLength
	sum := sha256.Sum256([]byte(k.ID + "\x00" + k.At))
	id := k.ID
	if len(id)+len(suffix)+16 > most {
		id = hex.EncodeToString(sum[:])
	}
	return id + suffix + hex.EncodeToString(sum[:8])
}

// maxUsed is the number of IDs at the target that a journal remembers. A broker remembers no more
// of a topic.
const maxUsed = 262_144

// A carryJournal records the messages that the target has and the source still can deliver. Several
// goroutines may use it.
type carryJournal struct {
	*filelock.Journal
	mu     sync.Mutex
	sent   map[carryKey]bool   // and not acknowledged
	names  map[carryKey]string // IDs at the target of messages that were not acknowledged
	used   map[string]string   // IDs at the target, with key.At of their messages
	order  []string            // of used, a ring
	next   int                 // in order
	leased time.Time           // no message of an earlier run is leased after it
	until  time.Time           // of the last lease entry
}

// openCarryJournal reads a journal and locks it for this process. It removes a last line that a
// crash has cut off.
func openCarryJournal(path string) (j *carryJournal, err error) {
	j = &carryJournal{sent: map[carryKey]bool{}, names: map[carryKey]string{}, used: map[string]string{}}
	j.Journal, err = filelock.OpenJournal(path, ". The source removes the messages in hand that the target has; a later run carries the others", func(line []byte) error {
		var e journalEntry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		if !slices.Contains(events, e.Event) {
			return fmt.Errorf("its event is %q", e.Event)
		}
		j.apply(e)
		return nil
	})
	j.leased, j.until = j.until, time.Time{}
	return j, err
}

// LeasedUntil returns the time until which an earlier run that did not end in order leases
// messages.
func (j *carryJournal) LeasedUntil() time.Time { return j.leased }

// apply changes the state by an entry.
func (j *carryJournal) apply(e journalEntry) {
	switch e.Event {
	case leaseEvent:
		j.until = e.Until
	case endEvent:
		j.until = time.Time{}
	}
	for _, m := range e.Messages {
		switch e.Event {
		case intentEvent:
			j.reserve(m.carryKey, m.As)
		case sentEvent:
			j.sent[m.carryKey] = true
			if _, named := j.names[m.carryKey]; !named {
				j.reserve(m.carryKey, "")
			}
		case ackedEvent:
			delete(j.sent, m.carryKey)
			delete(j.names, m.carryKey)
		}
	}
}

// reserve gives a message its ID at the target; "" is its own.
func (j *carryJournal) reserve(k carryKey, as string) {
	if as == "" {
		as = k.ID
	}
	j.names[k] = as
	if _, known := j.used[as]; known {
		return
	}
	j.used[as] = k.At
	if len(j.order) < maxUsed {
		j.order = append(j.order, as)
		return
	}
	delete(j.used, j.order[j.next])
	j.order[j.next] = as
	j.next = (j.next + 1) % maxUsed
}

// Sent reports whether the target has a message that the source has not removed.
func (j *carryJournal) Sent(k carryKey) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sent[k]
}

// Name returns the ID at the target of each message, and records it before it is used. A message
// has its own ID, except if the job has given that to another message, or if again is true. The ID
// of a message stays the same, also in later runs.
func (j *carryJournal) Name(messages []carryKey, again []bool) ([]string, error) {
	j.mu.Lock()
	names := make([]string, len(messages))
	var fresh []journalRecord
	for i, k := range messages {
		as, known := j.names[k]
		if !known {
			as = k.ID
			if at, taken := j.used[as]; again[i] || taken && at != k.At {
				as = k.newID()
			}
			r := journalRecord{carryKey: k}
			if as != k.ID {
				r.As = as
			}
			fresh = append(fresh, r)
			j.reserve(k, r.As)
		}
		names[i] = as
	}
	j.mu.Unlock()
	return names, j.record(journalEntry{Event: intentEvent, Messages: fresh}, true)
}

// Lease records that a receive leases messages until a time.
func (j *carryJournal) Lease(until time.Time) error {
	const ahead = 5 * time.Second // a run writes no more than one line in this time
	j.mu.Lock()
	covered := !until.After(j.until)
	if !covered {
		j.until = until.Add(ahead)
	}
	until = j.until
	j.mu.Unlock()
	if covered {
		return nil
	}
	return j.record(journalEntry{Event: leaseEvent, Until: until.UTC()}, false)
}

// End records that the run leases no message.
func (j *carryJournal) End() error { return j.record(journalEntry{Event: endEvent}, false) }

// mark records the event sent or acked of messages.
func (j *carryJournal) mark(event string, messages []carryKey, sync bool) error {
	e := journalEntry{Event: event}
	for _, k := range messages {
		e.Messages = append(e.Messages, journalRecord{carryKey: k})
	}
	j.mu.Lock()
	j.apply(e)
	j.mu.Unlock()
	return j.record(e, sync)
}

// record appends an entry and returns when it is on disk, if sync is set. It writes no entry
// without messages or a time.
func (j *carryJournal) record(e journalEntry, sync bool) error {
	if len(e.Messages) == 0 && slices.Contains([]string{intentEvent, sentEvent, ackedEvent}, e.Event) {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return j.Append(append(line, '\n'), sync)
}
