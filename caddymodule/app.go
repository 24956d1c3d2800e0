package caddymodule

import (
	"fmt"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds the defaults of all pg_ratelimit handlers, and the databases that
// they count in: handlers with the same `dsn` share one pool of connections,
// which also lasts from one config to the next.
type App struct {
	// Where handlers count that do not say it: a Postgres address, as a URL
	// (`postgres://user@host/database`) or as `key=value` pairs, or `memory`
	// for this process alone. May hold placeholders such as `{env.NAME}`.
	// Default: the environment variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// The most connections to each database, from 1 to 1000. A few are enough:
	// one carries thousands of decisions a second. Default: the DSN's
	// pool_max_conns, or 8.
	MaxConns int `json:"max_conns,omitempty"`

	// Make the tables, or bring them up to date, on first use. If false, or if
	// the environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE is true, that
	// is left to you. Default: true.
	AutoMigrate *bool `json:"auto_migrate,omitempty"`

	// How likely a statement is followed, in the background, by the deletion
	// of expired rows: from 0 (never) to 1 (always). Default: 0.1.
	CleanupProbability *float64 `json:"cleanup_probability,omitempty"`

	// Refuse without asking the database while it is known what it would say:
	// a key whose quota is used up stays so until it is due to come back. Only
	// a quota that another process gives back (a refund, a reset) is noticed up
	// to a second late. Default: true.
	InMemoryBlock *bool `json:"in_memory_block,omitempty"`

	// The most used-up keys that are remembered for it, from 1 to 10,000,000.
	// Default: 10,000.
	MaxBlockedKeys int `json:"max_blocked_keys,omitempty"`

	metrics *metrics
	migrate bool
	used    map[storeKey]*store
	longest time.Duration // of the handlers' timeouts
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "pg_ratelimit", New: func() caddy.Module { return new(App) }}
}

const (
	maxMaxConns     = 1000
	wantMaxConns    = "a whole number from 1 to 1000"
	wantCleanup     = "a number from 0 to 1"
	maxBlockedKeys  = 10000000
	wantBlockedKeys = "a whole number from 1 to 10000000"
)

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	a.used = map[storeKey]*store{}
	if err := a.check(); err != nil {
		return err
	}
	disabled, err := migrationDisabled()
	if err != nil {
		return err
	}
	a.migrate = !disabled && (a.AutoMigrate == nil || *a.AutoMigrate)
	a.metrics, err = newMetrics(ctx.GetMetricsRegistry())
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// check returns a *ratelimit.FieldError for the first value out of its range.
func (a *App) check() error {
	if a.MaxConns < 0 || a.MaxConns > maxMaxConns {
		return &ratelimit.FieldError{Field: "max_conns", Value: strconv.Itoa(a.MaxConns), Want: wantMaxConns}
	}
	if p := a.CleanupProbability; p != nil && !(*p >= 0 && *p <= 1) {
		return &ratelimit.FieldError{Field: "cleanup_probability", Value: strconv.FormatFloat(*p, 'g', -1, 64), Want: wantCleanup}
	}
	if a.MaxBlockedKeys < 0 || a.MaxBlockedKeys > maxBlockedKeys {
		return &ratelimit.FieldError{Field: "max_blocked_keys", Value: strconv.Itoa(a.MaxBlockedKeys), Want: wantBlockedKeys}
	}
	return nil
}

// store returns the store for a handler's DSN; "" is the app's.
func (a *App) store(dsn string, timeout time.Duration) (*store, error) {
	if dsn == "" {
		dsn = a.DSN
	}
	dsn, shown, err := resolveDSN(dsn)
	if err != nil {
		return nil, err
	}
	key := a.key(dsn)
	a.longest = max(a.longest, timeout)
	if s := a.used[key]; s != nil {
		return s, nil
	}
	value, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) { return key.open(shown) })
	if err != nil {
		return nil, err
	}
	s := value.(*store)
	a.used[key] = s
	return s, nil
}

// key is what a store for the DSN is made of.
func (a *App) key(dsn string) storeKey {
	if dsn == memoryDSN {
		return storeKey{dsn: dsn}
	}
	key := storeKey{dsn: dsn, maxConns: pgxdb.MaxConns(dsn, a.MaxConns), migrate: a.migrate, blocked: a.MaxBlockedKeys}
	if p := a.CleanupProbability; p != nil {
		key.cleanup = *p
		if *p == 0 {
			key.cleanup = -1
		}
	}
	if a.InMemoryBlock != nil && !*a.InMemoryBlock {
		key.blocked = -1
	}
	return key
}

// Start connects to the databases, in the background: a config that is only
// validated, or fails to load, touches none.
func (a *App) Start() error {
	for _, s := range a.used {
		s.prepare()
	}
	return nil
}

// Stop does nothing: requests may still be under way. See Cleanup.
func (a *App) Stop() error { return nil }

// linger is how long a config's stores outlast it. Its last requests may
// still be on their way to a handler; and a config that comes back within that
// time finds its connections, and `memory` its counts.
const linger = 30 * time.Second

// Cleanup lets go of the stores, once no request of this config can be waiting
// for a decision.
func (a *App) Cleanup() error {
	a.release(linger + a.longest)
	return nil
}

func (a *App) release(after time.Duration) {
	for key := range a.used {
		time.AfterFunc(after, func() {
			if _, err := stores.Delete(key); err != nil {
				caddy.Log().Named(source).Error("closing a database", zap.Error(err))
			}
		})
	}
	a.used = nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
