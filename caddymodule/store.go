package caddymodule

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// logName is the name under which stores log. A store can outlive the config that opened
// it, so it cannot use the logger of a config.
const logName = "pg_ratelimit"

// proxyKind is the end of the name of this proxy, if the configuration has no node_name.
const proxyKind = "caddy"

// store is a ratelimit.Store, and what the log has said about its failures.
type store struct {
	ratelimit.Store         // nil if the database has the history only
	db              pgdb.DB // of the store, for the policy; nil in memory
	salt            *edge.Salt
	settings        edge.StoreSettings
	outage          edge.Outage
	shown           atomic.Int32 // the highest level at which the log shows the outage
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
	s.Store, s.db, err = edge.OpenStore(settings, func(dsn string, maxConns int) (pgdb.DB, error) {
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
	s.salt = edge.NewSalt(s.db)
	return s, nil
}

// logFailed logs a failure at a level, at most once a second, and remembers the level for answersAgain.
func (s *store) logFailed(l *zap.Logger, level zapcore.Level, message string, err error, ofRequest bool) {
	dropped, ok := s.outage.Failed(err, ofRequest, time.Now())
	if s.outage.IsUnderWay() && int32(level) > s.shown.Load() {
		s.shown.Store(int32(level))
	}
	if ok {
		l.Log(level, message, zap.Error(err), zap.Int64("not_logged", dropped))
	}
}

// answersAgain logs that an outage has ended if decisions show it, at each level that showed the outage.
func (s *store) answersAgain(l *zap.Logger, decisions []ratelimit.Decision) {
	lasted, undecided, ended := s.outage.Ended(decisions, time.Now())
	if ended {
		l.Log(zapcore.Level(s.shown.Swap(int32(zapcore.InfoLevel))), "the database answers again", zap.Duration("outage", lasted), zap.Int64("requests_without_decision", undecided))
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
	s.logFailed(caddy.Log().Named(logName), zapcore.ErrorLevel, "the database failed", err, false)
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
