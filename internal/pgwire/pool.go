package pgwire

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options tune a Pool. The zero value of each field means its default, or where
// the connection string has the parameter of pgx's pool, that.
type Options struct {
	// MaxConns bounds the connections, those being made included; not those that
	// are closed as soon as the server has been asked to cancel what they do.
	// Default 8.
	MaxConns int

	// IdleTimeout is how long an unused connection is kept. Default 5 minutes.
	IdleTimeout time.Duration

	// MaxLifetime is how long any connection is used, give or take a tenth.
	// Default 1 hour.
	MaxLifetime time.Duration

	// HealthCheckAfter is how long a connection may have been idle and still be
	// used without asking the server for a sign of life. That the server
	// closed it is noticed in any case. Default 30 seconds.
	HealthCheckAfter time.Duration

	// ApplicationName is shown in the server's lists where neither the
	// connection string nor PGAPPNAME has a name.
	ApplicationName string

	// Logger is told what an operator should know. Nil drops it.
	Logger func(message string)

	// LookupEnv replaces os.LookupEnv.
	LookupEnv func(name string) (value string, ok bool)
}

var _ ratelimit.DB = (*Pool)(nil)

// Pool is a ratelimit.DB over a bounded number of connections.
type Pool struct {
	cfg   *config
	o     Options
	born  time.Time
	hosts hostMemory

	mu        sync.Mutex
	closed    bool
	idle      []*conn // the last is the one used last, and next
	open      int     // connections: idle, lent, and being made
	dials     []*dial // those being made, oldest first
	waiting   []*waiter
	lastError string    // of the last dial, if it failed
	failed    time.Time // when a dial last did
	reaper    *time.Timer
	cancels   int // requests to cancel under way
	unnamed   bool
	strikes   int // times that a pooler had lost our prepared statements
}

// Open reads a connection string (see the package's comment) and returns a pool
// that connects when it is first used. The environment and certificates are
// read now. An error names the parameter, and never holds a password.
func Open(dsn string, o Options) (*Pool, error) {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	if o.Logger == nil {
		o.Logger = func(string) {}
	}
	if o.MaxConns < 0 || o.IdleTimeout < 0 || o.MaxLifetime < 0 || o.HealthCheckAfter < 0 {
		return nil, errors.New("pgwire: MaxConns, IdleTimeout, MaxLifetime and HealthCheckAfter must not be negative")
	}
	cfg, err := parseConfig(dsn, o.LookupEnv, o.Logger)
	if err != nil && strings.Contains(err.Error(), "password=") {
		err = errors.New(`dsn: the value of a parameter holds "password=", as if a separator were missing before it`)
	}
	if err != nil {
		return nil, fmt.Errorf("pgwire: %w", err)
	}
	o.MaxConns = int(firstSet(int64(o.MaxConns), int64(cfg.pool.maxConns), 8))
	o.IdleTimeout = time.Duration(firstSet(int64(o.IdleTimeout), int64(cfg.pool.idleTimeout), int64(5*time.Minute)))
	o.MaxLifetime = time.Duration(firstSet(int64(o.MaxLifetime), int64(cfg.pool.maxLifetime), int64(time.Hour)))
	o.HealthCheckAfter = time.Duration(firstSet(int64(o.HealthCheckAfter), 0, int64(30*time.Second)))
	if o.ApplicationName != "" && cfg.settings["application_name"] == "" {
		cfg.settings["application_name"] = o.ApplicationName
	}
	return &Pool{cfg: cfg, o: o, born: time.Now(), unnamed: cfg.unnamed}, nil
}

// firstSet is the first of three that is not 0.
func firstSet(a, b, c int64) int64 {
	if a != 0 {
		return a
	}
	if b != 0 {
		return b
	}
	return c
}
