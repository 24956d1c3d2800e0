package caddymodule

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// stores are the stores in use, shared by all handlers and from one config to
// the next: counted, and closed after the last is done with them.
var stores = caddy.NewUsagePool()

// storeKey is what a store is made of. Where any of it changes, another store
// takes over.
type storeKey struct {
	dsn      string // "memory" with nothing else, or a Postgres address
	maxConns int
	migrate  bool
	cleanup  float64 // as ratelimit.PostgresOptions has it
	blocked  int     // likewise
}

const (
	// memoryDSN counts in this process.
	memoryDSN = "memory"

	// wantDSN is the beginning of what pgxdb.Open wants, and the other choice.
	wantDSN = "a Postgres URL or key=value pairs, or memory"

	// source is the name under which stores write to the log. They outlive the
	// config that made them, and so cannot have the logger of one.
	source = "pg_ratelimit"
)

// store is a ratelimit.Store with what its users know of its health.
type store struct {
	ratelimit.Store
	failures edge.Sampler
	failing  atomic.Bool // a failure was logged, and no success since
	closed   atomic.Bool
}

// open makes a store. It does not touch the network yet. shown stands for the
// address in an error.
func (k storeKey) open(shown string) (caddy.Destructor, error) {
	if k.dsn == memoryDSN {
		caddy.Log().Named(source).Info("dsn is memory: limits are counted in this process only")
		return &store{Store: ratelimit.NewMemory(0, nil)}, nil
	}
	db, err := pgxdb.Open(k.dsn, pgxdb.Options{MaxConns: k.maxConns})
	if err != nil {
		var field *ratelimit.FieldError
		if errors.As(err, &field) {
			return nil, &ratelimit.FieldError{Field: field.Field, Value: shown, Want: field.Want}
		}
		return nil, err
	}
	s := &store{}
	o := ratelimit.PostgresOptions{
		DisableMigration: !k.migrate, CleanupProbability: k.cleanup, MaxBlockedKeys: k.blocked, Report: s.report,
	}
	if k.maxConns < defaultFlights {
		o.Flights = k.maxConns
	}
	s.Store = ratelimit.NewPostgres(db, o)
	return s, nil
}

// defaultFlights is how many connections a store uses at once for decisions,
// unless it may have fewer.
const defaultFlights = 4

// prepare starts, in the background, to connect and to make the tables.
func (s *store) prepare() {
	if p, ok := s.Store.(*ratelimit.Postgres); ok {
		p.Prepare()
	}
}

// report logs failures of what a store does besides answering.
func (s *store) report(err error) {
	if s.closed.Load() {
		return
	}
	if dropped, ok := s.failures.Next(time.Now()); ok {
		s.failing.Store(true)
		caddy.Log().Named(source).Error("the database failed", zap.Error(err), zap.Int64("not_logged", dropped))
	}
}

// Destruct closes the store; caddy.UsagePool calls it.
func (s *store) Destruct() error {
	s.closed.Store(true)
	s.Close()
	return nil
}

// migrationSwitch is the environment variable that the npm library has for the
// same purpose.
const migrationSwitch = "PG_RATELIMIT_DISABLE_AUTO_MIGRATE"

// migrationDisabled reads the switch.
func migrationDisabled() (bool, error) {
	text := os.Getenv(migrationSwitch)
	if text == "" {
		return false, nil
	}
	disabled, err := strconv.ParseBool(text)
	if err != nil {
		return false, &ratelimit.FieldError{Field: "environment variable " + migrationSwitch, Value: text, Want: "true or false"}
	}
	return disabled, nil
}

// defaultDSN is the environment variable for where no DSN is configured.
const defaultDSN = "DATABASE_URL"

// resolveDSN fills in the placeholders of a configured DSN, or takes the
// environment's. shown is what an error may show of it.
func resolveDSN(configured string) (dsn, shown string, err error) {
	if configured == "" {
		dsn = os.Getenv(defaultDSN)
		if dsn == "" {
			return "", "", &ratelimit.FieldError{Field: "dsn", Want: wantDSN +
				": here, in the global option pg_ratelimit, or in the environment variable " + defaultDSN}
		}
		return dsn, "$" + defaultDSN, nil
	}
	shown = showDSN(configured)
	// What is no placeholder that Caddy knows is left alone: a brace may be
	// part of a password.
	dsn, err = caddy.NewReplacer().ReplaceOrErr(configured, true, false)
	if err != nil {
		return "", "", &ratelimit.FieldError{Field: "dsn", Value: shown, Want: wantDSN + ": " + err.Error()}
	}
	return dsn, shown, nil
}

// showDSN is as much of a DSN as can hold no password: all of it where it is
// one word or nothing but a placeholder, else its scheme.
func showDSN(dsn string) string {
	inside, isPlaceholder := strings.CutPrefix(dsn, "{")
	inside, closed := strings.CutSuffix(inside, "}")
	if isPlaceholder && closed && !strings.ContainsAny(inside, "{} @=") {
		return dsn
	}
	if !strings.ContainsAny(dsn, "{}@= '\"/?") {
		return dsn
	}
	if scheme, _, isURL := strings.Cut(dsn, "://"); isURL && !strings.ContainsAny(scheme, "{}@= '\"/?") {
		return scheme + "://…"
	}
	return "…"
}
