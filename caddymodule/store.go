package caddymodule

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// logName is the name under which stores log. A store can outlive the config that opened
// it, so it cannot use the logger of a config.
const logName = "pg_ratelimit"

// proxyKind is the end of the name of this proxy, if the configuration has no node_name.
const proxyKind = "caddy"

// store is a ratelimit.Store, and what the log has said about its failures.
type store struct {
	ratelimit.Store             // nil if the database has the history only
	db              postgres.DB // of the store, for the policy; nil in memory
	settings        edge.StoreSettings
	failures        edge.Sampler
	failing         atomic.Bool // the database did not answer, and has not answered since
	closed          atomic.Bool
	warned          atomic.Bool // that a DSN in the configuration holds a password
}

// openStore opens a store for resolved settings. It does not touch the network yet. The DSN
// may contain a password, so an error contains shown instead.
func openStore(settings edge.StoreSettings, shown string) (*store, error) {
	if settings.DSN == edge.MemoryDSN {
		caddy.Log().Named(logName).Info(edge.MemoryNotice)
	}
	s := &store{settings: settings}
	var err error
	s.Store, s.db, err = edge.OpenStore(settings, func(dsn string, maxConns int) (postgres.DB, error) {
		db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: maxConns})
		var field *ratelimit.FieldError
		if errors.As(err, &field) {
			return nil, &ratelimit.FieldError{Field: field.Field, Value: shown, Want: field.Want}
		}
		return db, err
	}, edge.NodeOptions{Kind: proxyKind, Version: version(), Notice: s.logNotice}, s.logFailure)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// setFailing remembers that the database does not answer, if err is that. It is not if a
// single row is locked, or if a decision came too late.
func (s *store) setFailing(err error) {
	if errors.Is(err, ratelimit.ErrUnavailable) && !s.failing.Load() {
		s.failing.Store(true)
	}
}

// logNotice logs that limits are paused, or not any more.
func (s *store) logNotice(text string) {
	if !s.closed.Load() {
		caddy.Log().Named(logName).Warn(text)
	}
}

// logFailure logs a failure that no request sees, such as that of a cleanup.
func (s *store) logFailure(err error) {
	if s.closed.Load() {
		return
	}
	s.setFailing(err)
	if dropped, ok := s.failures.Next(time.Now()); ok {
		caddy.Log().Named(logName).Error("the database failed", zap.Error(err), zap.Int64("not_logged", dropped))
	}
}

// Prepare connects, in the background.
func (s *store) Prepare() { edge.Prepare(s.Store) }

// Close closes the store. From then on, the store logs nothing.
func (s *store) Close() {
	s.closed.Store(true)
	if s.Store == nil {
		s.db.Close()
		return
	}
	s.Store.Close()
}
