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
// random salt of its own.
type Salt struct {
	db pgdb.DB // nil in memory

	mu      sync.Mutex    // guards the fields below
	value   string        // "" until it has been read
	reading chan struct{} // closed when the goroutine that reads the value ends; nil without one
	next    time.Time     // the earliest next attempt; zero before the end of the first attempt
}

const (
	saltSQL     = `SELECT value FROM rate_limit_secrets WHERE name = 'partition'`
	saltTimeout = 250 * time.Millisecond
	saltRetry   = time.Second // the role may lack the privilege for a long time
)

// NewSalt returns the salt of a database, or a random one if db is nil.
func NewSalt(db pgdb.DB) *Salt {
	s := &Salt{db: db}
	if db == nil {
		random := make([]byte, 32)
		_, _ = rand.Read(random) // without random bits, Go ends the process
		s.value = string(random)
	}
	return s
}

// text returns the salt, or "" if it could not be read. A call waits for the first attempt, at most
// saltTimeout. Later attempts run in the background. A nil Salt returns "".
func (s *Salt) text() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	if s.value == "" && s.reading == nil && !time.Now().Before(s.next) {
		s.reading = make(chan struct{})
		go s.read(s.reading)
	}
	value := s.value
	reading := s.reading
	first := s.next.IsZero()
	s.mu.Unlock()
	if value != "" || reading == nil || !first {
		return value
	}
	<-reading
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// read reads the salt from the database, and closes done.
func (s *Salt) read(done chan struct{}) {
	value := ""
	defer func() {
		_ = recover() // a panic of the driver must not end the proxy
		s.mu.Lock()
		s.value = value
		s.reading = nil
		s.next = time.Now().Add(saltRetry)
		s.mu.Unlock()
		close(done)
	}()
	read := &pgdb.Statement{SQL: saltSQL}
	err := s.db.Run(context.Background(), saltTimeout, []*pgdb.Statement{read})
	if err == nil && read.Err == nil && read.Rows == 1 && len(read.Result) > 4 {
		value = string(read.Result[4:])
	}
}
