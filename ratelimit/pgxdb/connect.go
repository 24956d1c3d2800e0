package pgxdb

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
)

// parse reads the settings of a DSN, and the files that it names.
func parse(dsn string) (*pgconn.Config, error) {
	fresh, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("pgxdb: dsn: " + parseFailure(err))
	}
	c := &fresh.ConnConfig.Config
	return c, check(c)
}

// destination is where the connections of a pool go to.
type destination struct {
	host           string
	port           uint16
	database, user string
}

func destinationOf(c *pgconn.Config) destination {
	return destination{c.Host, c.Port, c.Database, c.User}
}

// renew has a new connection use the DSN, the certificates and the passwords that were renewed. Connections to another
// server or database, or of another user, end when they are free.
func (d *DB) renew(config *pgconn.Config) error {
	if d.renewed == nil {
		return nil
	}
	now, err := d.renewed()
	if err != nil {
		return err
	}
	config.Host, config.Port, config.Database, config.User = now.Host, now.Port, now.Database, now.User
	config.TLSConfig, config.Password, config.Fallbacks = now.TLSConfig, now.Password, now.Fallbacks
	to := destinationOf(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	if to != d.latest {
		d.latest = to
		d.timeline = ""
		d.pool.Reset()
	}
	return nil
}

// moveTo makes the settings of a connection to a server those of a connection to another one.
func moveTo(c *pgconn.Config, host string, port int) {
	at := func(settings *tls.Config) *tls.Config {
		if settings == nil || settings.ServerName == "" {
			return settings
		}
		settings = settings.Clone()
		settings.ServerName = host
		return settings
	}
	var same []*pgconn.FallbackConfig // the other ways to connect to the first server
	for _, f := range c.Fallbacks {
		if f.Host == c.Host && f.Port == c.Port {
			same = append(same, &pgconn.FallbackConfig{Host: host, Port: uint16(port), TLSConfig: at(f.TLSConfig)})
		}
	}
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = host, uint16(port), at(c.TLSConfig), same
}

// severalHosts reports whether there is another server to connect to. The same one occurs twice if
// TLS is tried first.
func severalHosts(config *pgconn.Config) bool {
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			return true
		}
	}
	return false
}

var errReplaced = errors.New(session.Replaced)

// checkTimeline refuses a primary that another one has replaced. A server that does not tell its
// timeline is not refused.
func (d *DB) checkTimeline(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, session.TimelineSQL).ReadAll()
	if err != nil && serverError(err) == nil {
		return err
	}
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return nil
	}
	name := string(results[0].Rows[0][0])
	d.mu.Lock()
	defer d.mu.Unlock()
	if session.Earlier(name, d.timeline) {
		return errReplaced
	}
	if session.Earlier(d.timeline, name) {
		d.pool.Reset() // connections to the primary that was replaced
	}
	d.timeline = name
	return nil
}

// logins records how the latest login ended. It is a tracer of pgx, which calls the tracer for
// each login, also if no call waits for the login any more.
type logins struct {
	failed atomic.Pointer[error] // nil after a login that succeeded
}

var _ pgx.ConnectTracer = (*logins)(nil)

func (l *logins) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

func (l *logins) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil {
		l.failed.Store(nil)
		return
	}
	l.failed.Store(&data.Err)
}

// A tracer of pgx has to trace queries, too. They change nothing here.
func (l *logins) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (l *logins) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
