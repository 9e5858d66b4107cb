package deadletter

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
)

// The limits of classes, which bound their memory. Letters beyond a limit count in one class of
// their group in the topic, whose fingerprint is empty.
const (
	maxOfGroup  = 1000   // of a group in a topic
	maxOfBroker = 50_000 // of all topics
	maxReason   = 256    // bytes of a reason that a class keeps
)

// A Classified is a dead letter that is being stored.
type Classified struct {
	Group, Topic string // the consumer group, and the topic of the original send
	Reason       string
	Redrives     int // earlier redrives of the message
	Fingerprint  string
}

// NewLetter returns the letter of a message that has the properties of its origin.
func NewLetter(m *store.Message) Classified {
	o, _ := m.DeadLetter()
	return Classified{Group: o.Group, Topic: o.Topic, Reason: o.Reason, Redrives: o.Redrives, Fingerprint: protocol.Fingerprint(o.Topic, o.Reason)}
}

type key struct{ group, fingerprint string }

// An ClassOrigin is a consumer group and the topic of the original sends. The topic is empty for
// letters beyond a limit of classes.
type ClassOrigin struct{ Group, Topic string }

// A class is a class in memory. Its counts are changed only within the message log's Add, with the
// lock of the table.
type class struct {
	store.LetterClass
	number uint32
}

// A Classes has the classes of the dead letters of one topic. Several goroutines can call its
// methods at the same time.
type Classes struct {
	topic uint32
	all   *atomic.Int64 // number of classes of the broker, those for the rest not counted

	mu       sync.Mutex
	byKey    map[key]*class        // guarded by mu
	byNumber map[uint32]*class     // guarded by mu
	groups   map[string]int        // guarded by mu: number of classes, that for the rest not counted
	letters  map[ClassOrigin]int64 // guarded by mu: sums of the counts; none is 0
	last     uint32                // guarded by mu: the last number of a class
}

// NewClasses returns an empty table of a topic. all counts the classes of all topics.
func NewClasses(topic uint32, all *atomic.Int64) *Classes { return &Classes{topic: topic, all: all} }

// Restore adds a class that was stored.
func (t *Classes) Restore(number uint32, c *store.LetterClass) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(&class{*c, number})
}

// put adds a class. mu is held.
func (t *Classes) put(c *class) {
	if t.byKey == nil {
		t.byKey, t.byNumber, t.groups, t.letters = map[key]*class{}, map[uint32]*class{}, map[string]int{}, map[ClassOrigin]int64{}
	}
	t.count(c, c.Count)
	t.byKey[key{c.Group, c.Fingerprint}], t.byNumber[c.number] = c, c
	t.last = max(t.last, c.number)
	if c.Fingerprint != "" {
		t.groups[c.Group]++
		t.all.Add(1)
	}
}

// count adds to the sum of the letters like those of a class. mu is held.
func (t *Classes) count(c *class, n int64) {
	of := ClassOrigin{c.Group, c.Topic}
	if t.letters[of] += n; t.letters[of] == 0 {
		delete(t.letters, of)
	}
}

// drop removes a class. mu is held.
func (t *Classes) drop(c *class) {
	delete(t.byKey, key{c.Group, c.Fingerprint})
	delete(t.byNumber, c.number)
	if c.Fingerprint == "" {
		return
	}
	t.all.Add(-1)
	if t.groups[c.Group]--; t.groups[c.Group] == 0 {
		delete(t.groups, c.Group)
	}
}

// Add counts a letter that the same batch stores at a place. Only called within the message log's
// Add.
func (t *Classes) Add(w *store.Batch, p store.Place, l Classified, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byKey[key{l.Group, l.Fingerprint}]
	if c == nil && (t.groups[l.Group] >= maxOfGroup || t.all.Load() >= maxOfBroker) {
		l = Classified{Group: l.Group, Redrives: l.Redrives}
		c = t.byKey[key{group: l.Group}]
	}
	if c == nil {
		number := t.last + 1
		for t.byNumber[number] != nil || number == 0 {
			number++
		}
		c = &class{store.LetterClass{Group: l.Group, Fingerprint: l.Fingerprint, Topic: l.Topic, First: now}, number}
		t.put(c)
		t.last = number
	}
	c.Count++
	t.count(c, 1)
	c.Last, c.Reason, c.MaxRedrives = now, short(l.Reason), max(c.MaxRedrives, l.Redrives)
	w.PutClassOf(p, c.number)
	w.PutClass(t.topic, c.number, &c.LetterClass)
}

// A ClassRemoval has the number of letters that are removed, by class.
type ClassRemoval map[uint32]int64

// Remove subtracts letters that the same batch removes. Only called within the message log's Add.
func (t *Classes) Remove(w *store.Batch, removed ClassRemoval) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for number, n := range removed {
		c := t.byNumber[number]
		if c == nil {
			continue
		}
		t.count(c, -n)
		if c.Count -= n; c.Count > 0 {
			w.PutClass(t.topic, number, &c.LetterClass)
			continue
		}
		t.drop(c)
		w.DeleteClass(t.topic, number)
	}
}

// Close ends the use of the table, because its topic was deleted with all records.
func (t *Classes) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.byNumber {
		t.drop(c)
	}
	t.letters = map[ClassOrigin]int64{}
}

// AddTo adds the numbers of letters to sums.
func (t *Classes) AddTo(sums map[ClassOrigin]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of, n := range t.letters {
		sums[of] += n
	}
}

// Empty reports whether the topic has no counted letter.
func (t *Classes) Empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byNumber) == 0
}

// Numbers returns the numbers of the classes with a fingerprint, and of those whose letters can
// have any fingerprint, of all groups.
func (t *Classes) Numbers(fingerprint string) (same, rest map[uint32]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same, rest = map[uint32]bool{}, map[uint32]bool{}
	for _, c := range t.byNumber {
		switch c.Fingerprint {
		case fingerprint:
			same[c.number] = true
		case "":
			rest[c.number] = true
		}
	}
	return same, rest
}

// Of returns the classes of a group, the largest first, and the one for the rest, whose count is 0
// if there is none.
func (t *Classes) Of(group string) (list []store.LetterClass, rest store.LetterClass) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.byKey {
		switch {
		case c.Group != group:
		case c.Fingerprint == "":
			rest = c.LetterClass
		default:
			list = append(list, c.LetterClass)
		}
	}
	slices.SortFunc(list, CompareClasses)
	return list, rest
}

// CompareClasses orders classes by their counts, the largest first, and then by fingerprint.
func CompareClasses(x, y store.LetterClass) int {
	return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Fingerprint, y.Fingerprint))
}

// short bounds a reason, and keeps it valid UTF-8.
func short(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	n := maxReason
	for n > 0 && reason[n]&0xC0 == 0x80 { // not within a character
		n--
	}
	return reason[:n]
}
