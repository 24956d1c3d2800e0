package pgxdb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// renewal sets what has changed in the settings of a new connection, such as the password.
type renewal func(context.Context, *pgx.ConnConfig) error

// errUnused keeps the pool from connecting before the first call.
var errUnused = errors.New("pgxdb: no call yet")

// callKey marks the context of a call before the pool is used. When the pool connects by itself, its context
// has no such value.
type callKey struct{}

// beforeConnect renews the settings of a new connection. Connections to another server or database, or of
// another user, end when they are free.
func (d *DB) beforeConnect(ctx context.Context, c *pgx.ConnConfig) error {
	if !d.used.Load() && ctx.Value(callKey{}) == nil {
		return errUnused
	}
	if err := d.renew(ctx, c); err != nil {
		return err
	}
	destination := fmt.Sprintf("%q %d %q %q", c.Host, c.Port, c.Database, c.User)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.destination != "" && destination != d.destination {
		d.timeline = ""
		d.pool.Reset()
	}
	d.destination = destination
	return nil
}

// moveTo changes the settings of a connection so that it connects to another server.
func moveTo(c *pgx.ConnConfig, host string, port int) {
	forHost := func(settings *tls.Config) *tls.Config {
		if settings != nil && settings.ServerName != "" {
			settings = settings.Clone()
			settings.ServerName = host
		}
		return settings
	}
	var same []*pgconn.FallbackConfig // the other ways to connect to the first server
	for _, f := range c.Fallbacks {
		if f.Host == c.Host && f.Port == c.Port {
			same = append(same,
				&pgconn.FallbackConfig{Host: host, Port: uint16(port), TLSConfig: forHost(f.TLSConfig)})
		}
	}
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = host, uint16(port), forHost(c.TLSConfig), same
}

// severalHosts reports whether there is another server to connect to. The same server occurs twice if TLS
// is tried first.
func severalHosts(c *pgx.ConnConfig) bool {
	return slices.ContainsFunc(c.Fallbacks,
		func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
}

// checkTimeline returns an error for a primary that another one has replaced, and otherwise records the
// timeline. It accepts a server that does not return its timeline.
func (d *DB) checkTimeline(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, pg.TimelineSQL).ReadAll()
	if err != nil && serverError(err).Code == "" {
		return err
	}
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return nil
	}
	name := string(results[0].Rows[0][0])
	d.mu.Lock()
	defer d.mu.Unlock()
	if pg.EarlierTimeline(name, d.timeline) {
		return errors.New(pg.Replaced)
	}
	if pg.EarlierTimeline(d.timeline, name) {
		d.pool.Reset() // connections to the primary that was replaced
	}
	d.timeline = name
	return nil
}

// logins records how the latest login ended. It is a tracer, which pgx calls for each login, including
// logins that continue after their calls have ended.
type logins struct {
	ended atomic.Pointer[error] // the error of the latest login; nil before the first login
}

var _ pgx.ConnectTracer = (*logins)(nil)

// TraceConnectStart implements pgx.ConnectTracer.
func (l *logins) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

// TraceConnectEnd implements pgx.ConnectTracer.
func (l *logins) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	l.ended.Store(&data.Err)
}
