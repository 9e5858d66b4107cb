package login

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"time"
)

const (
	// Idle is the time without a request after which a session ends.
	Idle = 30 * time.Minute

	// Longest is the longest time of a session.
	Longest = 12 * time.Hour

	maxOfKey = 20
	maxInAll = 1000

	// halfSize is the size of each half of a token in bytes.
	halfSize = 16
)

// A Digest identifies a key with its secrets and rules.
type Digest [sha256.Size]byte

// An ID is the hash of both halves of a token. The token cannot be computed from it.
type ID [sha256.Size]byte

// IDOf returns the ID of two halves, and false if a text is not a half of a token.
func IDOf(a, b string) (ID, bool) {
	x, errA := base64.RawURLEncoding.DecodeString(a)
	y, errB := base64.RawURLEncoding.DecodeString(b)
	if errA != nil || errB != nil || len(x) != halfSize || len(y) != halfSize {
		return ID{}, false
	}
	return sha256.Sum256(append(x, y...)), true
}

// A session is one login of a key.
type session struct {
	key         string
	digest      Digest
	begun, used time.Time
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.used) >= Idle || now.Sub(s.begun) >= Longest
}

// Sessions are in memory, so that a restart ends them. Goroutines may share the value.
type Sessions struct {
	mu   sync.Mutex
	byID map[ID]*session // guarded by mu
}

// New returns Sessions without any.
func New() *Sessions { return &Sessions{byID: map[ID]*session{}} }

// Begin begins a session of a key and returns the two halves of its token. If the key or the server
// has too many sessions, the one that was not used for the longest time ends.
func (s *Sessions) Begin(key string, digest Digest, now time.Time) (a, b string, expires time.Time) {
	token := make([]byte, 2*halfSize)
	_, _ = rand.Read(token) // it never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(key, now)
	s.byID[sha256.Sum256(token)] = &session{key: key, digest: digest, begun: now, used: now}
	a, b = base64.RawURLEncoding.EncodeToString(token[:halfSize]), base64.RawURLEncoding.EncodeToString(token[halfSize:])
	return a, b, now.Add(Longest)
}

// makeRoom removes sessions that are over, and those above the limits. mu is held.
func (s *Sessions) makeRoom(key string, now time.Time) {
	own := 0
	var oldest, oldestOwn ID
	for id, x := range s.byID {
		if x.over(now) {
			delete(s.byID, id)
			continue
		}
		if before := s.byID[oldest]; before == nil || x.used.Before(before.used) {
			oldest = id
		}
		if x.key == key {
			own++
			if before := s.byID[oldestOwn]; before == nil || x.used.Before(before.used) {
				oldestOwn = id
			}
		}
	}
	switch {
	case own >= maxOfKey:
		delete(s.byID, oldestOwn)
	case len(s.byID) >= maxInAll:
		delete(s.byID, oldest)
	}
}

// Use returns the key of a session and the time at which the session ends, and postpones its end by
// idleness. ok is false if there is no such session, or if current returns another digest for the
// key than at the login; it returns false for a key that does not exist.
func (s *Sessions) Use(id ID, current func(key string) (Digest, bool), now time.Time) (key string, expires time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byID[id]
	if x == nil {
		return "", time.Time{}, false
	}
	if digest, known := current(x.key); !known || digest != x.digest || x.over(now) {
		delete(s.byID, id)
		return "", time.Time{}, false
	}
	x.used = now
	return x.key, x.begun.Add(Longest), true
}

// End ends a session, and returns false if there is none.
func (s *Sessions) End(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byID[id]
	delete(s.byID, id)
	return ok
}
