package respond

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Salt is a secret that keeps clients from guessing keys from their digests. All proxies on a database share
// the salt that the migration creates, and read it on first use. With counters in memory, each process has a
// random one.
type Salt struct {
	db pgdb.DB // nil in memory

	mu    sync.Mutex // guards the fields below
	value string     // "" until it has been read
	next  time.Time  // the earliest next attempt, after a failure
}

const (
	saltSQL     = `SELECT value FROM rate_limit_secrets WHERE name = 'partition'`
	saltTimeout = 250 * time.Millisecond
	saltRetry   = 10 * time.Second // the role may lack the privilege for a long time
)

// NewSalt returns the salt of a database, or a random one if db is nil.
func NewSalt(db pgdb.DB) *Salt {
	s := &Salt{db: db}
	if db == nil {
		random := make([]byte, 32)
		_, _ = rand.Read(random) // without random bits the operating system ends the process
		s.value = string(random)
	}
	return s
}

// text returns the salt, or "" if it could not be read. It waits for an attempt, at most saltTimeout. A nil
// Salt returns "".
func (s *Salt) text() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value != "" || time.Now().Before(s.next) {
		return s.value
	}
	ctx, cancel := context.WithTimeout(context.Background(), saltTimeout)
	defer cancel()
	read := &pgdb.Statement{SQL: saltSQL}
	err := s.db.Run(ctx, []*pgdb.Statement{read})
	if err == nil && read.Err == nil && read.Rows == 1 && len(read.Result) > 4 {
		s.value = string(read.Result[4:])
	}
	s.next = time.Now().Add(saltRetry)
	return s.value
}
