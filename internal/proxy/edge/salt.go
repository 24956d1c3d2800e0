package edge

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Salt keeps keys from being guessed from their digests. All proxies that count in a database have the same one, which the
// migration has made. Of counters in memory, each process has its own. It is read when it is first needed.
type Salt struct {
	db pgdb.DB // nil in memory

	mu      sync.Mutex // guards what follows
	value   string     // "" is not read yet
	reading bool       // a goroutine reads it
	next    time.Time  // when to read it, after a failure
}

const (
	saltSQL     = `SELECT value FROM rate_limit_secrets WHERE name = 'partition'`
	saltTimeout = 2 * time.Second
	saltRetry   = time.Second // its role may lack the right to read it
)

// NewSalt returns the salt of a database, or for nil that of counters in memory.
func NewSalt(db pgdb.DB) *Salt {
	s := &Salt{db: db}
	if db == nil {
		random := make([]byte, 32)
		_, _ = rand.Read(random) // without random bits the operating system ends the process
		s.value = string(random)
	}
	return s
}

// text is the salt, or "" as long as it is not known. A nil Salt is never known.
func (s *Salt) text() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == "" && !s.reading && !time.Now().Before(s.next) {
		s.reading = true
		go s.read()
	}
	return s.value
}

// read reads the salt.
func (s *Salt) read() {
	value := ""
	defer func() {
		_ = recover() // a panic of the driver must not end the proxy
		s.mu.Lock()
		s.value = value
		s.reading = false
		s.next = time.Now().Add(saltRetry)
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), saltTimeout)
	defer cancel()
	read := &pgdb.Statement{SQL: saltSQL}
	if s.db.Run(ctx, []*pgdb.Statement{read}) == nil && read.Err == nil && read.Rows == 1 && len(read.Result) > 4 {
		value = string(read.Result[4:])
	}
}
